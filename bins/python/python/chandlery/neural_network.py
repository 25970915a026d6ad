"""Restricted Boltzmann machines and autoencoders, with the conventions of scikit-learn."""

from ._autoencoders import DenoisingAutoencoder, SparseAutoencoder
from ._bernoulli_rbm import BernoulliRBM
from ._deep_belief import DBN, ConvRBM

__all__ = ["DBN", "BernoulliRBM", "ConvRBM", "DenoisingAutoencoder", "SparseAutoencoder"]
