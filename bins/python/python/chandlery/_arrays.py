"""Arrays of other libraries: taken by DLPack, with results of the same kind.

On a GPU an array is a ``_chandlery.Tensor`` within our methods, which has what they use of NumPy's
arrays; on the CPU it is a NumPy array that shares its memory.
"""

import functools
import sys

import numpy as np
from sklearn.utils import check_array
from sklearn.utils.validation import validate_data

from . import _chandlery

#: Kinds of devices of DLPack that are the memory of the host.
_HOST = (1, 3)


def _is_foreign(X):
    """Whether X is an array of another library."""
    ours = (np.ndarray, np.generic, _chandlery.Tensor)
    return hasattr(X, "__dlpack__") and hasattr(X, "__dlpack_device__") and not isinstance(X, ours)


def _maker(X):
    """What makes an array of the kind of X of one with the methods of DLPack, if anything does."""
    if hasattr(X, "__array_namespace__"):
        made = getattr(X.__array_namespace__(), "from_dlpack", None)
        if made is not None:
            return made
    for kind in type(X).__mro__:
        library = sys.modules.get(kind.__module__.partition(".")[0])
        if hasattr(library, "from_dlpack"):
            return library.from_dlpack
    return None


def _name(device):
    return "cuda:0" if device == "cuda" else device


def _taken(X, device):
    """An array of another library as our methods have it."""
    kind, number = X.__dlpack_device__()
    if kind in _HOST:
        return np.from_dlpack(X)
    there = f"cuda:{number}"
    if _name(device) != there:
        raise ValueError(
            f"device: rows are on {there}, got device={device!r}; set device={there!r}, "
            "or move the rows to the CPU"
        )
    return _chandlery.Tensor(X, there)


def _given(result, X):
    """A result as an array of the kind of X, where X is."""
    if not isinstance(result, (np.ndarray, _chandlery.Tensor)):
        return result
    kind, number = X.__dlpack_device__()
    if isinstance(result, np.ndarray) and kind not in _HOST:
        result = _chandlery.Tensor(result, f"cuda:{number}")
    make = _maker(X)
    return result if make is None else make(result)


def any_kind(method):
    """A method of an estimator that takes rows of any library, and gives results of their kind."""

    @functools.wraps(method)
    def taking(self, X, *args, **kwargs):
        if not _is_foreign(X):
            return method(self, X, *args, **kwargs)
        return _given(method(self, _taken(X, self.device), *args, **kwargs), X)

    return taking


def any_kind_of(function):
    """The same for a function of rows with an argument ``device``; other arrays may be of any kind."""

    @functools.wraps(function)
    def taking(X, *args, device="cpu", **kwargs):
        rest = [_taken(it, device) if _is_foreign(it) else it for it in args]
        named = {name: _taken(it, device) if _is_foreign(it) else it for name, it in kwargs.items()}
        if not _is_foreign(X):
            return function(X, *rest, device=device, **named)
        return _given(function(_taken(X, device), *rest, device=device, **named), X)

    return taking


def _typed(X, dtype, name):
    """A tensor as validation wants it: with two dimensions and of one of the types."""
    if X.ndim != 2:
        raise ValueError(f"Expected 2D array, got {X.ndim}D array instead: {name} must be rows.")
    wanted = [np.dtype(it) for it in (dtype if isinstance(dtype, (list, tuple)) else [dtype])]
    return X if X.dtype in wanted else X.astype(wanted[0])


def validated(estimator, X, *, reset, dtype, ensure_min_samples=1, **more):
    """What :func:`sklearn.utils.validation.validate_data` gives; of a tensor on its device."""
    if not isinstance(X, _chandlery.Tensor):
        return validate_data(
            estimator, X, reset=reset, dtype=dtype, ensure_min_samples=ensure_min_samples, **more
        )
    X = _typed(X, dtype, "X")
    n_samples, n_features = X.shape
    if n_samples < ensure_min_samples or n_features < 1:
        raise ValueError(
            f"Found array with shape {n_samples, n_features} while a minimum of {ensure_min_samples} "
            "sample(s) and 1 feature(s) is required."
        )
    if reset:
        estimator.n_features_in_ = n_features
        if hasattr(estimator, "feature_names_in_"):
            del estimator.feature_names_in_
    elif n_features != estimator.n_features_in_:
        raise ValueError(
            f"X has {n_features} features, but {type(estimator).__name__} is expecting "
            f"{estimator.n_features_in_} features as input"
        )
    return X


def checked(X, *, dtype):
    """What :func:`sklearn.utils.check_array` gives; of a tensor on its device."""
    return _typed(X, dtype, "X") if isinstance(X, _chandlery.Tensor) else check_array(X, dtype=dtype)
