"""t-SNE, with the interface of ``sklearn.manifold``."""

import json
import warnings
from inspect import signature
from numbers import Real

import numpy as np
from sklearn.manifold import TSNE as _TheirTSNE
from sklearn.metrics import pairwise_distances
from sklearn.neighbors import NearestNeighbors
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, check_non_negative

from . import _chandlery
from ._arrays import any_kind, validated
from ._checkpoint import CONSTRAINT, Checkpoint
from ._model import Saved
from ._shared import dense, seed_of

__all__ = ["TSNE"]

#: Metrics whose neighbours the library searches itself, by the names of scikit-learn.
_METRICS = {
    "euclidean": "euclidean",
    "l2": "euclidean",
    "cosine": "cosine",
    "correlation": "correlation",
    "manhattan": "manhattan",
    "cityblock": "manhattan",
    "l1": "manhattan",
    "chebyshev": "chebyshev",
    "hamming": "hamming",
    "jaccard": "jaccard",
}

#: Those to which only differences of rows matter: what is far from 0 may first be brought near it.
_BY_DIFFERENCES = {"euclidean", "manhattan", "chebyshev", "hamming"}

#: Iterations with early exaggeration, as in scikit-learn.
_EARLY = 250


class TSNE(Saved, _TheirTSNE):
    """t-distributed stochastic neighbour embedding: a picture of the rows.

    Parameters are those of :class:`sklearn.manifold.TSNE`, with these differences.

    Parameters
    ----------
    n_components : int, default=2
        Dimensions of the layout. In more than 3 it is scikit-learn's own, which has no
        ``transform``.

    learning_rate : float or "auto", default="auto"
        "auto" is the number of rows over the exaggeration of each phase (Belkina et al. 2019),
        four times that of scikit-learn in the first phase.

    metric : str or callable, default="euclidean"
        Neighbours by "euclidean", "cosine", "correlation", "manhattan", "chebyshev", "hamming" and
        "jaccard" are searched by the library; those of any other metric of scikit-learn by
        ``NearestNeighbors``.

    method : {"auto", "fft", "barnes_hut", "exact"}, default="auto"
        How repulsion is found. "auto": every pair of few points, beyond 2,000 interpolation on a
        grid in 2 dimensions and a tree in 3.

    init : {"pca", "random", "spectral"} or ndarray of shape (n_samples, n_components), default="pca"
        Where points begin. "spectral": the directions in which a random walk over the affinities
        mixes slowest; it needs no rows.

    n_jobs : int, default=None
        For metrics that scikit-learn computes. The library takes all cores, or as many as the
        environment variable ``RAYON_NUM_THREADS`` says.

    device : str, default="cpu"
        "cpu", "cuda" or "cuda:N".

    checkpoint : path-like, default=None
        Folder where an interrupted ``fit`` leaves its state, and from which the next one of the same
        rows and parameters goes on to the same bits.

    affinity : {"perplexity", "uniform"} or float, default="perplexity"
        How much the neighbours of a row weigh for it: Gaussians whose widths give the perplexity,
        all alike, or Gaussians of this standard deviation.

    exaggeration : float, default=1.0
        The factor on the attraction after the early iterations; more makes clusters denser.

    degrees_of_freedom : float, default=1.0
        ``a`` of the kernel ``(1 + d**2 / a) ** -a``; less shows finer clusters. Scikit-learn's
        kernel has 1.

    changes : list of dict, default=None
        What changes on the way: each has the key "iteration" and one or more of "exaggeration",
        "learning_rate", "momentum", "degrees_of_freedom" and "perplexities" (a list), as in
        ``[{"iteration": 500, "perplexities": [30.0]}]``.

    recall : float, default=0.95
        The share of the nearest rows that the search among more than 150,000 has to find.

    unique : bool, default=False
        Whether equal rows are one point that counts as often, on the CPU: for data with many copies.
        The divergence and its descent are those of all rows, and ``embedding_`` has a place for each.

    Attributes
    ----------
    embedding_ : ndarray of shape (n_samples, n_components)
        The layout, float32.

    kl_divergence_ : float
        The Kullback-Leibler divergence of the layout.

    n_features_in_ : int
        Number of features seen during fit.

    learning_rate_ : float
        The rate of the first phase.

    n_iter_ : int
        Iterations made.
    """

    _parameter_constraints: dict = {
        **_TheirTSNE._parameter_constraints,
        "method": [StrOptions({"auto", "fft", "barnes_hut", "exact"})],
        "init": [StrOptions({"pca", "random", "spectral"}), np.ndarray],
        "affinity": [StrOptions({"perplexity", "uniform"}), Interval(Real, 0, None, closed="neither")],
        "exaggeration": [Interval(Real, 0, None, closed="neither")],
        "degrees_of_freedom": [Interval(Real, 0, None, closed="neither")],
        "changes": [list, None],
        "recall": [Interval(Real, 0, 1, closed="right")],
        "unique": ["boolean"],
        "perplexity": [Interval(Real, 0, None, closed="neither")],
        "device": [str],
        **CONSTRAINT,
    }

    _kinds = ("t-sne",)

    def __init__(
        self,
        n_components=2,
        *,
        perplexity=30.0,
        early_exaggeration=12.0,
        learning_rate="auto",
        max_iter=1000,
        n_iter_without_progress=300,
        min_grad_norm=1e-7,
        metric="euclidean",
        metric_params=None,
        init="pca",
        verbose=0,
        random_state=None,
        method="auto",
        angle=0.5,
        n_jobs=None,
        device="cpu",
        checkpoint=None,
        affinity="perplexity",
        exaggeration=1.0,
        degrees_of_freedom=1.0,
        changes=None,
        recall=0.95,
        unique=False,
    ):
        super().__init__(
            n_components,
            perplexity=perplexity,
            early_exaggeration=early_exaggeration,
            learning_rate=learning_rate,
            max_iter=max_iter,
            n_iter_without_progress=n_iter_without_progress,
            min_grad_norm=min_grad_norm,
            metric=metric,
            metric_params=metric_params,
            init=init,
            verbose=verbose,
            random_state=random_state,
            method=method,
            angle=angle,
            n_jobs=n_jobs,
        )
        self.device = device
        self.checkpoint = checkpoint
        self.affinity = affinity
        self.exaggeration = exaggeration
        self.degrees_of_freedom = degrees_of_freedom
        self.changes = changes
        self.recall = recall
        self.unique = unique

    @any_kind
    def fit(self, X, y=None):
        """Find the layout of the rows.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features) or (n_samples, n_samples)
            Rows; with ``metric="precomputed"`` distances, which may be a sparse graph of neighbours.
        y : None
            Ignored.

        Returns
        -------
        self : TSNE
        """
        self.fit_transform(X)
        return self

    @any_kind
    def fit_transform(self, X, y=None):
        """Find the layout of the rows and return it.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features) or (n_samples, n_samples)
            Rows; with ``metric="precomputed"`` distances, which may be a sparse graph of neighbours.
        y : None
            Ignored.

        Returns
        -------
        embedding : ndarray of shape (n_samples, n_components)
        """
        self._validate_params()
        if self.n_components > 3:
            if isinstance(X, _chandlery.Tensor):
                raise ValueError(f"n_components: must be at most 3 for rows on a GPU, got {self.n_components}")
            return self._by_theirs(X)
        X = self._checked(X)
        n = X.shape[0]
        if self.perplexity >= n:
            raise ValueError(f"perplexity ({self.perplexity}) must be less than n_samples ({n})")
        is_auto = isinstance(self.learning_rate, str)
        self.learning_rate_ = n / self.early_exaggeration if is_auto else self.learning_rate
        random_state = check_random_state(self.random_state)
        rows, neighbours, centre = self._rows_or_neighbours(X)
        start = self._start(X, n, random_state)
        config = self._config(n, None if is_auto else float(self.learning_rate), centre)
        checkpoint = Checkpoint(self, X if rows is None else rows)
        self._model, self.kl_divergence_, self.n_iter_, notes = _chandlery.tsne(
            rows,
            json.dumps(config),
            seed_of(random_state),
            neighbours=neighbours,
            start=start,
            patience=self.n_iter_without_progress if self.n_iter_without_progress >= 0 else None,
            callback=self._said if self.verbose else None,
            **checkpoint.arguments(),
            device=self.device,
        )
        for note in notes:
            warnings.warn(note, stacklevel=2)
        checkpoint.done()
        self.embedding_ = self._model.tensors()["layout"]
        return self._model.tensor("layout") if isinstance(X, _chandlery.Tensor) else self.embedding_

    def _by_theirs(self, X):
        parameters = self.get_params()
        for name in ("device", "checkpoint"):
            del parameters[name]
        defaults = signature(TSNE).parameters
        for name in ("affinity", "exaggeration", "degrees_of_freedom", "changes", "recall", "unique"):
            if parameters.pop(name) != defaults[name].default:
                raise ValueError(
                    f"{name}: must be {defaults[name].default!r} in more than 3 dimensions, "
                    f"which are scikit-learn's, got {getattr(self, name)!r}"
                )
        if isinstance(self.init, str) and self.init == "spectral":
            raise ValueError(
                "init: must not be 'spectral' in more than 3 dimensions, which are scikit-learn's"
            )
        if self.method == "auto":
            parameters["method"] = "barnes_hut" if self.n_components < 4 else "exact"
        theirs = _TheirTSNE(**parameters).fit(X)
        vars(self).update({name: value for name, value in vars(theirs).items() if name.endswith("_")})
        self._model = None
        return self.embedding_

    @any_kind
    def transform(self, X):
        """Place new rows in the layout, whose points stay.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            New rows.

        Returns
        -------
        places : ndarray of shape (n_samples, n_components)
        """
        check_is_fitted(self)
        if self._model is None:
            raise ValueError(
                f"TSNE.transform: the layout must have at most 3 dimensions, got {self.n_components}"
            )
        X = dense(validated(self, X, accept_sparse=True, dtype=[np.float32, np.float64], reset=False))
        centre = json.loads(self._model.config).get("centre")
        if centre is not None and isinstance(X, _chandlery.Tensor):
            X, centre = X.centred(np.asarray(centre))[0], None
        rows = X if centre is None else X - np.asarray(centre)
        return _chandlery.tsne_transform(self._model, rows.astype(np.float32), "{}")

    def _restore(self):
        config, tensors = json.loads(self._model.config), self._model.tensors()
        self.embedding_ = tensors["layout"]
        self.n_components = config["n_dims"]
        self.perplexity = config["perplexity"]
        return self

    def _checked(self, X):
        X = validated(
            self,
            X,
            reset=True,
            accept_sparse=["csr", "csc", "coo"],
            ensure_min_samples=2,
            dtype=[np.float32, np.float64],
        )
        if self.metric == "precomputed":
            if isinstance(self.init, str) and self.init == "pca":
                raise ValueError('The parameter init="pca" cannot be used with metric="precomputed".')
            if X.shape[0] != X.shape[1]:
                raise ValueError("X should be a square distance matrix")
            check_non_negative(
                X, "TSNE.fit(). With metric='precomputed', X should contain positive distances."
            )
            if self.method == "exact" and hasattr(X, "toarray"):
                raise TypeError(
                    'TSNE with method="exact" does not accept sparse precomputed distance matrix. '
                    'Use method="barnes_hut" or provide the dense distance matrix.'
                )
        return X

    def _k(self, n):
        """Neighbours of a row that get an affinity."""
        return n - 1 if self.method == "exact" else min(n - 1, int(3.0 * self.perplexity + 1))

    def _rows_or_neighbours(self, X):
        """Rows in float32 and what was subtracted from them, or neighbours."""
        n = X.shape[0]
        metric = (
            _METRICS.get(self.metric) if isinstance(self.metric, str) and not self.metric_params else None
        )
        if metric is not None:
            X = dense(X)
            # Far from 0 float32 would round differences away.
            if X.dtype == np.float32 or metric not in _BY_DIFFERENCES:
                return X.astype(np.float32), None, None
            if isinstance(X, _chandlery.Tensor):
                rows, means = X.centred()
                return rows, None, means.tolist()
            centre = X.mean(axis=0)
            return (X - centre).astype(np.float32), None, centre.tolist()
        if isinstance(X, _chandlery.Tensor):
            names = ", ".join(_METRICS)
            raise ValueError(f"metric: must be one of {names} for rows on a GPU, got {self.metric!r}")
        distances = X
        if self.metric == "precomputed" and hasattr(X, "toarray"):
            return None, self._of_graph(X), None
        if self.metric != "precomputed" and self.method != "exact":
            search = NearestNeighbors(
                n_neighbors=self._k(n),
                metric=self.metric,
                metric_params=self.metric_params,
                n_jobs=self.n_jobs,
            ).fit(X)
            near, indices = search.kneighbors()
            return None, self._not_negative(indices, near), None
        if self.metric != "precomputed":
            distances = pairwise_distances(
                X, metric=self.metric, n_jobs=self.n_jobs, **(self.metric_params or {})
            )
        distances = np.array(distances, dtype=np.float64)
        np.fill_diagonal(distances, np.inf)
        k = self._k(n)
        indices = np.argpartition(distances, k - 1, axis=1)[:, :k]
        return None, self._not_negative(indices, np.take_along_axis(distances, indices, axis=1)), None

    def _of_graph(self, graph):
        """Neighbours of a sparse matrix of distances."""
        search = NearestNeighbors(n_neighbors=self._k(graph.shape[0]), metric="precomputed").fit(
            graph.tocsr()
        )
        near, indices = search.kneighbors()
        return self._not_negative(indices, near)

    @staticmethod
    def _not_negative(indices, distances):
        if np.any(distances < 0):
            raise ValueError("All distances should be positive, the metric given is not correct")
        return indices.astype(np.int64), np.ascontiguousarray(distances, dtype=np.float64)

    def _start(self, X, n, random_state):
        """The first layout; none where the library makes it."""
        if isinstance(self.init, np.ndarray):
            if self.init.shape != (n, self.n_components):
                raise ValueError(f"init must have shape {(n, self.n_components)}, got {self.init.shape}")
            return np.asarray(self.init, dtype=np.float32)
        if self.init in ("random", "spectral") or (isinstance(self.metric, str) and self.metric in _METRICS):
            return None
        # Neighbours alone do not tell principal components.
        from .decomposition import PCA

        first = PCA(n_components=self.n_components, random_state=random_state).fit_transform(dense(X))
        return (first / np.std(first[:, 0]) * 1e-4).astype(np.float32)

    def _config(self, n, learning_rate, centre):
        method = {"auto": None, "barnes_hut": "barnes-hut"}.get(self.method, self.method)
        metric = _METRICS.get(self.metric, "euclidean") if isinstance(self.metric, str) else "euclidean"
        # Where a first layout is given, what begins it makes no difference.
        start = "pca" if isinstance(self.init, str) else "random"
        affinity = self.affinity if isinstance(self.affinity, str) else {"fixed-width": float(self.affinity)}
        config = {
            "n_dims": self.n_components,
            "affinity": affinity,
            "exaggeration": float(self.exaggeration),
            "degrees_of_freedom": float(self.degrees_of_freedom),
            "changes": self.changes or [],
            "recall": float(self.recall),
            "unique": self.unique,
            "perplexity": max(float(self.perplexity), 1.0),
            "metric": metric,
            "neighbours": self._k(n) if self.method == "exact" else None,
            "method": method,
            "theta": float(self.angle),
            "early_iterations": min(_EARLY, self.max_iter),
            "early_exaggeration": float(self.early_exaggeration),
            "iterations": max(self.max_iter - _EARLY, 0),
            "learning_rate": learning_rate,
            "start": self.init if isinstance(self.init, str) and self.init != "pca" else start,
            "gradient_tolerance": float(self.min_grad_norm),
        }
        if learning_rate is not None:
            # As in scikit-learn, whose rates were chosen with it.
            config["early_momentum"] = 0.5
        if centre is not None:
            config["centre"] = centre
        return config

    def _said(self, iteration, kl, gradient_norm):
        print(f"[t-SNE] Iteration {iteration}: error = {kl:.7f}, gradient norm = {gradient_norm:.7f}")

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags
