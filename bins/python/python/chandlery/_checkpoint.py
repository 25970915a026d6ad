"""Checkpoints of ``fit``: what an interrupted one leaves, and the next one goes on from."""

import json
import os
import signal
import threading
import zlib
from pathlib import Path

import numpy as np

from . import _chandlery

#: What the parameter ``checkpoint`` may be.
CONSTRAINT: dict = {"checkpoint": [str, os.PathLike, None]}

#: Parameters that do not change what is learned.
_APART = ("verbose", "device", "checkpoint", "n_jobs", "callback")


def _sum_of(array):
    """A checksum of an array, on whatever device, or of a sparse matrix."""
    if hasattr(array, "tocsr"):
        array = array.tocsr()
        return [list(array.shape), *map(_sum_of, (array.data, array.indices, array.indptr))]
    array = array.numpy() if isinstance(array, _chandlery.Tensor) else np.ascontiguousarray(array)
    return [list(array.shape), str(array.dtype), zlib.crc32(memoryview(array).cast("B")) if array.size else 0]


def _told(value):
    """A parameter as a note has it."""
    if isinstance(value, np.random.RandomState | np.random.Generator):
        return "a generator"
    if callable(value):
        # Its address is another in each process.
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__name__)}"
    return repr(_sum_of(value) if isinstance(value, np.ndarray) else value)


class Checkpoint:
    """The checkpoint of a ``fit`` of an estimator on rows; where it has no folder there is none."""

    def __init__(self, estimator, rows):
        self.path = None
        self.note = ""
        if estimator.checkpoint is None:
            return
        folder = Path(estimator.checkpoint)
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "checkpoint.safetensors"
        parameters = estimator.get_params(deep=False).items()
        self.note = json.dumps(
            {
                "estimator": type(estimator).__name__,
                "parameters": {name: _told(value) for name, value in parameters if name not in _APART},
                "rows": None if rows is None else _sum_of(rows),
            }
        )

    def trainer(self, kind, device):
        """The trainer of the interrupted fit, if there was one."""
        if self.path is None or not self.path.exists():
            return None
        return _chandlery.Trainer.load(kind, self.path, device, self.note)

    def arguments(self):
        """What functions that write checkpoints take."""
        return {"checkpoint": self.path, "note": self.note}

    def done(self):
        """The fit has come to its end: the next one begins anew."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


class Interrupts:
    """Ctrl-C waits until a step is done and its checkpoint written; the second one does not.

    For loops in Python, in the main thread; of a fit without a checkpoint nothing changes.
    """

    def __init__(self, checkpoint):
        is_main = threading.current_thread() is threading.main_thread()
        self._waits = checkpoint.path is not None and is_main
        self._path, self._note = checkpoint.path, checkpoint.note
        self._came = False

    def __enter__(self):
        if self._waits:
            self._before = signal.getsignal(signal.SIGINT)
            signal.signal(signal.SIGINT, self._seen)
        return self

    def __exit__(self, kind, *_):
        if self._waits:
            signal.signal(signal.SIGINT, self._before)
        if self._came and kind is None:
            raise KeyboardInterrupt

    def _seen(self, number, frame):
        if self._came and callable(self._before):
            self._before(number, frame)
        self._came = True

    def after_step(self, trainer, state):
        """Writes the checkpoint and raises, if Ctrl-C came."""
        if self._came:
            trainer.save(self._path, self._note, json.dumps(state))
            raise KeyboardInterrupt
