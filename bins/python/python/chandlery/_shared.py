"""What the estimators share."""

import numpy as np
from sklearn.utils import check_random_state


def seed_of(random_state):
    """The seed of the library's counter-based generator that a ``random_state`` stands for."""
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


def dense(X):
    """A scipy sparse matrix as an array; arrays as they are."""
    return X.toarray() if hasattr(X, "toarray") else X
