"""Arrays of any type and strides, exceptions of the right class, signals, threads."""

import _thread
import pickle
import signal
import threading
import time

import chandlery
import numpy as np
import pytest
from chandlery import _chandlery

ATOMS = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
SIGNALS = np.array([[3.0, -0.5, 0.2], [0.0, 2.0, 1.0], [0.1, 0.0, -4.0], [1.5, 1.5, 0.0]])
#: Of orthonormal atoms and a penalty of 1.
WANTED = np.sign(SIGNALS) * np.maximum(np.abs(SIGNALS) - 1, 0)


def _layouts():
    wide = np.zeros((8, 9))
    wide[::2, ::3] = SIGNALS
    unaligned = np.frombuffer(b"\0" + SIGNALS.tobytes(), dtype=np.uint8)[1:].view(np.float64).reshape(4, 3)
    read_only = SIGNALS.copy()
    read_only.setflags(write=False)
    return {
        "fortran": np.asfortranarray(SIGNALS),
        "strided": wide[::2, ::3],
        "reversed": SIGNALS[::-1, ::-1][::-1, ::-1],
        "transposed": SIGNALS.T.copy().T,
        "unaligned": unaligned,
        "read only": read_only,
    }


@pytest.mark.parametrize("name", _layouts())
def test_arrays_of_any_strides_are_read(name):
    X = _layouts()[name]
    assert np.allclose(_chandlery.lasso(X, ATOMS, 1.0)[0], WANTED, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_results_have_the_type_of_the_rows(dtype):
    got = chandlery.sparse_encode(SIGNALS.astype(dtype), ATOMS.astype(dtype), alpha=1.0)
    assert got.dtype == dtype
    assert np.allclose(got, WANTED, atol=1e-5)


def test_bytes_and_halves_are_rows(digits):
    bytes_ = (digits * 255).astype(np.uint8)
    coder = chandlery.DBN(8, n_iter=1, random_state=0).fit(bytes_)
    assert np.allclose(coder.transform(bytes_), coder.transform(bytes_.astype(np.float32) / 255), atol=1e-5)
    model = coder._model
    halves = digits.astype(np.float16)
    assert np.array_equal(model.encode(halves), model.encode(halves.astype(np.float32)))


@pytest.mark.parametrize("X", [SIGNALS.astype(np.complex128), SIGNALS.astype(">f8"), SIGNALS.tolist(), None])
def test_what_is_no_array_of_numbers_is_a_type_error(X):
    with pytest.raises(TypeError, match="chandlery: arrays must be"):
        _chandlery.lasso(X, ATOMS, 1.0)


def test_values_that_do_not_fit_are_value_errors_with_the_texts_of_the_library():
    with pytest.raises(ValueError, match="Lasso: beta must be at least 0, got -1"):
        _chandlery.lasso(SIGNALS, ATOMS, -1.0)
    with pytest.raises(ValueError, match="features"):
        _chandlery.lasso(SIGNALS[:, :2].copy(), ATOMS, 1.0)
    with pytest.raises(ValueError, match="device: must be cpu, cuda or cuda:N, got gpu"):
        _chandlery.lasso(SIGNALS, ATOMS, 1.0, device="gpu")
    with pytest.raises(ValueError, match="kind must be one of rbm"):
        _chandlery.Model.init("forest", "{}", 0)
    with pytest.raises(ValueError, match="n_visible"):
        _chandlery.Model.init("rbm", '{"n_hidden": 3}', 0)


def test_an_empty_array_is_no_panic():
    empty = np.zeros((0, 3))
    try:
        got, _ = _chandlery.lasso(empty, ATOMS, 1.0)
    except ValueError:
        return
    assert got.shape == (0, 3)


@pytest.mark.skipif(chandlery.HAS_CUDA, reason="a build with CUDA")
def test_a_missing_gpu_is_a_runtime_error():
    with pytest.raises(RuntimeError, match="this build has no CUDA"):
        chandlery.PCA(device="cuda:0").fit(SIGNALS)


def test_files_that_are_not_there_are_os_errors(tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        chandlery.DBN.from_pretrained(tmp_path / "nowhere")
    rbm = chandlery.BernoulliRBM(2, n_iter=1).fit(np.eye(4))
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        rbm.save_pretrained(tmp_path / "file" / "folder")


def test_more_memory_than_there_is_is_a_memory_error():
    config = '{"n_atoms": 100000000, "n_features": 100000, "beta": 1.0}'
    with pytest.raises(MemoryError, match="of memory"):
        _chandlery.Model.init("sparse-coding", config, 0)


def test_an_exception_of_a_callback_comes_through(digits):
    class Mine(Exception):
        pass

    def callback(*_):
        raise Mine("here")

    with pytest.raises(Mine, match="here"):
        _chandlery.tsne(digits[:100], '{"perplexity": 5}', 0, callback=callback)


def test_ctrl_c_interrupts_long_work(digits):
    # A shell that starts tests in the background has them ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.5, _thread.interrupt_main).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        chandlery.BernoulliRBM(256, n_iter=100_000).fit(digits)
    signal.signal(signal.SIGINT, before)
    assert time.monotonic() - began < 30


def test_other_threads_run_while_work_does(digits):
    counts = []

    def count():
        while not counts or counts[-1] >= 0:
            counts.append(len(counts))
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    before = len(counts)
    chandlery.BernoulliRBM(128, n_iter=20, random_state=0).fit(digits)
    made = len(counts) - before
    counts.append(-1)
    thread.join()
    assert made > 20


def test_models_and_trainers_are_pickled(digits):
    rbm = chandlery.BernoulliRBM(8, batch_size=20, random_state=0).partial_fit(digits[:20])
    again = pickle.loads(pickle.dumps(rbm))
    for rows in (digits[20:40], digits[40:55]):
        rbm.partial_fit(rows)
        again.partial_fit(rows)
    assert np.array_equal(rbm.components_, again.components_)
    tsne = chandlery.TSNE(perplexity=5, max_iter=250, random_state=0).fit(digits[:60])
    again = pickle.loads(pickle.dumps(tsne))
    assert np.array_equal(tsne.transform(digits[60:70]), again.transform(digits[60:70]))


def test_a_tensor_of_another_library_is_read_by_dlpack(digits):
    class Tensor:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **_):
            return self.array.__dlpack__()

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    model = chandlery.DBN(8, n_iter=1, random_state=0).fit(Tensor(digits))
    assert np.array_equal(model.transform(Tensor(digits)), model.transform(digits))
