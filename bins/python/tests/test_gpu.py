"""Arrays on a GPU: taken and given without a copy through the host. Needs a build with CUDA and a GPU."""

import json

import chandlery
import numpy as np
import pytest
from sklearn.manifold import trustworthiness

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    not (chandlery.HAS_CUDA and torch.cuda.is_available()), reason="needs a build with CUDA and a GPU"
)
GPU = "cuda:0"


def _estimators(**more):
    atoms = np.random.RandomState(0).normal(size=(20, 64)).astype(np.float32)
    atoms /= np.linalg.norm(atoms, axis=1, keepdims=True)
    coding = dict(transform_algorithm="lasso_cd", transform_alpha=0.1, **more)
    return [
        chandlery.BernoulliRBM(16, n_iter=2, random_state=0, **more),
        chandlery.DBN((16, 8), n_iter=2, random_state=0, **more),
        chandlery.DenoisingAutoencoder(16, n_iter=2, random_state=0, **more),
        chandlery.ConvRBM((8, 8), n_filters=4, filter_size=3, n_iter=2, random_state=0, **more),
        chandlery.SparseAutoencoder(32, k=4, n_iter=2, random_state=0, **more),
        chandlery.PCA(5, whiten=True, **more),
        chandlery.SparseCoder(atoms, split_sign=True, **coding),
        chandlery.SparseCoder(atoms, transform_algorithm="omp", transform_n_nonzero_coefs=3, **more),
        chandlery.DictionaryLearning(8, alpha=0.1, max_iter=3, random_state=0, **coding),
        chandlery.MiniBatchDictionaryLearning(8, alpha=0.1, max_iter=2, random_state=0, **coding),
    ]


@pytest.mark.parametrize("i", range(10))
def test_rows_on_the_gpu_give_what_rows_of_the_host_give(digits, i):
    X = digits[:300]
    there = torch.from_numpy(X).to(GPU)
    of_host, of_gpu = _estimators(device=GPU)[i], _estimators(device=GPU)[i]
    wanted = of_host.fit(X).transform(X)
    got = of_gpu.fit(there).transform(there)
    assert isinstance(got, torch.Tensor) and got.device == there.device, of_gpu
    assert got.cpu().numpy().dtype == wanted.dtype
    assert np.allclose(got.cpu().numpy(), wanted, atol=1e-5 * np.abs(wanted).max()), of_gpu
    got = of_gpu.fit_transform(there)
    assert isinstance(got, torch.Tensor) and got.is_cuda


def test_a_layout_of_rows_on_the_gpu(digits):
    X = digits[:500]
    for dtype in (torch.float32, torch.float64):
        there = torch.from_numpy(X).to(GPU, dtype)
        tsne = chandlery.TSNE(perplexity=15, random_state=0, device=GPU)
        layout = tsne.fit_transform(there)
        assert isinstance(layout, torch.Tensor) and layout.is_cuda and layout.shape == (500, 2)
        assert np.array_equal(layout.cpu().numpy(), tsne.embedding_)
        assert trustworthiness(X, tsne.embedding_) > 0.95
        places = tsne.transform(there[:10])
        assert places.is_cuda
        assert np.allclose(places.cpu().numpy(), tsne.transform(there[:10].cpu().numpy()), atol=1e-3)
    with pytest.raises(ValueError, match="for rows on a GPU"):
        chandlery.TSNE(metric="braycurtis", device=GPU).fit(there)


def test_functions_of_rows_on_the_gpu(digits):
    X = digits[:200]
    there = torch.from_numpy(X).to(GPU)
    atoms = X[:30] / np.linalg.norm(X[:30], axis=1, keepdims=True)
    for more in (dict(algorithm="omp", n_nonzero_coefs=4), dict(algorithm="lasso_cd", alpha=0.1)):
        codes = chandlery.sparse_encode(there, torch.from_numpy(atoms).to(GPU), device=GPU, **more)
        assert isinstance(codes, torch.Tensor) and codes.is_cuda
        wanted = chandlery.sparse_encode(X, atoms, device=GPU, **more)
        assert np.allclose(codes.cpu().numpy(), wanted, atol=1e-5)
    graph = chandlery.knn_graph(there, 5, device=GPU)
    assert (graph != chandlery.knn_graph(X, 5, device=GPU)).nnz == 0
    with pytest.raises(ValueError, match="algorithm: rows on a GPU"):
        chandlery.sparse_encode(there, atoms, algorithm="threshold", device=GPU)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.uint8, torch.int64]
)
def test_any_type_and_strides_come_over(dtype):
    wide = (torch.arange(40 * 24, device=GPU) % 200).reshape(40, 24).to(dtype)
    for X in (wide, wide[3:20], wide[::2], wide[:, 5:11], wide.t(), wide[7], wide[:, 3], wide[:, :1]):
        t = chandlery._chandlery.Tensor(X, GPU)
        wanted = X.float().cpu().numpy() if dtype == torch.bfloat16 else X.cpu().numpy()
        assert t.device == GPU and t.numpy().dtype == wanted.dtype
        assert np.array_equal(t.numpy(), wanted)
        back = torch.from_dlpack(t)
        assert back.is_cuda and np.array_equal(back.cpu().numpy(), wanted)
    with pytest.raises(ValueError, match="make the tensor contiguous"):
        chandlery._chandlery.Tensor(wide[:, ::2], GPU)


