"""Dictionary learning."""

import json
from itertools import cycle, islice

import numpy as np
import sklearn.decomposition
from sklearn.utils import check_random_state, gen_batches

from ._arrays import any_kind, validated
from ._checkpoint import CONSTRAINT, Checkpoint, Interrupts
from ._shared import seed_of
from ._sparse_coding import Coding, lasso


class DictionaryLearning(Coding, sklearn.decomposition.DictionaryLearning):
    """Atoms over which the rows have sparse codes, from all rows at once.

    Parameters are those of :class:`sklearn.decomposition.DictionaryLearning`, with these
    differences.

    Parameters
    ----------
    fit_algorithm : {"lars", "cd"}, default="lars"
        Both are the library's active set.
    code_init : ndarray, default=None
        Ignored: codes are exact whatever they begin with.
    dict_init : ndarray of shape (n_components, n_features), default=None
        First atoms. Default distinct rows, scaled to length 1.
    positive_dict : bool, default=False
        Whether atoms must be at least 0; then scikit-learn's own methods learn them.
    n_jobs : int, default=None
        The library takes all cores, or as many as ``RAYON_NUM_THREADS`` says.
    device : str, default="cpu"
        "cpu", "cuda" or "cuda:N".
    checkpoint : path-like, default=None
        Folder where an interrupted ``fit`` leaves its state, and from which the next one of the same
        rows and parameters goes on to the same bits.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        The atoms.
    error_ : list of float
        The objective before each iteration.
    n_iter_ : int
        Iterations made.
    n_features_in_ : int
        Number of features seen during fit.
    """

    _parameter_constraints: dict = {
        **sklearn.decomposition.DictionaryLearning._parameter_constraints,
        "device": [str],
        **CONSTRAINT,
    }

    def __init__(
        self,
        n_components=None,
        *,
        alpha=1,
        max_iter=1000,
        tol=1e-8,
        fit_algorithm="lars",
        transform_algorithm="omp",
        transform_n_nonzero_coefs=None,
        transform_alpha=None,
        n_jobs=None,
        code_init=None,
        dict_init=None,
        callback=None,
        verbose=False,
        split_sign=False,
        random_state=None,
        positive_code=False,
        positive_dict=False,
        transform_max_iter=1000,
        device="cpu",
        checkpoint=None,
    ):
        super().__init__(
            n_components,
            alpha=alpha,
            max_iter=max_iter,
            tol=tol,
            fit_algorithm=fit_algorithm,
            transform_algorithm=transform_algorithm,
            transform_n_nonzero_coefs=transform_n_nonzero_coefs,
            transform_alpha=transform_alpha,
            n_jobs=n_jobs,
            code_init=code_init,
            dict_init=dict_init,
            callback=callback,
            verbose=verbose,
            split_sign=split_sign,
            random_state=random_state,
            positive_code=positive_code,
            positive_dict=positive_dict,
            transform_max_iter=transform_max_iter,
        )
        self.device = device
        self.checkpoint = checkpoint

    @any_kind
    def fit_transform(self, X, y=None):
        """Learn the atoms and return the codes of the rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.
        y : None
            Ignored.

        Returns
        -------
        code : ndarray of shape (n_samples, n_components)
            Activations by the penalty ``alpha``.
        """
        self._validate_params()
        if self.positive_dict:
            return super().fit_transform(X)
        X = validated(self, X, reset=True, dtype=[np.float64, np.float32])
        n, checkpoint = X.shape[0], Checkpoint(self, X)
        trainer = checkpoint.trainer(self._kinds[0], self.device)
        if trainer is None:
            random_state = check_random_state(self.random_state)
            atoms = self._first_atoms(X, random_state)
            # Each iteration is of these rows alone, and an atom that none of them uses is replaced.
            trainer = self._trainer(atoms, {"forgetting": 1e9, "max_idle": n}, seed_of(random_state))
            self.error_ = []
        else:
            self.error_ = json.loads(trainer.progress)["state"]
        with Interrupts(checkpoint) as interrupts:
            while (iteration := len(self.error_)) < self.max_iter and not self._has_converged():
                self.error_.append(json.loads(trainer.step(X))["objective"] * n)
                interrupts.after_step(trainer, self.error_)
                if self.verbose:
                    print(f"Iteration {iteration + 1:3d}: objective {self.error_[-1]:.6g}")
                if self.callback is not None and iteration % 5 == 0:
                    self.callback(locals())
        self.n_iter_ = len(self.error_)
        checkpoint.done()
        self.components_ = trainer.model().tensors()["basis"]
        return lasso(
            X,
            self.components_,
            self.alpha,
            positive=self.positive_code,
            max_iter=self.transform_max_iter,
            device=self.device,
        )

    def _has_converged(self):
        if len(self.error_) < 2:
            return False
        before, now = self.error_[-2:]
        return before - now < self.tol * now


