"""Ours and scikit-learn in turn: seconds, and what was reached.

    python bins/python/bench/table.py [--only NAME ...] [--part SHARE] [--mnist FOLDER]

What is wanted of each row: to be so many times as fast at an objective that is as good or better. The
last column says whether both hold; objectives may differ in the fourth digit, those of an RBM by what
another seed changes.

Data: MNIST in the idx format where ``--mnist FOLDER`` is given; else scikit-learn's 8 x 8 digits, each
pixel four times as high and wide, shifted at random, 784 values a row. Patches are 8 x 8 windows of
scikit-learn's two photographs, without their means. scikit-learn may take all cores (``n_jobs=-1``)
where it can; each side runs once, ours after a fit of some rows. ``--part 0.1`` takes a tenth of the
rows: the faster look.
"""

import argparse
import gzip
import os
import time
from pathlib import Path

import chandlery
import numpy as np
import sklearn.decomposition
import sklearn.manifold
import sklearn.neural_network
from sklearn.datasets import load_digits, load_sample_images
from sklearn.feature_extraction.image import extract_patches_2d
from sklearn.manifold import trustworthiness


def mnist(folder, n):
    """The first rows of MNIST, or digits of the same size, 0 to 1."""
    if folder is None:
        rng, images = np.random.RandomState(0), load_digits().images / 16
        large = np.zeros((n, 28, 28), dtype=np.float32)
        for i in range(n):
            digit = np.kron(images[i % len(images)], np.ones((3, 3)))
            down, right = rng.randint(0, 5, 2)
            large[i, down : down + 24, right : right + 24] = digit
        return np.clip(large.reshape(n, 784) + rng.normal(0, 0.02, (n, 784)), 0, 1).astype(np.float32)
    path = Path(folder) / "train-images-idx3-ubyte"
    raw = path.read_bytes() if path.exists() else gzip.decompress(path.with_suffix(".gz").read_bytes())
    return np.frombuffer(raw, dtype=np.uint8)[16:].reshape(-1, 784)[:n].astype(np.float32) / 255


