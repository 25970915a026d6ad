"""Orthogonal matching pursuit of many signals, with the interface of ``sklearn.linear_model``."""

import warnings

import numpy as np
from sklearn.linear_model import orthogonal_mp as their_mp
from sklearn.linear_model import orthogonal_mp_gram as their_mp_gram
from sklearn.utils import check_array

from . import _chandlery

__all__ = ["orthogonal_mp", "orthogonal_mp_gram"]


def _most(n_nonzero_coefs, tol, n_features, n_atoms):
    """Atoms of a code at most."""
    if tol is not None:
        if tol < 0:
            raise ValueError("Epsilon cannot be negative")
        return n_atoms
    if n_nonzero_coefs is None:
        return max(int(0.1 * n_features), 1)
    if n_nonzero_coefs <= 0:
        raise ValueError("The number of atoms must be positive")
    if n_nonzero_coefs > n_atoms:
        raise ValueError("The number of atoms cannot be more than the number of features")
    return int(n_nonzero_coefs)


def _shaped(codes, y, most, ends_early):
    """Codes as ``y`` is shaped, and a warning where pursuits ended before they should."""
    if np.any(((codes != 0).sum(axis=1) < most) & ends_early):
        warnings.warn(
            # The words of scikit-learn, which programs may look for.
            "Orthogonal matching pursuit ended prematurely due to linear dependence in the dictionary. "
            "The requested precision might not have been met.",
            RuntimeWarning,
            stacklevel=3,
        )
    return codes[0] if np.ndim(y) == 1 else codes.T


def orthogonal_mp(
    X,
    y,
    *,
    n_nonzero_coefs=None,
    tol=None,
    precompute=False,
    copy_X=True,
    return_path=False,
    return_n_iter=False,
    device="cpu",
):
    """Codes of signals by orthogonal matching pursuit.

    The interface is that of :func:`sklearn.linear_model.orthogonal_mp`; atoms may have any length.
    With ``return_path`` or ``return_n_iter`` it is scikit-learn's own.

    Parameters
    ----------
    X : array-like of shape (n_features, n_atoms)
        Atoms, one a column.
    y : array-like of shape (n_features,) or (n_features, n_targets)
        Signals, one a column.
    n_nonzero_coefs : int, default=None
        Atoms of a code. Default a tenth of the atoms, as in scikit-learn.
    tol : float, default=None
        Squared norm of the residual at which a pursuit ends, in place of ``n_nonzero_coefs``.
    precompute, copy_X : bool
        Ignored.
    return_path, return_n_iter : bool, default=False
        See scikit-learn.
    device : str, default="cpu"
        "cpu", "cuda" or "cuda:N".

    Returns
    -------
    coef : ndarray of shape (n_atoms,) or (n_atoms, n_targets)
    """
    if return_path or return_n_iter:
        return their_mp(
            X,
            y,
            n_nonzero_coefs=n_nonzero_coefs,
            tol=tol,
            precompute=precompute,
            copy_X=copy_X,
            return_path=return_path,
            return_n_iter=return_n_iter,
        )
    X = check_array(X, dtype=[np.float64, np.float32])
    signals = np.atleast_2d(check_array(y, ensure_2d=False, dtype=X.dtype).T)
    most = _most(n_nonzero_coefs, tol, X.shape[1], X.shape[1])
    errors = None if tol is None else np.full(len(signals), np.sqrt(tol), dtype=X.dtype)
    codes = _chandlery.omp(signals, X.T, most, errors=errors, device=device)
    left = 0 if tol is None else ((signals - codes @ X.T) ** 2).sum(axis=1)
    return _shaped(codes, y, most, True if tol is None else left > tol)


def orthogonal_mp_gram(
    Gram,
    Xy,
    *,
    n_nonzero_coefs=None,
    tol=None,
    norms_squared=None,
    copy_Gram=True,
    copy_Xy=True,
    return_path=False,
    return_n_iter=False,
    device="cpu",
):
    """Codes of signals by orthogonal matching pursuit, from products of atoms and signals alone.

    The interface is that of :func:`sklearn.linear_model.orthogonal_mp_gram`. With ``return_path`` or
    ``return_n_iter`` it is scikit-learn's own. Some dictionary of these products takes the place of
    the unknown one: with ``G = V diag(l) V'`` its atoms are the rows of ``V diag(l)^1/2``, and the
    signals are ``diag(l)^-1/2 V' Xy``, without what no atom reaches.

    Parameters
    ----------
    Gram : array-like of shape (n_atoms, n_atoms)
        Products of the atoms.
    Xy : array-like of shape (n_atoms,) or (n_atoms, n_targets)
        Products of atoms and signals.
    n_nonzero_coefs : int, default=None
        Atoms of a code. Default a tenth of the atoms.
    tol : float, default=None
        Squared norm of the residual at which a pursuit ends, in place of ``n_nonzero_coefs``.
    norms_squared : array-like of shape (n_targets,), default=None
        Squared norms of the signals, for ``tol``.
    copy_Gram, copy_Xy : bool
        Ignored: nothing is overwritten.
    return_path, return_n_iter : bool, default=False
        See scikit-learn.
    device : str, default="cpu"
        "cpu", "cuda" or "cuda:N".

    Returns
    -------
    coef : ndarray of shape (n_atoms,) or (n_atoms, n_targets)
    """
    if return_path or return_n_iter:
        return their_mp_gram(
            Gram,
            Xy,
            n_nonzero_coefs=n_nonzero_coefs,
            tol=tol,
            norms_squared=norms_squared,
            copy_Gram=copy_Gram,
            copy_Xy=copy_Xy,
            return_path=return_path,
            return_n_iter=return_n_iter,
        )
    dtype = np.float32 if getattr(Gram, "dtype", None) == np.float32 else np.float64
    Gram = check_array(Gram, dtype=np.float64)
    products = np.atleast_2d(check_array(Xy, ensure_2d=False, dtype=np.float64).T)
    if tol is not None and norms_squared is None:
        raise ValueError(
            "Gram OMP needs the precomputed norms in order to evaluate the error sum of squares."
        )
    most = _most(n_nonzero_coefs, tol, len(Gram), len(Gram))
    values, vectors = np.linalg.eigh(Gram)
    reached = values > values[-1] * len(Gram) * np.finfo(np.float64).eps
    roots = np.sqrt(values[reached])
    atoms, signals = vectors[:, reached] * roots, products @ vectors[:, reached] / roots
    errors = None
    if tol is not None:
        beyond = np.atleast_1d(norms_squared) - (signals**2).sum(axis=1)
        errors = np.sqrt(np.maximum(tol - np.maximum(beyond, 0), 0))
    codes = _chandlery.omp(signals, atoms, most, errors=errors, device=device)
    if tol is None:
        return _shaped(codes.astype(dtype, copy=False), Xy, most, True)
    left = np.maximum(beyond, 0) + ((signals - codes @ atoms) ** 2).sum(axis=1)
    return _shaped(codes.astype(dtype, copy=False), Xy, most, left > tol * (1 + 1e-9))
