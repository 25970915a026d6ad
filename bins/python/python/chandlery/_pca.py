"""Principal component analysis."""

import numpy as np
import sklearn.decomposition
from sklearn.utils.validation import check_is_fitted

from . import _chandlery
from ._arrays import any_kind, validated


class PCA(sklearn.decomposition.PCA):
    """Principal component analysis; see :class:`sklearn.decomposition.PCA`.

    The directions of most variance are those of the covariance in float64, or for many features and
    few directions those found by products with the rows, whatever ``svd_solver`` is. What
    the library lacks, ``n_components="mle"`` and sparse rows, is scikit-learn's own.

    Parameters
    ----------
    n_components, copy, whiten, svd_solver, tol, iterated_power, n_oversamples
        As in scikit-learn.
    power_iteration_normalizer, random_state
        As in scikit-learn.
    device : str, default="cpu"
        "cpu", "cuda" or "cuda:N".
    """

    _parameter_constraints: dict = {**sklearn.decomposition.PCA._parameter_constraints, "device": [str]}

    def __init__(
        self,
        n_components=None,
        *,
        copy=True,
        whiten=False,
        svd_solver="auto",
        tol=0.0,
        iterated_power="auto",
        n_oversamples=10,
        power_iteration_normalizer="auto",
        random_state=None,
        device="cpu",
    ):
        super().__init__(
            n_components,
            copy=copy,
            whiten=whiten,
            svd_solver=svd_solver,
            tol=tol,
            iterated_power=iterated_power,
            n_oversamples=n_oversamples,
            power_iteration_normalizer=power_iteration_normalizer,
            random_state=random_state,
        )
        self.device = device

    @any_kind
    def fit(self, X, y=None):
        """Find the directions of most variance.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows.
        y : None
            Ignored.

        Returns
        -------
        self : PCA
        """
        self._validate_params()
        if self.n_components == "mle" or hasattr(X, "toarray"):
            return super().fit(X)
        X = validated(self, X, reset=True, dtype=[np.float64, np.float32], ensure_min_samples=2)
        n, n_features = X.shape
        most = min(n, n_features)
        is_share = isinstance(self.n_components, (float, np.floating)) and self.n_components < 1
        k = most if self.n_components is None or is_share else self.n_components
        if not 0 <= k <= most:
            raise ValueError(
                f"n_components={self.n_components!r} must be between 0 and "
                f"min(n_samples, n_features)={most} with svd_solver={self.svd_solver!r}"
            )
        mean, components, variance, total = _chandlery.pca(X, max(int(k), 1), device=self.device)
        ratio = variance / total if total > 0 else np.zeros_like(variance)
        if is_share:
            k = int(np.searchsorted(np.cumsum(ratio), self.n_components, side="right")) + 1
        k = min(int(k), most)
        self.mean_, self.components_ = mean.astype(X.dtype), components[:k].astype(X.dtype)
        self.explained_variance_ = variance[:k].astype(X.dtype)
        self.explained_variance_ratio_ = ratio[:k].astype(X.dtype)
        self.singular_values_ = np.sqrt(self.explained_variance_ * (n - 1))
        left = max(total - float(variance[:k].sum()), 0.0)
        self.noise_variance_ = X.dtype.type(left / (most - k) if k < most else 0.0)
        self.n_components_, self.n_samples_ = k, n
        return self

    @any_kind
    def fit_transform(self, X, y=None):
        """Find the directions of most variance and return the coordinates of the rows.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows.
        y : None
            Ignored.

        Returns
        -------
        X_new : ndarray of shape (n_samples, n_components)
        """
        return self.fit(X).transform(X)

    @any_kind
    def transform(self, X):
        """Coordinates of rows along the directions.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        X_new : ndarray of shape (n_samples, n_components)
        """
        if not isinstance(X, _chandlery.Tensor):
            return super().transform(X)
        check_is_fitted(self)
        X = validated(self, X, reset=False, dtype=[np.float64, np.float32])
        directions = self.components_
        if self.whiten:
            deviations = np.sqrt(self.explained_variance_)
            least = np.finfo(deviations.dtype).eps
            directions = directions / np.maximum(deviations, least)[:, np.newaxis]
        mean, directions = self.mean_.astype(X.dtype), directions.astype(X.dtype)
        return _chandlery.project(X, mean, directions, device=self.device)
