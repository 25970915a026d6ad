"""Sparse codes over given atoms."""

import json
import warnings

import numpy as np
import sklearn.decomposition
from sklearn.decomposition import sparse_encode as theirs
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_array

from . import _chandlery
from ._arrays import any_kind, any_kind_of, checked, validated
from ._model import Saved
from ._shared import seed_of

#: The relative duality gap of activations, by the type of the arrays.
GAPS = {np.dtype(np.float64): 1e-8, np.dtype(np.float32): 1e-5}


def lasso(X, dictionary, alpha, *, positive=False, max_iter=1000, init=None, device="cpu"):
    """Activations of the library's active set; warns where they did not converge."""
    codes, n_stopped = _chandlery.lasso(
        X,
        dictionary,
        float(alpha),
        nonnegative=positive,
        tolerance=GAPS[X.dtype],
        max_iterations=max(max_iter, 1),
        start=init if init is None or isinstance(init, _chandlery.Tensor) else np.asarray(init, X.dtype),
        device=device,
    )
    if n_stopped > 0:
        warnings.warn(
            f"sparse_encode: {n_stopped} of {len(X)} signals ended at a duality gap above {GAPS[X.dtype]:g}; "
            "increase the number of iterations, or scale the atoms",
            ConvergenceWarning,
            stacklevel=3,
        )
    return codes


@any_kind_of
def sparse_encode(
    X,
    dictionary,
    *,
    gram=None,
    cov=None,
    algorithm="lasso_lars",
    n_nonzero_coefs=None,
    alpha=None,
    copy_cov=True,
    init=None,
    max_iter=1000,
    n_jobs=None,
    check_input=True,
    verbose=0,
    positive=False,
    device="cpu",
):
    """Sparse codes of the rows of an array over given atoms.

    The interface is that of :func:`sklearn.decomposition.sparse_encode`. Both algorithms for the
    lasso are the library's active set, which ends at a relative duality gap of 1e-8 (float32:
    1e-5); "lars" and "threshold" are scikit-learn's own.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Signals.
    dictionary : array-like of shape (n_components, n_features)
        Atoms, one a row.
    gram, cov : array-like, default=None
        For "lars" and "threshold"; the other algorithms compute what they need of them.
    algorithm : {"lasso_lars", "lasso_cd", "lars", "omp", "threshold"}, default="lasso_lars"
        How codes are found.
    n_nonzero_coefs : int, default=None
        Atoms of a code, for "lars" and "omp". Default a tenth of the features.
    alpha : float, default=None
        Penalty on magnitudes, or the threshold. Default 1.
    copy_cov : bool, default=True
        Ignored: nothing is overwritten.
    init : ndarray of shape (n_samples, n_components), default=None
        Where "lasso_cd" begins.
    max_iter : int, default=1000
        The most iterations of the lasso.
    n_jobs : int, default=None
        Of "lars". The library takes all cores.
    check_input : bool, default=True
        Ignored: arrays are checked.
    verbose : int, default=0
        Of "lars".
    positive : bool, default=False
        Whether codes must be at least 0.
    device : str, default="cpu"
        "cpu", "cuda" or "cuda:N".

    Returns
    -------
    code : ndarray of shape (n_samples, n_components)
    """
    if algorithm not in ("lasso_lars", "lasso_cd", "omp") or (positive and algorithm == "omp"):
        if isinstance(X, _chandlery.Tensor):
            raise ValueError(
                "algorithm: rows on a GPU are coded by 'lasso_lars', 'lasso_cd' or 'omp' without positive, "
                f"got {algorithm!r}"
            )
        # Also refuses what is no algorithm, or cannot be positive.
        return theirs(
            X,
            dictionary,
            gram=gram,
            cov=cov,
            algorithm=algorithm,
            n_nonzero_coefs=n_nonzero_coefs,
            alpha=alpha,
            max_iter=max_iter,
            n_jobs=n_jobs,
            verbose=verbose,
            positive=positive,
        )
    X = checked(X, dtype=[np.float64, np.float32])
    dictionary = checked(dictionary, dtype=X.dtype)
    if dictionary.shape[1] != X.shape[1]:
        raise ValueError(
            "Dictionary and X have different numbers of features:"
            f"dictionary.shape: {dictionary.shape} X.shape{X.shape}"
        )
    if algorithm == "omp":
        if n_nonzero_coefs is None:
            n_nonzero_coefs = int(min(max(X.shape[1] / 10, 1), dictionary.shape[0]))
        most = min(n_nonzero_coefs, dictionary.shape[0])
        return _chandlery.omp(X, dictionary, most, device=device)
    alpha = 1.0 if alpha is None else alpha
    init = init if algorithm == "lasso_cd" else None
    return lasso(X, dictionary, alpha, positive=positive, max_iter=max_iter, init=init, device=device)


