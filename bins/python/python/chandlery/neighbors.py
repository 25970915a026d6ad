"""Nearest neighbours."""

import numpy as np
import scipy.sparse

from . import _chandlery
from ._arrays import any_kind_of, checked
from .manifold import _BY_DIFFERENCES, _METRICS

__all__ = ["knn_graph"]


@any_kind_of
def knn_graph(X, n_neighbors, *, mode="connectivity", metric="euclidean", device="cpu"):
    """The graph of the nearest other rows of each row, as a sparse matrix.

    The result is that of :func:`sklearn.neighbors.kneighbors_graph`, but for distances in float32.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Rows.
    n_neighbors : int
        Neighbours of a row, which is none of its own.
    mode : {"connectivity", "distance"}, default="connectivity"
        Whether entries are 1 or distances.
    metric : str, default="euclidean"
        "euclidean", "cosine", "correlation", "manhattan", "chebyshev", "hamming" or "jaccard", or
        another name that scikit-learn has for one of them.
    device : str, default="cpu"
        "cpu", "cuda" or "cuda:N".

    Returns
    -------
    graph : scipy.sparse.csr_matrix of shape (n_samples, n_samples)
        Rows have their nearest neighbour first.
    """
    if mode not in ("connectivity", "distance"):
        raise ValueError(f'mode must be "connectivity" or "distance", got {mode!r}')
    X = checked(X, dtype=[np.float32, np.float64])
    name = _METRICS.get(metric, metric)
    if X.dtype == np.float32 or name not in _BY_DIFFERENCES:
        rows = X
    else:
        rows = X.centred()[0] if isinstance(X, _chandlery.Tensor) else X - X.mean(axis=0)
    indices, distances = _chandlery.knn_graph(rows.astype(np.float32), n_neighbors, name, device=device)
    n = X.shape[0]
    values = distances.astype(np.float64) if mode == "distance" else np.ones(indices.shape)
    offsets = np.arange(0, n * n_neighbors + 1, n_neighbors)
    return scipy.sparse.csr_matrix((values.ravel(), indices.ravel().astype(np.int64), offsets), shape=(n, n))
