"""A fit that Ctrl-C interrupts leaves a checkpoint, and the next one goes on from it to the same bits."""

import _thread
import json
import os
import signal
import subprocess
import sys
import threading

import chandlery
import numpy as np
import pytest

#: Where the tests run: a build with CUDA runs them on a GPU as well.
DEVICES = ["cpu", "cuda:0"] if chandlery.HAS_CUDA else ["cpu"]


class Stopped(Exception):
    pass


def _stops_after(n):
    """A callback that ends a fit at its ``n``-th call."""
    calls = []

    def callback(*_):
        calls.append(None)
        if len(calls) == n:
            raise Stopped

    return callback


def _arrays_of(estimator):
    model = getattr(estimator, "_model", None)
    return {"components": estimator.components_} if model is None else model.tensors()


def _same(a, b):
    a, b = _arrays_of(a), _arrays_of(b)
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "make, after",
    [
        (lambda **more: chandlery.DBN((16, 8), n_iter=4, **more), 3),
        (lambda **more: chandlery.DBN((16, 8), n_iter=4, persistent=True, **more), 6),
        (lambda **more: chandlery.DenoisingAutoencoder((16, 8), n_iter=3, **more), 4),
        (lambda **more: chandlery.ConvRBM((8, 8), n_filters=4, filter_size=3, n_iter=3, **more), 2),
        (lambda **more: chandlery.SparseAutoencoder(32, k=4, n_iter=4, **more), 2),
        (lambda **more: chandlery.SparseAutoencoder(16, kind="kullback-leibler", n_iter=4, **more), 1),
    ],
    ids=lambda it: None if callable(it) else str(it),
)
def test_a_fit_that_an_exception_ends_goes_on(digits, tmp_path, make, after, device):
    X = digits[:210]
    whole = make(random_state=0, device=device).fit(X)
    estimator = make(random_state=0, device=device, checkpoint=tmp_path / "made")
    estimator._seen = _stops_after(after)
    with pytest.raises(Stopped):
        estimator.fit(X)
    file = tmp_path / "made" / "checkpoint.safetensors"
    assert file.exists()
    other = make(random_state=1, device=device, checkpoint=tmp_path / "made")
    again = make(random_state=0, device=device, checkpoint=tmp_path / "made")
    for wrong, rows in ((other, X), (again, X[1:])):
        with pytest.raises(ValueError, match=r"checkpoint: .* must be of these rows and parameters"):
            wrong.fit(rows)
    del estimator._seen
    estimator.fit(X)
    assert _same(estimator, whole)
    # Sums that a checkpoint parts are rounded once more.
    for ours, theirs in zip(estimator.metrics_, whole.metrics_, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-12)
    assert not file.exists()
    assert not _same(other.fit(X), whole), "another seed learns something else"


def _interrupted(estimator, X, seconds):
    """Interrupts a fit after some seconds; false if it was done before."""
    timer = threading.Timer(seconds, _thread.interrupt_main)
    timer.start()
    try:
        estimator.fit(X)
        timer.cancel()
        timer.join()
    except KeyboardInterrupt:
        return True
    return False


def test_ctrl_c_within_a_pass_loses_no_step(digits, tmp_path):
    settings = dict(n_components=512, batch_size=2, n_iter=1, random_state=0)
    file = tmp_path / "checkpoint.safetensors"
    # How fast the machine is is not known: before the first step there is nothing to keep, and
    # a pass that is done before it is interrupted wants more rows.
    seconds, times = 0.1, 3
    while not file.exists():
        assert seconds < 60 and times < 1000, "no interrupt met the pass"
        X = np.tile(digits, (times, 1))
        estimator = chandlery.BernoulliRBM(**settings, checkpoint=tmp_path)
        if _interrupted(estimator, X, seconds):
            seconds *= 1.5
        else:
            times *= 3
    made = file.read_bytes()
    header = json.loads(made[8 : 8 + int.from_bytes(made[:8], "little")])["__metadata__"]
    progress = json.loads(header["chandlery"])["progress"]
    assert progress["epoch"] == 0 and progress["minibatches"] > 0
    estimator.fit(X)
    whole = chandlery.BernoulliRBM(**settings).fit(X)
    assert _same(estimator, whole)
    assert np.array_equal(estimator.h_samples_, whole.h_samples_)


@pytest.mark.parametrize("device", DEVICES)
def test_a_layout_goes_on(digits, tmp_path, device):
    X = digits[:300].astype(np.float64)
    settings = dict(perplexity=10, random_state=0, max_iter=400, device=device)
    whole = chandlery.TSNE(**settings).fit(X)
    estimator = chandlery.TSNE(**settings, checkpoint=tmp_path, verbose=1)
    estimator._said = _stops_after(4)
    with pytest.raises(Stopped):
        estimator.fit(X)
    del estimator._said
    with pytest.raises(ValueError, match=r"checkpoint: .* must be of these rows and parameters"):
        chandlery.TSNE(**{**settings, "perplexity": 11}, checkpoint=tmp_path).fit(X)
    assert np.array_equal(estimator.fit_transform(X), whole.embedding_)
    assert (estimator.n_iter_, estimator.kl_divergence_) == (whole.n_iter_, whole.kl_divergence_)
    assert np.array_equal(estimator.transform(digits[300:310]), whole.transform(digits[300:310]))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "kind, more",
    [
        (chandlery.DictionaryLearning, dict(max_iter=12)),
        (chandlery.MiniBatchDictionaryLearning, dict(max_iter=3, batch_size=40, tol=0.0)),
    ],
)
def test_a_dictionary_goes_on(digits, tmp_path, kind, more):
    settings = dict(n_components=12, alpha=0.1, random_state=0, **more)
    whole = kind(**settings).fit(digits[:200])
    calls = []

    def interrupts(_):
        calls.append(None)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)

    estimator = kind(**settings, checkpoint=tmp_path, callback=interrupts)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        estimator.fit(digits[:200])
    assert signal.getsignal(signal.SIGINT) is before
    assert (tmp_path / "checkpoint.safetensors").exists()
    estimator.fit(digits[:200])
    assert len(calls) > 2, "it had not come to its end"
    assert _same(estimator, whole)
    assert estimator.n_iter_ == whole.n_iter_
    assert not list(tmp_path.iterdir())


SCRIPT = """
import sys
import chandlery
import numpy as np

X = np.random.RandomState(0).uniform(size=(400, 64)).astype(np.float32)
settings = dict(n_components=64, batch_size=4, n_iter=int(sys.argv[2]), random_state=0, verbose=1)
try:
    rbm = chandlery.BernoulliRBM(**settings, checkpoint=sys.argv[1]).fit(X)
except KeyboardInterrupt:
    sys.exit(3)
np.save(sys.argv[3], rbm.components_)
"""


def test_a_process_that_gets_sigint_goes_on_in_the_next(tmp_path):
    folder, result = tmp_path / "made", tmp_path / "result.npy"
    command = [sys.executable, "-u", "-c", SCRIPT, folder, "500", result]
    environment = {**os.environ, "RAYON_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert "Iteration 1," in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    said = process.stdout.read()
    assert process.wait(60) == 3
    assert said.count("Iteration") < 499, "it ended before it was done"
    assert (folder / "checkpoint.safetensors").exists() and not result.exists()
    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert again.stdout.count("Iteration") < 500, "it went on from where it was"
    X = np.random.RandomState(0).uniform(size=(400, 64)).astype(np.float32)
    whole = chandlery.BernoulliRBM(64, batch_size=4, n_iter=500, random_state=0).fit(X)
    assert np.array_equal(np.load(result), whole.components_)
    assert not list(folder.iterdir())
