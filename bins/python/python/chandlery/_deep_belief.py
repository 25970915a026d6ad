"""Deep belief networks and convolutional RBMs."""

import json
from numbers import Real

from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from ._learned import COMMON, COUNT, Learned, Stack, sizes_of
from ._shared import seed_of


class DBN(Stack):
    """Deep belief network: restricted Boltzmann machines on top of each other.

    Parameters
    ----------
    n_components : int or sequence of int, default=(500, 500)
        Hidden units of each layer, lowest first.
    visible : {"bernoulli", "gaussian", "gaussian-learned"}, default="bernoulli"
        Visible units: of rows between 0 and 1, or of standardised ones.
    learning_rate : float, default=0.1
        Step along the mean gradient of a batch.
    momentum : float, default=0.5
        Share of the last step that is kept, in [0, 1).
    n_gibbs : int, default=1
        Gibbs steps of contrastive divergence.
    persistent : bool, default=False
        Whether chains go on from batch to batch.
    weight_decay : float, default=2e-4
        L2 decay of the weights.
    batch_size : int, default=100
        Rows of a batch.
    n_iter : int, default=10
        Passes over the rows for each layer.
    verbose : int, default=0
        Whether the metrics of each pass are printed.
    random_state : int, RandomState instance or None, default=None
        Where the seed comes from.
    device : str, default="cpu"
        "cpu", "cuda" or "cuda:N".
    checkpoint : path-like, default=None
        Folder where an interrupted ``fit`` leaves its state, and from which the next one of the same
        rows and parameters goes on to the same bits.

    Attributes
    ----------
    components_ : list of ndarray of shape (n_hidden, n_visible)
        Weights of each layer.
    metrics_ : list of dict
        What each pass measured.
    n_features_in_ : int
        Number of features seen during fit.
    """

    _kinds = ("deep-belief-network",)
    _parameter_constraints: dict = {
        **COMMON,
        "n_components": [COUNT, "array-like"],
        "visible": [StrOptions({"bernoulli", "gaussian", "gaussian-learned"})],
        "momentum": [Interval(Real, 0, 1, closed="left")],
        "n_gibbs": [COUNT],
        "persistent": ["boolean"],
        "weight_decay": [Interval(Real, 0, None, closed="left")],
    }

    def __init__(
        self,
        n_components=(500, 500),
        *,
        visible="bernoulli",
        learning_rate=0.1,
        momentum=0.5,
        n_gibbs=1,
        persistent=False,
        weight_decay=2e-4,
        batch_size=100,
        n_iter=10,
        verbose=0,
        random_state=None,
        device="cpu",
        checkpoint=None,
    ):
        self.n_components = n_components
        self.visible = visible
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.n_gibbs = n_gibbs
        self.persistent = persistent
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.n_iter = n_iter
        self.verbose = verbose
        self.random_state = random_state
        self.device = device
        self.checkpoint = checkpoint

    def _config(self, n_features):
        layers = self._layers(n_features)
        layers[0]["visible"] = self.visible
        return {"layers": layers}

    def _training(self):
        training = {
            "batch": self.batch_size,
            "learning_rate": float(self.learning_rate),
            "momentum": float(self.momentum),
            "k": self.n_gibbs,
            "persistent": bool(self.persistent),
            "l2": float(self.weight_decay),
        }
        return [training] * len(sizes_of(self.n_components))

    def sample(self, n_samples=1, *, n_gibbs=1000):
        """Draw rows from the model.

        Parameters
        ----------
        n_samples : int, default=1
            Rows.
        n_gibbs : int, default=1000
            Gibbs steps in the top layer.

        Returns
        -------
        X : ndarray of shape (n_samples, n_features)
            Means of the visible units.
        """
        check_is_fitted(self)
        return self._model.sample(n_samples, n_gibbs, seed_of(self.random_state))


