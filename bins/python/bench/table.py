"""Ours beside scikit-learn: seconds, and what was reached.

    python bins/python/bench/table.py [--only NAME ...] [--quick]

Data: MNIST in the idx format where ``--mnist FOLDER`` is given; else scikit-learn's 8 x 8 digits, each
pixel four times as high and wide, shifted at random, 784 values a row. Patches are 8 x 8 windows of
scikit-learn's two photographs, without their means. scikit-learn may take all cores (``n_jobs=-1``)
where it can; each side runs once, ours after a fit of some rows.
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


def timed(work):
    began = time.perf_counter()
    result = work()
    return result, time.perf_counter() - began


def objective(X, atoms, codes, alpha):
    return float(0.5 * ((X - codes @ atoms) ** 2).sum() + alpha * np.abs(codes).sum()) / len(X)


def tsne(options):
    X = mnist(options.mnist, 2000 if options.quick else 10_000)
    chandlery.TSNE(max_iter=250).fit(X[:200])
    for name, cls in (("ours", chandlery.TSNE), ("theirs", sklearn.manifold.TSNE)):
        model, seconds = timed(lambda: cls(random_state=0, n_jobs=-1).fit(X))
        kept = trustworthiness(X[:2000], model.embedding_[:2000])
        yield name, seconds, f"divergence {model.kl_divergence_:.3f}, trustworthiness {kept:.3f}"


def rbm(options):
    X = mnist(options.mnist, 6000 if options.quick else 60_000)
    n_iter = 1 if options.quick else 10
    for name, cls in (("ours", chandlery.BernoulliRBM), ("theirs", sklearn.neural_network.BernoulliRBM)):
        model, seconds = timed(lambda: cls(random_state=0, n_iter=n_iter).fit(X))
        yield name, seconds, f"pseudo-likelihood {model.score_samples(X[:5000]).mean():.1f}"


def dictionary(options):
    X = patches(10_000 if options.quick else 100_000)
    settings = dict(n_components=256, alpha=1.0, max_iter=1, random_state=0, max_no_improvement=None, tol=0.0)
    for name, module in (("ours", chandlery), ("theirs", sklearn.decomposition)):
        model, seconds = timed(lambda: module.MiniBatchDictionaryLearning(**settings, n_jobs=-1).fit(X))
        codes = chandlery.sparse_encode(X[:5000], model.components_, alpha=1.0)
        yield name, seconds, f"objective {objective(X[:5000], model.components_, codes, 1.0):.4f}"


def encode(options):
    X = patches(10_000 if options.quick else 100_000)
    atoms = chandlery.MiniBatchDictionaryLearning(256, alpha=1.0, max_iter=1, random_state=0).fit(X[:10_000])
    atoms = atoms.components_ / np.linalg.norm(atoms.components_, axis=1, keepdims=True)
    for algorithm, more in (
        ("omp", dict(n_nonzero_coefs=8)),
        ("lasso_lars", dict(alpha=1.0)),
        ("lasso_cd", dict(alpha=1.0)),
    ):
        for name, module in (("ours", chandlery), ("theirs", sklearn.decomposition)):
            codes, seconds = timed(
                lambda: module.sparse_encode(X, atoms, algorithm=algorithm, n_jobs=-1, **more)
            )
            error = objective(X, atoms, codes, more.get("alpha", 0.0))
            yield f"{name}, {algorithm}", seconds, f"objective {error:.4f}"


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
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    options = parser.parse_args()
    print(f"chandlery {chandlery.__version__}, scikit-learn {sklearn.__version__}, {os.cpu_count()} cores")
    print("| task | | seconds | reached |\n|---|---|---|---|")
    for task in options.only:
        for name, seconds, reached in TASKS[task](options):
            print(f"| {task} | {name} | {seconds:.2f} | {reached} |", flush=True)


if __name__ == "__main__":
    main()
