"""What the estimators share."""

import numpy as np
from sklearn.utils import check_random_state


def seed_of(random_state):
    """The seed of the library's counter-based generator that a ``random_state`` stands for."""
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


def dense(X):
    """A scipy sparse matrix as an array; arrays as they are."""
    return X.toarray() if hasattr(X, "toarray") else X


def unshared(X):
    """The array of a tensor of another library that lies on the CPU; anything else as it is.

    Tensors of torch and the like hand their memory over by DLPack, without a copy.
    """
    if hasattr(X, "__dlpack__") and not isinstance(X, np.ndarray):
        return np.from_dlpack(X)
    return X
