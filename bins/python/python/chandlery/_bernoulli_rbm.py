"""`BernoulliRBM`."""

import json
import time

import numpy as np
import sklearn.neural_network
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from . import _chandlery
from ._arrays import any_kind, validated
from ._checkpoint import CONSTRAINT, Checkpoint
from ._model import Saved
from ._shared import dense, seed_of


class BernoulliRBM(Saved, sklearn.neural_network.BernoulliRBM):
    """Restricted Boltzmann machine with binary units, trained by persistent contrastive divergence.

    Parameters are those of :class:`sklearn.neural_network.BernoulliRBM`. Training is in float32;
    sparse rows become dense ones.

    Parameters
    ----------
    n_components : int, default=256
        Hidden units.
    learning_rate : float, default=0.1
        Step along the mean gradient of a batch.
    batch_size : int, default=10
        Rows of a batch, and number of persistent chains.
    n_iter : int, default=10
        Passes over the rows.
    verbose : int, default=0
        Whether the pseudo-likelihood after each pass is printed.
    random_state : int, RandomState instance or None, default=None
        Where the seed comes from.
    device : str, default="cpu"
        "cpu", "cuda" or "cuda:N".
    checkpoint : path-like, default=None
        Folder where an interrupted ``fit`` leaves its state, and from which the next one of the same
        rows and parameters goes on to the same bits.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Weights.
    intercept_hidden_ : ndarray of shape (n_components,)
        Biases of the hidden units.
    intercept_visible_ : ndarray of shape (n_features,)
        Biases of the visible units.
    h_samples_ : ndarray of shape (batch_size, n_components)
        Hidden units where the persistent chains are.
    n_features_in_ : int
        Number of features seen during fit.
    """

    _parameter_constraints: dict = {
        **sklearn.neural_network.BernoulliRBM._parameter_constraints,
        "device": [str],
        **CONSTRAINT,
    }

    _kinds = ("rbm",)

    def __init__(
        self,
        n_components=256,
        *,
        learning_rate=0.1,
        batch_size=10,
        n_iter=10,
        verbose=0,
        random_state=None,
        device="cpu",
        checkpoint=None,
    ):
        super().__init__(
            n_components,
            learning_rate=learning_rate,
            batch_size=batch_size,
            n_iter=n_iter,
            verbose=verbose,
            random_state=random_state,
        )
        self.device = device
        self.checkpoint = checkpoint

    def _begin(self, n_features):
        random_state = check_random_state(self.random_state)
        config = json.dumps({"n_visible": n_features, "n_hidden": self.n_components})
        model = _chandlery.Model.init("rbm", config, seed_of(random_state), device=self.device)
        training = {
            "batch": self.batch_size,
            "learning_rate": float(self.learning_rate),
            "momentum": 0.0,
            "l2": 0.0,
            "persistent": True,
            # scikit-learn takes any numbers.
            "any_range": True,
        }
        return _chandlery.Trainer(model, json.dumps(training), seed_of(random_state))

    def _take(self, model, dtype):
        tensors = model.tensors()
        self.components_ = tensors["weight"].astype(dtype, copy=False)
        self.intercept_hidden_ = tensors["bias"].astype(dtype, copy=False)
        self.intercept_visible_ = tensors["visible_bias"].astype(dtype, copy=False)
        return self

    def _as_model(self):
        n_hidden, n_visible = self.components_.shape
        names = {
            "weight": self.components_,
            "bias": self.intercept_hidden_,
            "visible_bias": self.intercept_visible_,
        }
        config = json.dumps({"n_visible": n_visible, "n_hidden": n_hidden})
        dtype = "f64" if self.components_.dtype == np.float64 else "f32"
        return _chandlery.Model("rbm", config, names, device=self.device, dtype=dtype)

    def _restore(self):
        config = json.loads(self._model.config)
        if (
            config.get("visible", "bernoulli") != "bernoulli"
            or config.get("hidden", "bernoulli") != "bernoulli"
        ):
            raise ValueError("a BernoulliRBM has Bernoulli units, and this model has others")
        self.n_components = self._n_features_out = config["n_hidden"]
        return self._take(self._model, np.float32)

    def _checked(self, X, reset):
        X = validated(self, X, accept_sparse="csr", dtype=[np.float64, np.float32], reset=reset)
        return dense(X)

    @any_kind
    def fit(self, X, y=None):
        """Train on the rows.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows, 0 to 1.
        y : None
            Ignored.

        Returns
        -------
        self : BernoulliRBM
        """
        self._validate_params()
        X = self._checked(X, True)
        checkpoint = Checkpoint(self, X)
        self._learner = checkpoint.trainer("rbm", self.device) or self._begin(X.shape[1])
        self._n_features_out = self.n_components
        self._learner.fit(
            X.astype(np.float32, copy=False),
            [self.n_iter],
            self.batch_size,
            callback=self._reporter(X) if self.verbose else None,
            shows_model=bool(self.verbose),
            **checkpoint.arguments(),
        )
        checkpoint.done()
        return self._take(self._learner.model(), X.dtype)._see_chains()

    def _reporter(self, X):
        """What prints a line after each pass."""
        rows = X.numpy() if isinstance(X, _chandlery.Tensor) else X
        iteration, began = 0, time.monotonic()

        def said(_, model):
            nonlocal iteration, began
            iteration += 1
            score = self._take(model, rows.dtype).score_samples(rows).mean()
            print(
                f"[{type(self).__name__}] Iteration {iteration}, pseudo-likelihood = {score:.2f}, "
                f"time = {time.monotonic() - began:.2f}s"
            )
            began = time.monotonic()

        return said

    def _see_chains(self):
        self.h_samples_ = self._learner.chains().astype(self.components_.dtype, copy=False)
        return self

    @any_kind
    def partial_fit(self, X, y=None):
        """Make a step on the rows of one batch.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows, 0 to 1; of more than ``batch_size`` rows several steps are made.
        y : None
            Ignored.

        Returns
        -------
        self : BernoulliRBM
        """
        self._validate_params()
        is_first = not hasattr(self, "_learner")
        X = self._checked(X, is_first)
        if is_first:
            self._learner = self._begin(X.shape[1])
            self._n_features_out = self.n_components
        for first in range(0, X.shape[0], self.batch_size):
            self._learner.step(X[first : first + self.batch_size].astype(np.float32))
        return self._take(self._learner.model(), X.dtype)._see_chains()

    @any_kind
    def transform(self, X):
        """The probabilities that hidden units are on.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        h : ndarray of shape (n_samples, n_components)
        """
        check_is_fitted(self)
        X = self._checked(X, False)
        return self._as_model().encode(X).astype(X.dtype, copy=False)

    def gibbs(self, v):
        """Draw visible units given hidden ones that are drawn given ``v``.

        Parameters
        ----------
        v : ndarray of shape (n_samples, n_features)
            Values of the visible units.

        Returns
        -------
        v_new : ndarray of shape (n_samples, n_features)
            Whether units are on.
        """
        check_is_fitted(self)
        if not hasattr(self, "random_state_"):
            self.random_state_ = check_random_state(self.random_state)
        v = np.asarray(v, dtype=self.components_.dtype)
        return self._as_model().gibbs(v, seed_of(self.random_state_)).astype(bool)

    def _free_energy(self, v):
        return self._as_model().free_energy(np.asarray(dense(v), dtype=self.components_.dtype))
