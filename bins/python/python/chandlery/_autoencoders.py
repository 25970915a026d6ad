"""Denoising and sparse autoencoders."""

import json

from sklearn.utils._param_validation import StrOptions

from ._learned import COMMON, COUNT, Learned, Stack, sizes_of


class DenoisingAutoencoder(Stack):
    """Denoising autoencoder, one layer or a stack that is trained layer by layer.

    Parameters
    ----------
    n_components : int or sequence of int, default=500
        Hidden units of each layer, lowest first.
    corruption : str, default="salt-and-pepper:0.3"
        Noise on the rows while they train: "salt-and-pepper:SHARE", "masking:SHARE" or
        "gaussian:DEVIATION".
    loss : {"cross-entropy", "squared-error"}, default="cross-entropy"
        What reconstructions are held against. Cross-entropy is for rows between 0 and 1; with the
        squared error outputs of the lowest layer are linear.
    learning_rate : float, default=0.1
        Step along the mean gradient of a batch.
    batch_size : int, default=8
        Rows of a batch.
    n_iter, verbose, random_state, device, checkpoint
        As for :class:`DBN`.

    Attributes
    ----------
    components_ : list of ndarray of shape (n_hidden, n_visible)
        Weights of the encoder of each layer.
    metrics_ : list of dict
        What each pass measured.
    """

    _kinds = ("stacked-denoising-autoencoder",)
    _parameter_constraints: dict = {
        **COMMON,
        "n_components": [COUNT, "array-like"],
        "corruption": [str],
        "loss": [StrOptions({"cross-entropy", "squared-error"})],
    }

    def __init__(
        self,
        n_components=500,
        *,
        corruption="salt-and-pepper:0.3",
        loss="cross-entropy",
        learning_rate=0.1,
        batch_size=8,
        n_iter=10,
        verbose=0,
        random_state=None,
        device="cpu",
        checkpoint=None,
    ):
        self.n_components = n_components
        self.corruption = corruption
        self.loss = loss
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.n_iter = n_iter
        self.verbose = verbose
        self.random_state = random_state
        self.device = device
        self.checkpoint = checkpoint

    def _config(self, n_features):
        layers = self._layers(n_features)
        if self.loss == "squared-error":
            layers[0].update(loss="squared-error", output="identity")
        return {"layers": layers}

    def _training(self):
        training = {
            "batch": self.batch_size,
            "learning_rate": float(self.learning_rate),
            "corruption": self.corruption,
        }
        return [training] * len(sizes_of(self.n_components))


class SparseAutoencoder(Learned):
    """Sparse autoencoder: features of which few are active.

    Parameters
    ----------
    n_components : int, default=1024
        Features.
    kind : {"top-k", "batch-top-k", "matryoshka", "relu", "jump-relu", "gated", "kullback-leibler"}, \
default="top-k"
        Which features are active: the ``k`` largest of a row or of a batch, nested ones, those above
        0 or a threshold or behind a gate by a penalty; or the classical one with sigmoid units whose
        mean activation is held near a target (Ng 2011).
    k : int, default=32
        Active features of a row, for the kinds with a fixed number.
    decoder : {"sigmoid", "linear"}, default="sigmoid"
        Outputs of "kullback-leibler".
    learning_rate : float, default=1e-3
        Step size of Adam.
    batch_size : int, default=256
        Rows of a batch.
    n_iter : int, default=10
        Passes over the rows.
    verbose, random_state, device, checkpoint
        As for :class:`DBN`.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Weights of the encoder.
    metrics_ : list of dict
        What each pass measured.
    """

    _kinds = ("sae", "sparse-autoencoder")
    _KINDS = ("top-k", "batch-top-k", "matryoshka", "relu", "jump-relu", "gated", "kullback-leibler")
    _parameter_constraints: dict = {
        **COMMON,
        "n_components": [COUNT],
        "kind": [StrOptions(set(_KINDS))],
        "k": [COUNT],
        "decoder": [StrOptions({"sigmoid", "linear"})],
    }

    def __init__(
        self,
        n_components=1024,
        *,
        kind="top-k",
        k=32,
        decoder="sigmoid",
        learning_rate=1e-3,
        batch_size=256,
        n_iter=10,
        verbose=0,
        random_state=None,
        device="cpu",
        checkpoint=None,
    ):
        self.n_components = n_components
        self.kind = kind
        self.k = k
        self.decoder = decoder
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.n_iter = n_iter
        self.verbose = verbose
        self.random_state = random_state
        self.device = device
        self.checkpoint = checkpoint

    def _is_classical(self):
        return self.kind == "kullback-leibler"

    def _name(self):
        return "sparse-autoencoder" if self._is_classical() else "sae"

    def _config(self, n_features):
        if self._is_classical():
            return {"n_visible": n_features, "n_hidden": self.n_components, "decoder": self.decoder}
        n, k = self.n_components, min(self.k, self.n_components)
        kind = {
            "top-k": {"top-k": {"k": k}},
            "batch-top-k": {"batch-top-k": {"k": k}},
            "matryoshka": {
                "matryoshka": {"k": k, "prefixes": sorted({n // part for part in (16, 8, 4, 2, 1)} - {0})}
            },
        }.get(self.kind, self.kind)
        return {"n_visible": n_features, "n_latents": n, "kind": kind}

    def _training(self):
        training = {"batch": self.batch_size, "learning_rate": float(self.learning_rate)}
        if not self._is_classical():
            # The defaults of the library are for hundreds of millions of rows.
            training.update(warm_up=10, sparsity_warm_up=100)
        return training

    def _restore(self):
        config, tensors = json.loads(self._model.config), self._model.tensors()
        is_classical = self._model.kind == "sparse-autoencoder"
        self._n_features_out = config["n_hidden" if is_classical else "n_latents"]
        self.components_ = tensors["weight" if is_classical else "encoder.weight"]
        return self
