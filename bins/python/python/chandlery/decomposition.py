"""Dictionary learning, sparse coding and PCA, with the interface of ``sklearn.decomposition``."""

from ._dictionary import DictionaryLearning, MiniBatchDictionaryLearning
from ._pca import PCA
from ._sparse_coding import SparseCoder, sparse_encode

__all__ = ["PCA", "DictionaryLearning", "MiniBatchDictionaryLearning", "SparseCoder", "sparse_encode"]