def test_nothing_goes_through_the_host(tmp_path):
    """The profiler sees no copies to or from the host of more than a twentieth of the rows."""
    X = torch.rand(200_000, 64, device=GPU)
    model = chandlery.DBN(16, n_iter=1, random_state=0, device=GPU).fit(X)
    model.transform(X)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        model.fit(X)
        model.transform(X)
        torch.cuda.synchronize()
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    copies = [event for event in events if "memcpy" in event.get("cat", "").lower()]
    moved = {way: 0 for way in ("DtoD", "DtoH", "HtoD")}
    for event in copies:
        for way in moved:
            moved[way] += event["args"].get("bytes", 0) if way in event["name"] else 0
    size = X.numel() * 4
    assert moved["DtoD"] >= 2 * size, f"what the profiler saw: {moved}"
    # The order of the rows of a pass goes to the GPU: 4 bytes for each row of 256.
    assert moved["DtoH"] < size / 20 and moved["HtoD"] < size / 20, moved


def test_work_of_other_streams_is_waited_for():
    rows = torch.rand(4000, 256, device=GPU)
    model = chandlery.PCA(4, device=GPU).fit(rows)
    wanted = model.transform(rows * 3)
    stream = torch.cuda.Stream()
    for _ in range(5):
        with torch.cuda.stream(stream):
            slow = torch.rand(4000, 4000, device=GPU)
            for _ in range(10):
                slow = slow @ slow / slow.norm()
            X = rows * (3 + 0 * slow[0, 0])
            got = model.transform(X)
            X.zero_()
            doubled = got * 2
            del got, X
        stream.synchronize()
        assert torch.allclose(doubled, wanted * 2, rtol=1e-4, atol=1e-4)


def test_memory_of_the_gpu_does_not_grow():
    X = torch.rand(20_000, 256, device=GPU)
    model = chandlery.PCA(128, device=GPU).fit(X)
    for round_ in range(200):
        model.transform(X)
        if round_ == 20:
            torch.cuda.synchronize()
            before = torch.cuda.mem_get_info()[0]
    torch.cuda.synchronize()
    assert before - torch.cuda.mem_get_info()[0] < 100e6


def test_what_does_not_fit_is_refused(digits):
    X = torch.from_numpy(digits).to(GPU)
    with pytest.raises(ValueError, match="rows are on cuda:0, got device='cpu'"):
        chandlery.PCA(2).fit(X)
    X[5, 5] = float("nan")
    with pytest.raises(ValueError, match="NaN or infinity"):
        chandlery.PCA(2, device=GPU).fit(X)
    model = chandlery.PCA(2, device=GPU).fit(digits)
    with pytest.raises(ValueError, match="has 63 features, but PCA is expecting 64"):
        model.transform(X[:, :63].nan_to_num())
    with pytest.raises(ValueError, match="Expected 2D array"):
        model.transform(X[0].nan_to_num())


def test_the_current_gpu_of_torch_stays(digits):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    torch.cuda.set_device(0)
    chandlery.PCA(2, device="cuda:1").fit(torch.from_numpy(digits).to("cuda:1"))
    assert torch.cuda.current_device() == 0
    assert torch.zeros(1, device="cuda").device.index == 0


def test_arrays_of_cupy_give_arrays_of_cupy(digits):
    cupy = pytest.importorskip("cupy")
    X = cupy.asarray(digits[:300])
    model = chandlery.DBN((16, 8), n_iter=2, random_state=0, device=GPU).fit(X)
    features = model.transform(X)
    assert isinstance(features, cupy.ndarray)
    wanted = chandlery.DBN((16, 8), n_iter=2, random_state=0, device=GPU).fit(digits[:300])
    assert np.allclose(cupy.asnumpy(features), wanted.transform(digits[:300]), atol=1e-5)
