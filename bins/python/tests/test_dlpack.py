"""Arrays of other libraries by DLPack, as the CPU shows it; on a GPU see test_gpu.py."""

import sys
import types

import chandlery
import numpy as np
import pytest
from chandlery._chandlery import Tensor


class Other:
    """An array of a library that is none of ours."""

    __module__ = "another_library"

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **_):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.fixture
def library(monkeypatch):
    made = types.ModuleType("another_library")
    made.from_dlpack = lambda array: Other(np.from_dlpack(array))
    monkeypatch.setitem(sys.modules, "another_library", made)


def test_results_are_of_the_kind_of_the_rows(digits, library):
    X = digits[:120]
    atoms = X[:20] / np.linalg.norm(X[:20], axis=1, keepdims=True)
    for estimator in (
        chandlery.TSNE(perplexity=5, max_iter=250, random_state=0),
        chandlery.BernoulliRBM(8, n_iter=1, random_state=0),
        chandlery.DBN((8, 4), n_iter=1, random_state=0),
        chandlery.SparseAutoencoder(16, k=4, n_iter=1, random_state=0),
        chandlery.PCA(4, whiten=True),
        chandlery.SparseCoder(atoms, transform_algorithm="lasso_cd", transform_alpha=0.1, split_sign=True),
        chandlery.DictionaryLearning(8, alpha=0.1, max_iter=3, random_state=0),
        chandlery.MiniBatchDictionaryLearning(8, alpha=0.1, max_iter=2, random_state=0),
    ):
        wanted = np.array(estimator.fit_transform(X))
        got = estimator.fit_transform(Other(X))
        assert isinstance(got, Other), estimator
        assert np.array_equal(got.array, wanted), estimator
        got = estimator.transform(Other(X))
        assert isinstance(got, Other)
        assert np.array_equal(got.array, estimator.transform(X))
    dbn = chandlery.DBN((8, 4), n_iter=1, random_state=0).fit(X)
    assert np.array_equal(dbn.reconstruct(Other(X)).array, dbn.reconstruct(X))
    assert np.array_equal(dbn.all_features(Other(X)).array, dbn.all_features(X))
    codes = chandlery.sparse_encode(Other(X), Other(atoms), algorithm="omp", n_nonzero_coefs=3)
    assert np.array_equal(codes.array, chandlery.sparse_encode(X, atoms, algorithm="omp", n_nonzero_coefs=3))
    assert np.array_equal(chandlery.sparse_encode(X, Other(atoms)), chandlery.sparse_encode(X, atoms))
    assert (chandlery.knn_graph(Other(X), 5) != chandlery.knn_graph(X, 5)).nnz == 0


def test_what_shares_no_library_becomes_numpy(digits):
    assert isinstance(chandlery.PCA(2).fit_transform(Other(digits)), np.ndarray)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.uint8, np.uint32, np.int64])
def test_a_tensor_goes_and_comes_with_its_type_and_shape(dtype):
    X = np.arange(24).reshape(4, 6).astype(dtype)
    t = Tensor(Other(X))
    assert (tuple(t.shape), t.ndim, t.dtype, t.device, len(t)) == (X.shape, 2, X.dtype, "cpu", 4)
    assert np.array_equal(t.numpy(), X)
    back = np.from_dlpack(t)
    assert back.dtype == X.dtype and np.array_equal(back, X)
    for part in (X[::2, 1:5], X.T, X[:0]):
        assert np.array_equal(Tensor(Other(part)).numpy(), part)
    assert np.array_equal(t[1:3].numpy(), X[1:3])
    assert np.array_equal(t[np.array([3, 0])].numpy(), X[[3, 0]])
    assert np.array_equal(t.astype(np.float64).numpy(), X.astype(np.float64))


def test_what_is_lent_is_no_copy_and_lives_on():
    X = np.arange(1000.0)
    t = Tensor(Other(X))
    first, second = np.from_dlpack(t), np.from_dlpack(t)
    assert first.ctypes.data == second.ctypes.data
    assert first.ctypes.data != X.ctypes.data
    del t, second
    assert np.array_equal(first, X)


def test_capsules_that_nobody_takes_are_given_back():
    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    X = np.zeros(1_000_000)
    for round_ in range(60):
        t = Tensor(Other(X))
        t.__dlpack__()
        t.__dlpack__(max_version=(1, 0))
        t.__dlpack__(copy=True)
        np.from_dlpack(t)
        if round_ == 20:
            before = resident()
    assert resident() - before < 40e6


def test_the_arguments_of_the_protocol_are_those_of_the_array_api():
    t = Tensor(np.eye(2))
    assert t.__dlpack_device__() == (1, 0)
    assert "dltensor_versioned" in repr(t.__dlpack__(max_version=(1, 3)))
    for capsule in (t.__dlpack__(), t.__dlpack__(max_version=(0, 8)), t.__dlpack__(dl_device=(1, 0))):
        assert "dltensor_versioned" not in repr(capsule)
    with pytest.raises(BufferError, match="dl_device must be"):
        t.__dlpack__(dl_device=(2, 0))


def test_what_is_no_array_of_numbers_is_refused():
    with pytest.raises(ValueError, match="NaN or infinity"):
        Tensor(Other(np.array([1.0, np.inf])))
    with pytest.raises(ValueError, match="the type must be u8"):
        Tensor(Other(np.array([1 + 2j])))
    with pytest.raises(TypeError, match="arrays must be"):
        Tensor([1.0])

    class Broken(Other):
        def __dlpack__(self, **_):
            return None

    with pytest.raises(TypeError):
        Tensor(Broken(np.eye(2)))


def test_rows_on_a_gpu_need_an_estimator_there(digits):
    class Far(Other):
        def __dlpack_device__(self):
            return (2, 0)

    with pytest.raises(ValueError, match="device: rows are on cuda:0, got device='cpu'"):
        chandlery.PCA(2).fit(Far(digits))