class ConvRBM(Learned):
    """RBM whose filters lie at every place of an image, with pooled maps.

    Parameters
    ----------
    image_shape : tuple of int (height, width) or (height, width, channels)
        Shape of a row. Channels are planes, one after the other.
    n_filters : int, default=24
        Filters, each of which gives a map.
    filter_size : int, default=7
        Side of a filter, in pixels.
    pool : int, default=2
        Side of the blocks of a map that are pooled; blocks tile the maps.
    visible : {"bernoulli", "gaussian"}, default="bernoulli"
        Visible units.
    learning_rate : float, default=0.1
        Step along the mean gradient of a batch.
    momentum : float, default=0.5
        Share of the last step that is kept, in [0, 1).
    sparsity_target : float, default=None
        Mean activation that is wanted of each hidden unit, in (0, 1).
    sparsity_cost : float, default=1.0
        Weight of this wish.
    batch_size, n_iter, verbose, random_state, device, checkpoint
        As for :class:`DBN`.

    Attributes
    ----------
    components_ : ndarray of shape (n_filters, filter_size * filter_size * channels)
        Filters.
    metrics_ : list of dict
        What each pass measured.
    """

    _kinds = ("rbm",)
    _parameter_constraints: dict = {
        **COMMON,
        "image_shape": [tuple, list],
        "n_filters": [COUNT],
        "filter_size": [COUNT],
        "pool": [COUNT],
        "visible": [StrOptions({"bernoulli", "gaussian"})],
        "momentum": [Interval(Real, 0, 1, closed="left")],
        "sparsity_target": [Interval(Real, 0, 1, closed="neither"), None],
        "sparsity_cost": [Interval(Real, 0, None, closed="neither")],
    }

    def __init__(
        self,
        image_shape=(28, 28),
        *,
        n_filters=24,
        filter_size=7,
        pool=2,
        visible="bernoulli",
        learning_rate=0.1,
        momentum=0.5,
        sparsity_target=None,
        sparsity_cost=1.0,
        batch_size=100,
        n_iter=10,
        verbose=0,
        random_state=None,
        device="cpu",
        checkpoint=None,
    ):
        self.image_shape = image_shape
        self.n_filters = n_filters
        self.filter_size = filter_size
        self.pool = pool
        self.visible = visible
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.sparsity_target = sparsity_target
        self.sparsity_cost = sparsity_cost
        self.batch_size = batch_size
        self.n_iter = n_iter
        self.verbose = verbose
        self.random_state = random_state
        self.device = device
        self.checkpoint = checkpoint

    def _config(self, n_features):
        height, width, planes = (*self.image_shape, 1)[:3]
        if height * width * planes != n_features:
            raise ValueError(
                f"image_shape must have {n_features} values, those of a row, got {self.image_shape}"
            )
        sides = [(side - self.filter_size + 1) // self.pool for side in (height, width)]
        grid = {
            "planes": planes,
            "height": height,
            "width": width,
            "depth": 1,
            "size": self.filter_size,
            "n_filters": self.n_filters,
            "pool": self.pool,
        }
        return {
            "n_visible": n_features,
            "n_hidden": max(sides[0], 0) * max(sides[1], 0) * self.n_filters,
            "connections": {"filters": grid},
            "visible": self.visible,
        }

    def _training(self):
        training = {
            "batch": self.batch_size,
            "learning_rate": float(self.learning_rate),
            "momentum": float(self.momentum),
        }
        if self.sparsity_target is not None:
            training["sparsity"] = {
                "target": float(self.sparsity_target),
                "cost": float(self.sparsity_cost),
                "decay": 0.9,
            }
        return training

    def _restore(self):
        config = json.loads(self._model.config)
        if "filters" not in config.get("connections", {}):
            raise ValueError("a ConvRBM has filters, and this model has none")
        self.components_ = self._model.tensors()["weight"]
        self._n_features_out = config["n_hidden"]
        return self
