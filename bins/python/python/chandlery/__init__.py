"""Unsupervised models of the Rust library Chandlery, with the conventions of scikit-learn."""

from . import _libraries  # noqa: F401  (before the module that needs them)
from ._chandlery import HAS_CUDA
from ._chandlery import VERSION as __version__
from .decomposition import PCA, DictionaryLearning, MiniBatchDictionaryLearning, SparseCoder, sparse_encode
from .linear_model import orthogonal_mp, orthogonal_mp_gram
from .manifold import TSNE
from .neighbors import knn_graph
from .neural_network import DBN, BernoulliRBM, ConvRBM, DenoisingAutoencoder, SparseAutoencoder

__all__ = [
    "DBN",
    "HAS_CUDA",
    "PCA",
    "TSNE",
    "BernoulliRBM",
    "ConvRBM",
    "DenoisingAutoencoder",
    "DictionaryLearning",
    "MiniBatchDictionaryLearning",
    "SparseAutoencoder",
    "SparseCoder",
    "__version__",
    "knn_graph",
    "orthogonal_mp",
    "orthogonal_mp_gram",
    "sparse_encode",
]
