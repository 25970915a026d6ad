"""scikit-learn's own checks of estimators; ``EXPECTED`` says which fail, and why they should."""

import chandlery
import numpy as np
import pytest
import sklearn.decomposition
from sklearn.base import clone
from sklearn.utils._test_common.instance_generator import PER_ESTIMATOR_CHECK_PARAMS
from sklearn.utils.estimator_checks import parametrize_with_checks

_PLACED = "new rows are placed in a layout that stays: the rows of fit come near their points, not on them"
_DRAWN = "the pseudo-likelihood flips a unit that is drawn for each row by its place, as in scikit-learn"

EXPECTED = {
    "TSNE": {
        "check_transformer_general": _PLACED,
        "check_transformer_data_not_an_array": _PLACED,
    },
    "BernoulliRBM": {
        "check_methods_sample_order_invariance": _DRAWN,
        "check_methods_subset_invariance": _DRAWN,
    },
}

ESTIMATORS = [
    chandlery.TSNE(perplexity=2, max_iter=300),
    chandlery.BernoulliRBM(n_components=8, n_iter=2),
    chandlery.DictionaryLearning(max_iter=20, transform_algorithm="lasso_lars"),
    chandlery.MiniBatchDictionaryLearning(batch_size=10, max_iter=5),
    chandlery.SparseCoder(dictionary=np.random.RandomState(0).normal(size=(5, 3))),
    chandlery.PCA(),
    chandlery.DBN((8, 4), n_iter=2, visible="gaussian", learning_rate=0.001),
    chandlery.DenoisingAutoencoder(8, n_iter=2, loss="squared-error", learning_rate=0.001),
    chandlery.SparseAutoencoder(16, k=4, n_iter=2),
]


def _expected(estimator):
    return EXPECTED.get(type(estimator).__name__, {})


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(ESTIMATORS, expected_failed_checks=_expected)
def test_check(estimator, check):
    if isinstance(estimator, chandlery.SparseCoder):
        # Rows of the checks have different numbers of features; scikit-learn has atoms for each.
        own = PER_ESTIMATOR_CHECK_PARAMS[sklearn.decomposition.SparseCoder]
        name = getattr(check, "func", check).__name__
        several = own.get(name, {})
        for parameters in several if isinstance(several, list) else [several]:
            check(clone(estimator).set_params(**parameters))
        return
    check(estimator)
