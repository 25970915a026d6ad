"""What the estimators find, against scikit-learn and by what defines it."""

import json

import chandlery
import chandlery.decomposition
import chandlery.manifold
import chandlery.neural_network
import numpy as np
import pytest
import scipy.sparse
import sklearn.decomposition
import sklearn.linear_model
import sklearn.manifold
import sklearn.neighbors
import sklearn.neural_network
from sklearn.linear_model import LogisticRegression
from sklearn.manifold import trustworthiness
from sklearn.pipeline import make_pipeline


@pytest.mark.parametrize(
    "ours, theirs",
    [
        (chandlery.TSNE, sklearn.manifold.TSNE),
        (chandlery.BernoulliRBM, sklearn.neural_network.BernoulliRBM),
        (chandlery.DictionaryLearning, sklearn.decomposition.DictionaryLearning),
        (chandlery.MiniBatchDictionaryLearning, sklearn.decomposition.MiniBatchDictionaryLearning),
        (chandlery.PCA, sklearn.decomposition.PCA),
    ],
)
def test_parameters_and_defaults_are_those_of_scikit_learn(ours, theirs):
    mine, wanted = ours().get_params(), theirs().get_params()
    assert mine.pop("device") == "cpu"
    assert mine.pop("checkpoint", None) is None
    if ours is chandlery.TSNE:
        assert (mine.pop("method"), wanted.pop("method")) == ("auto", "barnes_hut")
        # Those that scikit-learn lacks leave its layouts as they are.
        own = {"affinity": "perplexity", "exaggeration": 1, "degrees_of_freedom": 1, "recall": 0.95}
        assert (mine.pop("changes"), mine.pop("unique")) == (None, False)
        assert {name: mine.pop(name) for name in own} == own
    assert mine == wanted


def _objective(X, atoms, codes, alpha):
    return 0.5 * ((X - codes @ atoms) ** 2).sum() + alpha * np.abs(codes).sum()


def _patches(n, side=8, seed=0):
    from sklearn.datasets import load_digits

    images = load_digits().images / 16
    rows = np.random.RandomState(seed).permutation(images.reshape(-1, 64))[:n]
    return rows - rows.mean(axis=1, keepdims=True)


@pytest.mark.parametrize("algorithm", ["lasso_lars", "lasso_cd"])
@pytest.mark.parametrize("positive", [False, True])
def test_codes_of_the_lasso_are_as_good_as_those_of_scikit_learn(algorithm, positive):
    X = _patches(100)
    atoms = np.random.RandomState(0).normal(size=(96, 64))
    atoms /= np.linalg.norm(atoms, axis=1, keepdims=True)
    ours = chandlery.sparse_encode(X, atoms, algorithm=algorithm, alpha=0.2, positive=positive)
    theirs = sklearn.decomposition.sparse_encode(
        X, atoms, algorithm="lasso_lars", alpha=0.2, positive=positive, max_iter=10_000
    )
    best = _objective(X, atoms, theirs, 0.2)
    assert _objective(X, atoms, ours, 0.2) <= best * (1 + 1e-7)
    assert np.allclose(ours, theirs, atol=1e-4)
    assert not positive or ours.min() >= 0