class Coding(Saved):
    """What the estimators of dictionaries have beside the interface of scikit-learn."""

    _kinds = ("sparse-coding",)

    @any_kind
    def _transform(self, X, dictionary):
        X = validated(self, X, reset=False, dtype=[np.float64, np.float32])
        alpha = self.transform_alpha
        if alpha is None:
            alpha = getattr(self, "alpha", None)
        code = sparse_encode(
            X,
            dictionary,
            algorithm=self.transform_algorithm,
            n_nonzero_coefs=self.transform_n_nonzero_coefs,
            alpha=alpha,
            max_iter=self.transform_max_iter,
            n_jobs=self.n_jobs,
            positive=self.positive_code,
            device=self.device,
        )
        if self.split_sign and isinstance(code, _chandlery.Tensor):
            code = code.split_sign()
        elif self.split_sign:
            code = np.hstack([np.maximum(code, 0), -np.minimum(code, 0)])
        return code

    def _as_model(self):
        config, tensors, dtype = self._described(self.components_)
        return _chandlery.Model("sparse-coding", config, tensors, dtype=dtype)

    def _restore(self):
        config = json.loads(self._model.config)
        self.components_ = self._model.tensors()["basis"]
        self.alpha, self.positive_code = config["beta"], config["nonnegative"]
        self.n_components = config["n_atoms"]
        return self

    def _described(self, atoms):
        """A model of sparse coding with these atoms: configuration, tensors, type."""
        config = {
            "n_atoms": atoms.shape[0],
            "n_features": atoms.shape[1],
            "beta": float(self.alpha),
            "nonnegative": bool(self.positive_code),
            "tolerance": 10 * GAPS[atoms.dtype],
        }
        return json.dumps(config), {"basis": atoms}, "f64" if atoms.dtype == np.float64 else "f32"

    def _trainer(self, atoms, training, seed):
        config, tensors, dtype = self._described(atoms)
        model = _chandlery.Model("sparse-coding", config, tensors, device=self.device, dtype=dtype)
        return _chandlery.Trainer(model, json.dumps(training), seed)

    def _first_atoms(self, X, random_state):
        """Given atoms, or distinct rows and random directions of length 1."""
        n = X.shape[1] if self.n_components is None else self.n_components
        if self.dict_init is None:
            return _chandlery.first_atoms(X, n, seed_of(random_state))
        atoms = check_array(self.dict_init, dtype=X.dtype, copy=True)
        if atoms.shape[1] != X.shape[1]:
            raise ValueError(f"dict_init must have {X.shape[1]} features, got {atoms.shape[1]}")
        missing = max(n - len(atoms), 0)
        return np.vstack([atoms[:n], np.zeros((missing, atoms.shape[1]), dtype=atoms.dtype)])


class SparseCoder(Coding, sklearn.decomposition.SparseCoder):
    """Sparse codes over given atoms; see :class:`sklearn.decomposition.SparseCoder`.

    Parameters
    ----------
    dictionary : array-like of shape (n_components, n_features)
        Atoms, one a row.
    transform_algorithm : {"lasso_lars", "lasso_cd", "lars", "omp", "threshold"}, default="omp"
        See :func:`sparse_encode`, as for the other parameters.
    transform_n_nonzero_coefs, transform_alpha, split_sign, n_jobs, positive_code, transform_max_iter
        As in scikit-learn.
    device : str, default="cpu"
        "cpu", "cuda" or "cuda:N".
    """

    _parameter_constraints: dict = {
        **sklearn.decomposition.SparseCoder._parameter_constraints,
        "device": [str],
    }

    def __init__(
        self,
        dictionary,
        *,
        transform_algorithm="omp",
        transform_n_nonzero_coefs=None,
        transform_alpha=None,
        split_sign=False,
        n_jobs=None,
        positive_code=False,
        transform_max_iter=1000,
        device="cpu",
    ):
        super().__init__(
            dictionary,
            transform_algorithm=transform_algorithm,
            transform_n_nonzero_coefs=transform_n_nonzero_coefs,
            transform_alpha=transform_alpha,
            split_sign=split_sign,
            n_jobs=n_jobs,
            positive_code=positive_code,
            transform_max_iter=transform_max_iter,
        )
        self.device = device

    @any_kind
    def fit(self, X, y=None):
        """Check the parameters and the rows: there is nothing to learn.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.
        y : None
            Ignored.

        Returns
        -------
        self : SparseCoder
        """
        if not isinstance(X, _chandlery.Tensor):
            return super().fit(X)
        self._validate_params()
        X = validated(self, X, reset=True, dtype=[np.float64, np.float32])
        self.n_components_, n_features = self.components_.shape
        if X.shape[1] != n_features:
            raise ValueError(
                f"Dictionary and X have different numbers of features: {n_features} and {X.shape[1]}"
            )
        return self

    def transform(self, X, y=None):
        """Codes of the rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.
        y : None
            Ignored.

        Returns
        -------
        code : ndarray of shape (n_samples, n_components)
        """
        return self._transform(X, self.dictionary)

    @property
    def components_(self):
        """The atoms."""
        return np.asarray(self.dictionary)

    @property
    def alpha(self):
        """The penalty of a saved model."""
        return 1.0 if self.transform_alpha is None else self.transform_alpha

    @classmethod
    def from_pretrained(cls, place, *, device="cpu"):
        """The estimator of a model of sparse coding; see ``DictionaryLearning.from_pretrained``."""
        model = cls._loaded(place, device)
        config = json.loads(model.config)
        return cls(
            model.tensors()["basis"],
            transform_algorithm="lasso_cd",
            transform_alpha=config["beta"],
            positive_code=config["nonnegative"],
            device=device,
        )