class MiniBatchDictionaryLearning(Coding, sklearn.decomposition.MiniBatchDictionaryLearning):
    """Atoms over which the rows have sparse codes, learned batch by batch.

    Parameters are those of :class:`sklearn.decomposition.MiniBatchDictionaryLearning`, with these
    differences.

    Parameters
    ----------
    fit_algorithm : {"lars", "cd"}, default="lars"
        Both are the library's active set.
    dict_init : ndarray of shape (n_components, n_features), default=None
        First atoms. Default distinct rows, scaled to length 1.
    positive_dict : bool, default=False
        Whether atoms must be at least 0; then scikit-learn's own methods learn them.
    n_jobs : int, default=None
        The library takes all cores, or as many as ``RAYON_NUM_THREADS`` says.
    device : str, default="cpu"
        "cpu", "cuda" or "cuda:N".
    checkpoint : path-like, default=None
        Folder where an interrupted ``fit`` leaves its state, and from which the next one of the same
        rows and parameters goes on to the same bits.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        The atoms.
    n_iter_ : int
        Passes over the rows, the last perhaps a part of one.
    n_steps_ : int
        Batches learned from.
    n_features_in_ : int
        Number of features seen during fit.
    """

    _parameter_constraints: dict = {
        **sklearn.decomposition.MiniBatchDictionaryLearning._parameter_constraints,
        "device": [str],
        **CONSTRAINT,
    }

    def __init__(
        self,
        n_components=None,
        *,
        alpha=1,
        max_iter=1_000,
        fit_algorithm="lars",
        n_jobs=None,
        batch_size=256,
        shuffle=True,
        dict_init=None,
        transform_algorithm="omp",
        transform_n_nonzero_coefs=None,
        transform_alpha=None,
        verbose=False,
        split_sign=False,
        random_state=None,
        positive_code=False,
        positive_dict=False,
        transform_max_iter=1000,
        callback=None,
        tol=1e-3,
        max_no_improvement=10,
        device="cpu",
        checkpoint=None,
    ):
        super().__init__(
            n_components,
            alpha=alpha,
            max_iter=max_iter,
            fit_algorithm=fit_algorithm,
            n_jobs=n_jobs,
            batch_size=batch_size,
            shuffle=shuffle,
            dict_init=dict_init,
            transform_algorithm=transform_algorithm,
            transform_n_nonzero_coefs=transform_n_nonzero_coefs,
            transform_alpha=transform_alpha,
            verbose=verbose,
            split_sign=split_sign,
            random_state=random_state,
            positive_code=positive_code,
            positive_dict=positive_dict,
            transform_max_iter=transform_max_iter,
            callback=callback,
            tol=tol,
            max_no_improvement=max_no_improvement,
        )
        self.device = device
        self.checkpoint = checkpoint

    def _begin(self, X):
        """A trainer whose first atoms are made of these rows."""
        self._random_state = check_random_state(self.random_state)
        self._n_components = X.shape[1] if self.n_components is None else self.n_components
        self._ewa_cost = self._ewa_cost_min = None
        self._no_improvement = 0
        atoms = self._first_atoms(X, self._random_state)
        self._learner = self._trainer(atoms, {}, seed_of(self._random_state))
        self.n_steps_ = 0
        return atoms

    @any_kind
    def fit(self, X, y=None):
        """Learn the atoms.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.
        y : None
            Ignored.

        Returns
        -------
        self : MiniBatchDictionaryLearning
        """
        self._validate_params()
        if self.positive_dict:
            return super().fit(X)
        X = validated(self, X, reset=True, dtype=[np.float64, np.float32], order="C")
        checkpoint = Checkpoint(self, X)
        self._learner = checkpoint.trainer(self._kinds[0], self.device)
        if self._learner is None:
            atoms = self._begin(X)
            order, has_ended = seed_of(self._random_state), False
        else:
            atoms = self._learner.model().tensors()["basis"]
            self._n_components = len(atoms)
            self.n_steps_, self._ewa_cost, self._ewa_cost_min, self._no_improvement, order, has_ended = (
                json.loads(self._learner.progress)["state"]
            )
        n = X.shape[0]
        if self.shuffle:
            X = X[np.random.RandomState(order).permutation(n)]
        batch_size = min(self.batch_size, n)
        in_a_pass = -(-n // batch_size)
        n_steps = self.max_iter * in_a_pass
        batches = islice(cycle(gen_batches(n, batch_size)), self.n_steps_ % in_a_pass, None)
        with Interrupts(checkpoint) as interrupts:
            for step, batch in zip(range(self.n_steps_, n_steps), batches):
                if has_ended:
                    break
                cost = json.loads(self._learner.step(X[batch]))["objective"]
                before, atoms = atoms, self._learner.model().tensors()["basis"]
                self.n_steps_ = step + 1
                has_ended = bool(self._check_convergence(X[batch], cost, atoms, before, n, step, n_steps))
                costs = (self._ewa_cost, self._ewa_cost_min, self._no_improvement)
                interrupts.after_step(self._learner, (self.n_steps_, *costs, order, has_ended))
                if not has_ended and self.callback is not None:
                    self.callback(locals())
        self.components_ = atoms
        self.n_iter_ = np.ceil(self.n_steps_ / in_a_pass)
        checkpoint.done()
        return self

    @any_kind
    def partial_fit(self, X, y=None):
        """Learn from the rows of one batch.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.
        y : None
            Ignored.

        Returns
        -------
        self : MiniBatchDictionaryLearning
        """
        self._validate_params()
        if self.positive_dict:
            return super().partial_fit(X)
        is_first = not hasattr(self, "components_")
        X = validated(self, X, dtype=[np.float64, np.float32], order="C", reset=is_first)
        if is_first:
            self._begin(X)
        self._learner.step(X.astype(self.components_.dtype, copy=False) if not is_first else X)
        self.components_ = self._learner.model().tensors()["basis"]
        self.n_steps_ += 1
        return self
