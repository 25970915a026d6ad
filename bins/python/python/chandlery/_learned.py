"""Estimators that scikit-learn lacks: a model and its trainer."""

import json
from numbers import Integral, Real

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import check_is_fitted

from . import _chandlery
from ._arrays import any_kind, validated
from ._checkpoint import CONSTRAINT, Checkpoint
from ._model import Saved
from ._shared import dense, seed_of

#: Constraints that all have.
COMMON: dict = {
    "learning_rate": [Interval(Real, 0, None, closed="neither")],
    "batch_size": [Interval(Integral, 1, None, closed="left")],
    "n_iter": [Interval(Integral, 0, None, closed="left")],
    "verbose": ["verbose"],
    "random_state": ["random_state"],
    "device": [str],
    **CONSTRAINT,
}
COUNT = Interval(Integral, 1, None, closed="left")


def sizes_of(sizes):
    return [int(n) for n in np.atleast_1d(sizes)]


class Learned(Saved, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """An estimator that scikit-learn lacks: a model and its trainer."""

    def _name(self):
        """What files call the model."""
        return self._kinds[0]

    def _rows(self, X, reset):
        """Rows as the library stores them: uint8, which counts as 0 to 1, or float32."""
        # Columns of a frame have a type each.
        dtypes = X.dtypes if hasattr(X, "dtypes") else [getattr(X, "dtype", None)]
        are_bytes = all(str(dtype).lower() == "uint8" for dtype in dtypes)
        dtype = np.uint8 if are_bytes else np.float32
        return dense(validated(self, X, accept_sparse="csr", dtype=dtype, reset=reset))

    @any_kind
    def fit(self, X, y=None):
        """Train on the rows.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows; uint8 counts as 0 to 1.
        y : None
            Ignored.

        Returns
        -------
        self : object
        """
        self._validate_params()
        X = self._rows(X, True)
        random_state = check_random_state(self.random_state)
        config, training = self._config(X.shape[1]), self._training()
        checkpoint = Checkpoint(self, X)
        trainer = checkpoint.trainer(self._name(), self.device)
        if trainer is None:
            model = _chandlery.Model.init(
                self._name(), json.dumps(config), seed_of(random_state), device=self.device
            )
            trainer = _chandlery.Trainer(model, json.dumps(training), seed_of(random_state))
            self.metrics_ = []
        else:
            self.metrics_ = json.loads(trainer.progress)["metrics"]
        trainer.fit(
            X,
            self._epochs(),
            self.batch_size,
            shuffle=seed_of(random_state),
            callback=self._seen,
            **checkpoint.arguments(),
        )
        self._model = trainer.model()
        checkpoint.done()
        return self._restore()

    def _seen(self, metrics):
        self.metrics_.append(json.loads(metrics))
        if self.verbose:
            print(f"[{type(self).__name__}] {metrics}")

    def _epochs(self):
        return [self.n_iter]

    @any_kind
    def transform(self, X):
        """Features of the rows.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        features : ndarray of shape (n_samples, n_components)
        """
        check_is_fitted(self)
        return self._model.encode(self._rows(X, False))

    @any_kind
    def reconstruct(self, X):
        """What comes back of the rows.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        X_back : ndarray of shape (n_samples, n_features)
        """
        check_is_fitted(self)
        return self._model.reconstruct(self._rows(X, False))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags


class Stack(Learned):
    """A stack that is trained layer by layer."""

    def _epochs(self):
        return [self.n_iter] * len(sizes_of(self.n_components))

    def _layers(self, n_features):
        """Sizes of the layers, lowest first."""
        sizes = [n_features, *sizes_of(self.n_components)]
        return [{"n_visible": v, "n_hidden": h} for v, h in zip(sizes, sizes[1:])]

    def _restore(self):
        layers = json.loads(self._model.config)["layers"]
        tensors = self._model.tensors()
        self.components_ = [tensors[f"layers.{i}.weight"] for i in range(len(layers))]
        self._n_features_out = layers[-1]["n_hidden"]
        return self

    @any_kind
    def all_features(self, X):
        """Features of all layers side by side: what a linear classifier reads best.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        features : ndarray of shape (n_samples, sum of n_components)
        """
        check_is_fitted(self)
        return self._model.all_features(self._rows(X, False))
