"""Dictionary learning by other libraries, on the signals and from the start that `bench dictionary --dump DIR` writes.

    cargo run --bin bench -- dictionary --what training --dump DIR
    pip install numpy spams-bin dictlearn scikit-learn
    python bins/peers/dictionary.py DIR [--passes 10] [--nonzero 10] [--batch 512] [--repeats 3] [--json]

One line a trainer: seconds a pass, and the root mean square error of its dictionary with codes of `--nonzero` atoms, once by orthogonal
matching pursuit and once by orthogonal least squares. Both pursuits are written out below in float64, so that no library
judges itself; a library that is not installed is passed over with a word.

Things to know before comparing:
- `spams.omp` chooses by least squares: it is OLS, whatever its name. SPAMS trains with it.
- dictlearn codes once more than it iterates; its time is that of all codings over the passes.
- scikit-learn trains with an l1 penalty only. The penalty is chosen here so that the first dictionary's codes have as many atoms as the
  others may use.
- BLAS kernels matter: OPENBLAS_CORETYPE should name this machine's (SkylakeX for AVX-512), or NumPy's products are slow.
"""
import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np


def greedy_codes(signals, atoms, n_nonzero, least_squares):
    """Dense codes by OMP, or by OLS with `least_squares`; every signal at once, float64.

    For each signal an orthonormal basis of its chosen atoms grows by one vector a step; what the basis leaves of the atoms is
    kept as numbers only: their products with the residual and, for OLS, their remaining energies.
    """
    m, _ = signals.shape
    gram, start = atoms @ atoms.T, signals @ atoms.T
    products, energy = start.copy(), np.ones((m, len(atoms)))
    rows = np.arange(m)
    chosen = np.zeros((m, n_nonzero), int)
    taken = np.zeros((m, len(atoms)), bool)
    directions = np.zeros((n_nonzero, m, len(atoms)))
    for step in range(n_nonzero):
        merit = np.abs(products)
        if least_squares:
            merit = merit / np.sqrt(np.maximum(energy, 1e-9))
        merit[taken] = -1
        pick = merit.argmax(axis=1)
        chosen[:, step], taken[rows, pick] = pick, True
        along = gram[pick]
        for former in directions[:step]:
            along = along - former[rows, pick][:, None] * former
        along /= np.sqrt(np.maximum(along[rows, pick], 1e-12))[:, None]
        products = products - (products[rows, pick] / along[rows, pick])[:, None] * along
        energy -= along**2
        directions[step] = along
    codes = np.zeros_like(start)
    for row in rows:
        support = chosen[row]
        codes[row, support] = np.linalg.lstsq(atoms[support].T, signals[row], rcond=None)[0]
    return codes


def errors(signals, atoms, n_nonzero, block=2048):
    """Root mean square errors by OMP and by OLS."""
    atoms = atoms / np.linalg.norm(atoms, axis=1, keepdims=True)
    sums = [0.0, 0.0]
    for first in range(0, len(signals), block):
        part = signals[first : first + block]
        for which in (0, 1):
            rest = part - greedy_codes(part, atoms, n_nonzero, which == 1) @ atoms
            sums[which] += float((rest**2).sum())
    return [(s / signals.size) ** 0.5 for s in sums]


def spams_trainers(signals, start, args):
    """SPAMS: online in both precisions, and in one batch."""
    import spams

    passes = len(signals) // args.batch * args.passes
    for precision in (np.float32, np.float64):
        data = np.asfortranarray(signals.T, precision)
        first = np.asfortranarray(start.T, precision)

        def online(data=data, first=first):
            learned = spams.trainDL(
                data, D=first.copy(order="F"), K=len(start), lambda1=args.nonzero, mode=3, iter=passes,
                batchsize=args.batch, numThreads=args.threads, verbose=False,
            )
            return np.asarray(learned, np.float64).T

        yield f"SPAMS trainDL, online, {precision.__name__}", online

    def batch():
        learned = spams.trainDL(
            np.asfortranarray(signals.T), D=np.asfortranarray(start.T), K=len(start), lambda1=args.nonzero, mode=3,
            iter=args.passes, batch=True, numThreads=args.threads, verbose=False,
        )
        return np.asarray(learned).T

    yield "SPAMS trainDL, batch, float64", batch


def dictlearn_trainers(signals, start, args):
    """dictlearn: AK-SVD and K-SVD."""
    import dictlearn

    dictlearn.sparse_encode(signals[:9], start, n_nonzero_coefs=args.nonzero)  # numba compiles
    for algorithm in ("aksvd", "ksvd"):

        def train(algorithm=algorithm):
            model = dictlearn.DictionaryLearning(
                len(start), fit_algorithm=algorithm, n_nonzero_coefs=args.nonzero, max_iter=args.passes, dict_init=start,
                random_state=0,
            )
            return model.fit(signals).components_

        yield f"dictlearn {algorithm}", train


def sklearn_trainers(signals, start, args):
    """scikit-learn: minibatches with an l1 penalty."""
    from sklearn.decomposition import MiniBatchDictionaryLearning, sparse_encode

    low, high = 1.0, 1000.0
    for _ in range(12):
        penalty = (low * high) ** 0.5
        count = (sparse_encode(signals[:500], start, algorithm="lasso_lars", alpha=penalty) != 0).sum() / 500
        low, high = (penalty, high) if count > args.nonzero else (low, penalty)

    def train():
        model = MiniBatchDictionaryLearning(
            len(start), alpha=penalty, fit_algorithm="cd", max_iter=args.passes, batch_size=args.batch, tol=0,
            max_no_improvement=None, dict_init=start, random_state=0,
        )
        return model.fit(signals).components_

    yield f"scikit-learn MiniBatchDictionaryLearning, alpha {penalty:.3g}", train


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path, help="where signals.npy and start.npy are")
    parser.add_argument("--passes", type=int, default=10)
    parser.add_argument("--nonzero", type=int, default=10)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3, help="timed runs; the median is printed")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="one JSON array at the end instead of lines")
    args = parser.parse_args()
    signals = np.load(args.folder / "signals.npy").astype(np.float64)
    start = np.load(args.folder / "start.npy").astype(np.float64)
    rows = []

    def say(name, seconds, atoms):
        omp, ols = errors(signals, atoms, args.nonzero)
        rows.append({"trainer": name, "seconds_pass": seconds, "rmse_omp": omp, "rmse_ols": ols})
        if not args.json:
            print(f"{name:<60} {1e3 * seconds:>10.1f} ms/pass  RMSE {omp:.4f} by OMP, {ols:.4f} by OLS", flush=True)

    say("first dictionary", 0.0, start)
    for trainers in (spams_trainers, dictlearn_trainers, sklearn_trainers):
        try:
            for name, train in trainers(signals, start, args):
                times = []
                while len(times) < args.repeats and sum(times) < 60:
                    begun = time.perf_counter()
                    atoms = train()
                    times.append(time.perf_counter() - begun)
                say(name, statistics.median(times) / args.passes, np.asarray(atoms, np.float64))
        except ImportError as missing:
            print(f"passed over: {missing}", file=sys.stderr)
    if args.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