def patches(n):
    """8 x 8 windows of photographs, without their means, divided by their deviation."""
    images = [image.mean(axis=2) for image in load_sample_images().images]
    each = [extract_patches_2d(image, (8, 8), max_patches=n // 2, random_state=0) for image in images]
    rows = np.concatenate(each).reshape(-1, 64)
    rows = rows - rows.mean(axis=1, keepdims=True)
    return rows / rows.std()


#: How much worse an objective may be that counts as equal.
EQUAL = 5e-4
#: The same of an RBM after few passes: another seed changes as much, of either side.
EQUAL_RBM = 0.03


def timed(work):
    began = time.perf_counter()
    result = work()
    return result, time.perf_counter() - began


def objective(X, atoms, codes, alpha):
    return float(0.5 * ((X - codes @ atoms) ** 2).sum() + alpha * np.abs(codes).sum()) / len(X)


def tsne(options):
    """Divergence of the layout of 10,000 digits."""
    X = mnist(options.mnist, int(10_000 * options.part))
    chandlery.TSNE(max_iter=250).fit(X[:200])

    def side(cls):
        model, seconds = timed(lambda: cls(random_state=0, n_jobs=-1).fit(X))
        kept = trustworthiness(X[:2000], model.embedding_[:2000])
        return seconds, model.kl_divergence_, f", trustworthiness {kept:.3f}"

    yield "TSNE", 4, EQUAL, side(chandlery.TSNE), side(sklearn.manifold.TSNE)


def pseudo_likelihood(model, X):
    """Mean over the rows of the sum of log p(x_i | the others), every unit flipped in turn."""
    weights, x = model.components_.astype(np.float64), X.astype(np.float64)
    pre = x @ weights.T + model.intercept_hidden_
    here = np.logaddexp(0, pre).sum(axis=1)
    total = 0.0
    for unit in range(x.shape[1]):
        change = 1 - 2 * x[:, unit]
        there = np.logaddexp(0, pre + np.outer(change, weights[:, unit])).sum(axis=1)
        # The free energy of the flipped row less that of the row.
        more = -model.intercept_visible_[unit] * change + here - there
        total -= np.logaddexp(0, -more).mean()
    return total


def rbm(options):
    """Pseudo-likelihood of 200 digits, with the other sign, of an RBM of 60,000."""
    X = mnist(options.mnist, int(60_000 * options.part))
    chandlery.BernoulliRBM(n_iter=1).fit(X[:200])

    def side(cls):
        model, seconds = timed(lambda: cls(random_state=0, n_iter=options.passes).fit(X))
        return seconds, -float(pseudo_likelihood(model, X[:200])), ""

    ours, theirs = side(chandlery.BernoulliRBM), side(sklearn.neural_network.BernoulliRBM)
    yield "BernoulliRBM", 1.5, EQUAL_RBM, ours, theirs


def dictionary(options):
    """Objective of 5,000 patches over atoms learned from 100,000."""
    X = patches(int(100_000 * options.part))
    settings = dict(n_components=256, alpha=1.0, max_iter=1, random_state=0, max_no_improvement=None, tol=0.0)
    chandlery.MiniBatchDictionaryLearning(**settings).fit(X[:500])

    def side(module):
        model, seconds = timed(lambda: module.MiniBatchDictionaryLearning(**settings, n_jobs=-1).fit(X))
        codes = chandlery.sparse_encode(X[:5000], model.components_, alpha=1.0)
        return seconds, objective(X[:5000], model.components_, codes, 1.0), ""

    yield "MiniBatchDictionaryLearning", 20, EQUAL, side(chandlery), side(sklearn.decomposition)


def encode(options):
    """Objective, of the pursuit the error alone, of the codes of 100,000 patches."""
    X = patches(int(100_000 * options.part))
    atoms = chandlery.MiniBatchDictionaryLearning(256, alpha=1.0, max_iter=1, random_state=0).fit(X[:10_000])
    atoms = atoms.components_ / np.linalg.norm(atoms.components_, axis=1, keepdims=True)
    for algorithm, more in (
        ("lasso_lars", dict(alpha=1.0)),
        ("lasso_cd", dict(alpha=1.0)),
        ("omp", dict(n_nonzero_coefs=8)),
    ):
        for dtype in (np.float64, np.float32):
            rows, over = X.astype(dtype), atoms.astype(dtype)

            def side(module):
                code = lambda: module.sparse_encode(rows, over, algorithm=algorithm, n_jobs=-1, **more)
                codes, seconds = timed(code)
                return seconds, objective(X, atoms, codes, more.get("alpha", 0.0)), ""

            chandlery.sparse_encode(rows[:500], over, algorithm=algorithm, **more)
            name = f"sparse_encode, {algorithm}, {np.dtype(dtype).name}"
            yield name, 100, EQUAL, side(chandlery), side(sklearn.decomposition)


TASKS = {
    "TSNE": tsne,
    "BernoulliRBM": rbm,
    "MiniBatchDictionaryLearning": dictionary,
    "sparse_encode": encode,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="*", choices=TASKS, default=list(TASKS))
    parser.add_argument("--mnist", help="folder of MNIST's files")
    parser.add_argument("--part", type=float, default=1.0, help="share of the rows, above 0 to 1")
    parser.add_argument("--passes", type=int, default=2, help="passes of the RBM over its rows")
    options = parser.parse_args()
    if not 0 < options.part <= 1:
        parser.error(f"--part must be above 0 and at most 1, got {options.part}")
    print(f"chandlery {chandlery.__version__}, scikit-learn {sklearn.__version__}, {os.cpu_count()} cores")
    heads = ("task", "ours, s", "scikit-learn, s", "times as fast", "wanted", "ours reaches", "scikit-learn")
    print(f"| {' | '.join(heads)} | holds |")
    print("|---|---|---|---|---|---|---|---|")
    for task in options.only:
        for name, wanted, equal, our_side, their_side in TASKS[task](options):
            (ours, reached, more), (theirs, by_theirs, more_theirs) = our_side, their_side
            times = theirs / ours
            holds = times >= wanted and reached <= by_theirs + equal * abs(by_theirs)
            print(
                f"| {name} | {ours:.2f} | {theirs:.2f} | {times:.1f} | {wanted} | {reached:.4f}{more} | "
                f"{by_theirs:.4f}{more_theirs} | {'yes' if holds else 'no'} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
