"""A plugin of pytest: scikit-learn's own tests run against our classes.

``DIFFERENT`` has the tests that must fail, by their names or the beginning of these with parameters,
and why.
"""

import chandlery
import pytest
import sklearn.decomposition
import sklearn.linear_model
import sklearn.manifold
import sklearn.neural_network

OURS = {
    sklearn.manifold: ["TSNE"],
    sklearn.neural_network: ["BernoulliRBM"],
    sklearn.decomposition: [
        "PCA",
        "DictionaryLearning",
        "MiniBatchDictionaryLearning",
        "SparseCoder",
        "sparse_encode",
    ],
    sklearn.linear_model: ["orthogonal_mp", "orthogonal_mp_gram"],
}

_DRAWS = "compares numbers that follow from scikit-learn's own draws"
_PRIVATE = "looks at private attributes of scikit-learn's class"
# Whether the divergence falls all the same in a test is chance.
_EARLY = "the divergence is without exaggeration, which the first 250 iterations do not make small"
_BITS = "asks for the same bits"
_SOLVERS = "there is one solver, which finds as many directions as there are"
_SAID = "other lines are printed"

DIFFERENT = {
    # TSNE
    "test_optimization_minimizes_kl_divergence": _EARLY,
    "test_max_iter_used": "n_iter_ is the number of iterations, in scikit-learn one less",
    "test_verbose": _SAID,
    "test_n_iter_without_progress": _PRIVATE,
    "test_min_grad_norm": "the phase of early exaggeration is never cut short",
    "test_bh_match_exact": _PRIVATE,
    # Distances of the library and of scikit-learn differ in the last bits, which a descent makes large.
    "test_tsne_with_different_distance_metrics[barnes_hut-cosine-cosine_distances]": _BITS,
    "test_tsne_with_different_distance_metrics[exact-manhattan-manhattan_distances]": _BITS,
    "test_tsne_with_different_distance_metrics[exact-cosine-cosine_distances]": _BITS,
    # PCA
    "test_pca_validation[arpack-": _SOLVERS,
    "test_pca_validation[randomized-0": _SOLVERS,
    "test_pca_validation[auto-3": _SOLVERS,
    "test_n_components_none[data0-arpack": _SOLVERS,
    "test_n_components_none[data1-arpack": _SOLVERS,
    "test_pca_svd_solver_auto": _PRIVATE,
    # BernoulliRBM
    "test_fit_gibbs": _DRAWS,
    # MiniBatchDictionaryLearning
    "test_minibatch_dictionary_learning_dtype_match": _PRIVATE,
}


#: Tests that are not run: their parameters decide which of them pass.
LEFT_OUT = {
    "test_pca_sparse": "asks for directions to 1e-12, and those of the library have residuals of 1e-9",
}


def pytest_configure():
    for package, names in OURS.items():
        for name in names:
            setattr(package, name, getattr(chandlery, name))


def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if item.originalname not in LEFT_OUT]
    for item in items:
        for name, reason in DIFFERENT.items():
            if item.name == name or item.name.startswith(name if "[" in name else f"{name}["):
                item.add_marker(pytest.mark.xfail(reason=reason, strict=reason != _EARLY))
