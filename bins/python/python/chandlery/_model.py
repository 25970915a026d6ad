"""Estimators that are a model of the library: files, pickles."""

import copyreg
import tempfile
from pathlib import Path

from sklearn.utils.validation import check_is_fitted

from . import _chandlery


class Saved:
    """An estimator whose fitted part is a model of the library, ``_model``."""

    #: What files call the models that it can be.
    _kinds = ()

    def save_pretrained(self, folder):
        """Write ``config.json`` and ``model.safetensors``, which programs and Rust read.

        Parameters
        ----------
        folder : path-like
            It is made if need be.
        """
        check_is_fitted(self)
        self._as_model().save_pretrained(folder)

    @classmethod
    def from_pretrained(cls, place, *, device="cpu"):
        """The estimator of a folder, or of a model of the Hugging Face hub by its id.

        Parameters
        ----------
        place : path-like or str
            A folder that ``save_pretrained``, a program or Rust wrote, or "owner/name[@revision]".
        device : str, default="cpu"
            "cpu", "cuda" or "cuda:N".

        Returns
        -------
        estimator : object
            It is fitted; parameters of its training are the defaults.
        """
        model = cls._loaded(place, device)
        estimator = cls(device=device)
        estimator._model = model
        estimator.n_features_in_ = model.n_inputs
        return estimator._restore()

    @classmethod
    def _loaded(cls, place, device):
        model = _chandlery.Model.from_pretrained(place, device=device)
        if model.kind not in cls._kinds:
            raise ValueError(f"{place}: is a {model.kind}, want a {' or '.join(cls._kinds)}")
        return model

    def _as_model(self):
        """The fitted part."""
        return self._model

    def _restore(self):
        """Takes attributes from ``_model``."""
        return self


def _pickled(trainer):
    """A trainer as pickles have it: its checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint"
        trainer.save(path)
        return _unpickled, (trainer.kind, path.read_bytes(), trainer.device)


def _unpickled(kind, checkpoint, device):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint"
        path.write_bytes(checkpoint)
        return _chandlery.Trainer.load(kind, path, device)


copyreg.pickle(_chandlery.Trainer, _pickled)