def test_codes_of_a_pursuit_are_those_of_scikit_learn():
    X = _patches(100)
    atoms = np.random.RandomState(0).normal(size=(96, 64))
    atoms /= np.linalg.norm(atoms, axis=1, keepdims=True)
    ours = chandlery.sparse_encode(X, atoms, algorithm="omp", n_nonzero_coefs=5)
    theirs = sklearn.decomposition.sparse_encode(X, atoms, algorithm="omp", n_nonzero_coefs=5)
    assert np.allclose(ours, theirs, atol=1e-8)
    for tol in (None, 0.05):
        n = None if tol else 5
        wanted = sklearn.linear_model.orthogonal_mp(atoms.T, X.T, n_nonzero_coefs=n, tol=tol)
        assert np.allclose(
            chandlery.orthogonal_mp(atoms.T, X.T, n_nonzero_coefs=n, tol=tol), wanted, atol=1e-8
        )
        got = chandlery.orthogonal_mp_gram(
            atoms @ atoms.T, atoms @ X.T, n_nonzero_coefs=n, tol=tol, norms_squared=(X**2).sum(axis=1)
        )
        assert np.allclose(got, wanted, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_principal_components_are_those_of_scikit_learn(digits, dtype):
    X = digits[:500].astype(dtype) + dtype(100)
    for n_components in (5, 0.8, None):
        ours = chandlery.PCA(n_components).fit(X)
        theirs = sklearn.decomposition.PCA(n_components, svd_solver="full").fit(X)
        assert ours.n_components_ == theirs.n_components_
        k, tolerance = min(ours.n_components_, 30), 1e-8 if dtype == np.float64 else 1e-3
        for name in ("explained_variance_", "explained_variance_ratio_", "singular_values_"):
            assert np.allclose(getattr(ours, name)[:k], getattr(theirs, name)[:k], rtol=tolerance), name
        assert np.allclose(ours.components_[:5], theirs.components_[:5], atol=10 * tolerance)
        assert np.allclose(ours.noise_variance_, theirs.noise_variance_, rtol=tolerance, atol=1e-10)
        assert ours.components_.dtype == dtype
    whitened = chandlery.PCA(5, whiten=True).fit_transform(X)
    assert np.allclose(np.cov(whitened.T), np.eye(5), atol=2e-3)


def test_dictionary_learning_is_as_good_as_that_of_scikit_learn():
    X = _patches(300)
    settings = dict(n_components=32, alpha=0.2, random_state=0, transform_algorithm="lasso_cd")
    for ours, theirs, more in [
        (chandlery.DictionaryLearning, sklearn.decomposition.DictionaryLearning, dict(max_iter=10)),
        (
            chandlery.MiniBatchDictionaryLearning,
            sklearn.decomposition.MiniBatchDictionaryLearning,
            dict(max_iter=10, batch_size=30, max_no_improvement=None),
        ),
    ]:
        found, wanted = ours(**settings, **more).fit(X), theirs(**settings, **more).fit(X)
        objective = _objective(X, found.components_, found.transform(X), 0.2)
        assert objective <= 1.02 * _objective(X, wanted.components_, wanted.transform(X), 0.2)
        assert np.linalg.norm(found.components_, axis=1).max() <= 1 + 1e-6
        start = chandlery._chandlery.first_atoms(X, 32, 1)
        first = chandlery.sparse_encode(X, start, algorithm="lasso_cd", alpha=0.2)
        assert objective < 0.9 * _objective(X, start, first, 0.2)


def test_an_rbm_learns_as_that_of_scikit_learn(digits):
    settings = dict(n_components=64, learning_rate=0.05, n_iter=10, random_state=0)
    ours = chandlery.BernoulliRBM(**settings).fit(digits)
    theirs = sklearn.neural_network.BernoulliRBM(**settings).fit(digits)
    assert np.allclose(ours.transform(digits[:5]), theirs.__class__.transform(ours, digits[:5]), atol=1e-5)
    fit, wanted = ours.score_samples(digits).mean(), theirs.score_samples(digits).mean()
    untrained = chandlery.BernoulliRBM(**{**settings, "n_iter": 0}).fit(digits).score_samples(digits).mean()
    assert fit > wanted - 1.5
    assert untrained < wanted - 5
    assert np.allclose(ours._free_energy(digits), theirs.__class__._free_energy(ours, digits), rtol=1e-4)
    assert set(np.unique(ours.gibbs(digits))) == {False, True}


def test_a_layout_keeps_neighbours_and_takes_new_rows(digits):
    X, new = digits[:300].astype(np.float64), digits[300:320]
    tsne = chandlery.TSNE(random_state=0).fit(X)
    theirs = sklearn.manifold.TSNE(random_state=0).fit(X)
    assert tsne.embedding_.shape == (300, 2)
    assert trustworthiness(X, tsne.embedding_) > trustworthiness(X, theirs.embedding_) - 0.01
    assert tsne.kl_divergence_ < theirs.kl_divergence_ + 0.02
    assert trustworthiness(X, np.random.RandomState(0).normal(size=(300, 2))) < 0.7
    near = sklearn.neighbors.NearestNeighbors(n_neighbors=1).fit(X).kneighbors(new)[1][:, 0]
    distances = np.linalg.norm(tsne.transform(new) - tsne.embedding_[near], axis=1)
    spread = np.linalg.norm(tsne.embedding_ - tsne.embedding_.mean(axis=0), axis=1).mean()
    assert np.median(distances) < 0.3 * spread


@pytest.mark.parametrize("method", ["fft", "barnes_hut", "exact"])
@pytest.mark.parametrize("metric", ["euclidean", "cosine", "braycurtis", "precomputed"])
def test_layouts_by_any_method_and_metric(digits, method, metric):
    X = digits[:150]
    given = sklearn.metrics.pairwise_distances(X) if metric == "precomputed" else X
    init = "random" if metric == "precomputed" else "pca"
    tsne = chandlery.TSNE(
        perplexity=15, method=method, metric=metric, init=init, random_state=0, max_iter=500
    )
    layout = tsne.fit_transform(given)
    assert trustworthiness(X, layout) > 0.9
    assert tsne.n_iter_ <= 500


def test_the_first_layout_and_a_graph_of_neighbours_can_be_given(digits):
    X = digits[:150]
    start = chandlery.PCA(2).fit_transform(X).astype(np.float32) * 1e-4
    graph = sklearn.neighbors.kneighbors_graph(X, 47, mode="distance")
    a = chandlery.TSNE(perplexity=15, init=start, random_state=0).fit_transform(X)
    b = chandlery.TSNE(perplexity=15, init=start, metric="precomputed", random_state=0).fit_transform(graph)
    assert trustworthiness(X, a) > 0.95
    assert abs(trustworthiness(X, a) - trustworthiness(X, b)) < 0.02


@pytest.mark.parametrize("init", ["spectral", "random"])
def test_layouts_of_other_affinities_tell_groups_apart(init):
    rng = np.random.RandomState(0)
    labels = np.repeat(np.arange(4), 60)
    X = (rng.randn(4, 10)[labels] * 8 + rng.randn(240, 10)).astype(np.float32)
    layouts = []
    for settings in [
        {},
        {"affinity": "uniform"},
        {"affinity": 4.0},
        {"exaggeration": 3.0, "degrees_of_freedom": 0.7},
        {"changes": [{"iteration": 300, "perplexities": [5.0]}, {"iteration": 400, "exaggeration": 2.0}]},
    ]:
        tsne = chandlery.TSNE(perplexity=20, init=init, max_iter=500, random_state=0, **settings)
        layouts.append(tsne.fit_transform(X))
        nearest = sklearn.neighbors.KNeighborsClassifier(5).fit(layouts[-1], labels)
        assert nearest.score(layouts[-1], labels) > 0.98, settings
        assert not any(np.array_equal(layouts[-1], other) for other in layouts[:-1]), settings
        assert tsne.transform(X[:20]).shape == (20, 2)
    # A spectral start needs no rows.
    distances = sklearn.metrics.pairwise_distances(X)
    tsne = chandlery.TSNE(perplexity=20, init=init, metric="precomputed", max_iter=500, random_state=0)
    layout = tsne.fit_transform(distances)
    assert sklearn.neighbors.KNeighborsClassifier(5).fit(layout, labels).score(layout, labels) > 0.98


def test_equal_rows_have_one_place_where_that_is_asked_for():
    rng = np.random.RandomState(0)
    few = rng.randn(80, 6).astype(np.float32)
    of = rng.randint(80, size=300)
    tsne = chandlery.TSNE(perplexity=20, max_iter=400, random_state=0, unique=True).fit(few[of])
    assert tsne.embedding_.shape == (300, 2)
    assert len(np.unique(tsne.embedding_, axis=0)) == len(np.unique(of))
    first = {row: place for row, place in zip(of[::-1], tsne.embedding_[::-1])}
    assert all(np.array_equal(first[row], place) for row, place in zip(of, tsne.embedding_))
    with pytest.raises(ValueError, match="unique"):
        chandlery.TSNE(perplexity=20, metric="braycurtis", unique=True).fit(few)


def test_settings_of_a_layout_that_make_no_sense_are_refused():
    X = np.random.RandomState(0).randn(50, 5).astype(np.float32)
    for settings, text in [
        ({"affinity": "cauchy"}, "affinity"),
        ({"affinity": 0.0}, "affinity"),
        ({"changes": [{"iteration": 5000, "exaggeration": 2.0}]}, "changes must be at iterations below"),
        ({"changes": [{"iteration": 300}]}, "a value must be given"),
        ({"recall": 1.5}, "recall"),
        ({"n_components": 4, "method": "exact", "exaggeration": 2.0}, "in more than 3 dimensions"),
        ({"n_components": 4, "method": "exact", "init": "spectral"}, "in more than 3 dimensions"),
    ]:
        with pytest.raises(ValueError, match=text):
            chandlery.TSNE(perplexity=5, **settings).fit(X)


def test_a_graph_of_neighbours_is_that_of_scikit_learn(digits):
    X = digits[:300]
    for metric in ("euclidean", "cosine", "manhattan", "correlation", "chebyshev", "hamming", "jaccard"):
        # scikit-learn takes sets as booleans alone.
        there = X != 0 if metric == "jaccard" else X
        ours = chandlery.knn_graph(X, 5, mode="distance", metric=metric)
        theirs = sklearn.neighbors.kneighbors_graph(there, 5, mode="distance", metric=metric)
        # Of rows that are equally far either side may have another.
        each = [np.sort(graph.data.reshape(300, 5), axis=1) for graph in (ours, theirs)]
        assert np.allclose(*each, rtol=1e-3, atol=1e-3)
    assert chandlery.knn_graph(X, 5).nnz == 1500


def test_seeds_decide_the_bits(digits):
    X = digits[:100]
    for estimator in (
        chandlery.TSNE(perplexity=5, max_iter=250),
        chandlery.BernoulliRBM(8, n_iter=2),
        chandlery.MiniBatchDictionaryLearning(8, alpha=0.1, max_iter=2),
        chandlery.DBN((8, 4), n_iter=1),
        chandlery.DenoisingAutoencoder(8, n_iter=1),
        chandlery.SparseAutoencoder(16, k=4, n_iter=1),
    ):
        first, same, other = (estimator.set_params(random_state=s).fit_transform(X).copy() for s in (0, 0, 1))
        assert np.array_equal(first, same) and not np.array_equal(first, other), estimator


@pytest.mark.parametrize(
    "estimator",
    [
        chandlery.DBN((64, 32), random_state=0),
        chandlery.DenoisingAutoencoder((64, 32), random_state=0, n_iter=5),
        chandlery.ConvRBM((8, 8), n_filters=9, filter_size=3, random_state=0, batch_size=20, n_iter=5),
        *(
            chandlery.SparseAutoencoder(128, kind=kind, k=8, n_iter=30, batch_size=50, random_state=0)
            for kind in chandlery.SparseAutoencoder._KINDS[:-1]
        ),
    ],
    ids=lambda estimator: f"{type(estimator).__name__}-{getattr(estimator, 'kind', '')}",
)
def test_models_that_scikit_learn_lacks_learn_features(digits, estimator, tmp_path):
    X = digits[:600]
    before = type(estimator)(**{**estimator.get_params(), "n_iter": 0}).fit(X)
    model = estimator.fit(X)
    features = model.transform(X)
    assert features.shape == (600, len(model.get_feature_names_out()))
    error = lambda model: ((model.reconstruct(X) - X) ** 2).sum()
    assert error(model) < 0.8 * error(before)
    assert len(model.metrics_) >= 5
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert np.array_equal(again.transform(X), features)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == again._model.kind


def test_the_classical_sparse_autoencoder_and_samples(digits):
    model = chandlery.SparseAutoencoder(16, kind="kullback-leibler", n_iter=3, random_state=0).fit(digits)
    assert model.transform(digits).shape == (len(digits), 16)
    dbn = chandlery.DBN((32, 16), n_iter=3, random_state=0).fit(digits)
    assert dbn.sample(4, n_gibbs=10).shape == (4, 64)
    assert dbn.all_features(digits).shape == (len(digits), 48)


def test_models_of_dictionaries_and_layouts_are_files(digits, tmp_path):
    X = digits[:100]
    fitted = chandlery.MiniBatchDictionaryLearning(
        8, alpha=0.1, max_iter=2, transform_algorithm="lasso_cd"
    ).fit(X)
    fitted.save_pretrained(tmp_path / "atoms")
    again = chandlery.SparseCoder.from_pretrained(tmp_path / "atoms")
    assert np.allclose(again.transform(X), fitted.transform(X), atol=1e-3)
    tsne = chandlery.TSNE(perplexity=5, max_iter=250).fit(X.astype(np.float64))
    tsne.save_pretrained(tmp_path / "layout")
    again = chandlery.TSNE.from_pretrained(tmp_path / "layout")
    assert np.array_equal(again.transform(digits[100:110]), tsne.transform(digits[100:110]))
    rbm = chandlery.BernoulliRBM(8, n_iter=1).fit(X)
    rbm.save_pretrained(tmp_path / "rbm")
    again = chandlery.BernoulliRBM.from_pretrained(tmp_path / "rbm")
    assert np.array_equal(again.transform(X), rbm.transform(X))
    with pytest.raises(ValueError, match="is a rbm, want a t-sne"):
        chandlery.TSNE.from_pretrained(tmp_path / "rbm")


def test_estimators_are_parts_of_pipelines_and_take_frames(digits):
    pandas = pytest.importorskip("pandas")
    from sklearn.datasets import load_digits

    labels = load_digits().target
    pipeline = make_pipeline(
        chandlery.DBN((64,), n_iter=20, random_state=0), LogisticRegression(max_iter=500)
    )
    assert pipeline.fit(digits[:1200], labels[:1200]).score(digits[1200:], labels[1200:]) > 0.8
    frame = pandas.DataFrame(digits, columns=[f"pixel {i}" for i in range(64)])
    rbm = chandlery.BernoulliRBM(8, n_iter=1).set_output(transform="pandas").fit(frame)
    assert list(rbm.transform(frame).columns) == [f"bernoullirbm{i}" for i in range(8)]
    assert list(rbm.feature_names_in_) == list(frame.columns)


def test_sparse_rows_are_those_of_the_dense_array(digits):
    X = digits[:100]
    sparse = scipy.sparse.csr_matrix(X)
    for estimator in (
        chandlery.BernoulliRBM(8, n_iter=1, random_state=0),
        chandlery.DBN(8, n_iter=1, random_state=0),
        chandlery.TSNE(perplexity=5, max_iter=250, random_state=0),
    ):
        assert np.array_equal(estimator.fit_transform(sparse).copy(), estimator.fit_transform(X)), estimator


def test_memory_does_not_grow_over_many_fits():
    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    X = np.random.RandomState(0).uniform(size=(12, 16))
    estimators = [
        chandlery.BernoulliRBM(16, n_iter=1),
        chandlery.MiniBatchDictionaryLearning(8, max_iter=1, batch_size=12),
        chandlery.SparseCoder(np.eye(16)),
        chandlery.PCA(4),
        chandlery.DBN(8, n_iter=1),
        chandlery.SparseAutoencoder(16, k=2, n_iter=1),
        chandlery.TSNE(perplexity=2, max_iter=250),
    ]
    for round_ in range(1000):
        for estimator in estimators:
            estimator.fit_transform(X)
        if round_ == 100:
            before = resident()
    # A kilobyte that each fit kept would be a megabyte of each estimator.
    assert resident() - before < 3e6
