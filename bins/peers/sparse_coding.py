"""Activations by SPAMS and scikit-learn for the signals, atoms and penalties of `bench sparse-coding`, and ours in turn.

    pip install numpy scipy spams-bin scikit-learn
    cargo build --bin bench
    python bins/peers/sparse_coding.py [--bench target/debug/bench] [--problem paper] [--signals 1000] [--density 3,6,10] [--repeats 3]
                                       [--scikit-learn] [--threads 2] [--json]

SPAMS runs `lasso` (LARS, mode 2) in float32; scikit-learn, only if asked for, `sparse_encode` with `lasso_cd` in float64. Prints the median
seconds of each, and the largest and the median relative duality gap, evaluated here in float64, so that no program judges itself; ours prints
its own.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

# OpenBLAS that does not know a recent processor falls back to old kernels.
if " avx512bw" in Path("/proc/cpuinfo").read_text():
    os.environ.setdefault("OPENBLAS_CORETYPE", "SkylakeX")

import numpy as np
import spams


def gaps(signals, atoms, activations, beta):
    """(P - D) / P of each signal, by the residual scaled to be dual feasible."""
    residual = signals - activations @ atoms
    primal = 0.5 * (residual**2).sum(1) + beta * abs(activations).sum(1)
    scale = np.minimum(1, beta / np.maximum(abs(residual @ atoms.T).max(1), 1e-30))[:, None]
    dual = 0.5 * (signals**2).sum(1) - 0.5 * ((signals - residual * scale) ** 2).sum(1)
    return (primal - dual) / primal


def median_time(repeats, work):
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds), result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", default="target/debug/bench", help="the program `bench`")
    parser.add_argument("--problem", default="paper", choices=["paper", "small"])
    parser.add_argument("--signals", type=int, default=1000, help="signals, the first of the problem")
    parser.add_argument("--density", default="3,6,10", help="shares of nonzero activations in per cent")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--scikit-learn", action="store_true", help="time scikit-learn, too")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        command = [args.bench, "sparse-coding", "--device", "cpu", "--threads", str(args.threads), "--json"]
        command += ["--problem", args.problem, "--signals", str(args.signals), "--density", args.density]
        command += ["--repeats", str(args.repeats), "--dump", folder]
        ours = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        load = lambda what: np.load(Path(folder) / f"{args.problem}-{what}.npy")
        signals, atoms = load("signals").astype(np.float64), load("atoms").astype(np.float64)
    columns = [np.asfortranarray(x.T.astype(np.float32)) for x in (signals, atoms)]

    rows = []
    for row in ours:
        beta = row["beta"]
        own = {"who": "chandlery", "nonzero_percent": row["nonzero_percent"], "seconds": row["seconds"]}
        rows.append(own | {"beta": beta, "max_gap": row["max_relative_gap"], "median_gap": None})

        def add(who, seconds, activations):
            found = gaps(signals, atoms, activations.astype(np.float64), beta)
            share = 100 * float((activations != 0).mean())
            figures = {"max_gap": float(found.max()), "median_gap": float(np.median(found))}
            rows.append({"who": who, "nonzero_percent": share, "seconds": seconds, "beta": beta} | figures)

        lars = lambda: spams.lasso(*columns, lambda1=beta, mode=2, numThreads=args.threads)
        seconds, found = median_time(args.repeats, lars)
        add("SPAMS lasso f32", seconds, found.T.toarray())
        if args.scikit_learn:
            from sklearn.decomposition import sparse_encode

            encode = lambda: sparse_encode(signals, atoms, algorithm="lasso_cd", alpha=beta, n_jobs=args.threads)
            seconds, found = median_time(1, encode)
            add("scikit-learn lasso_cd", seconds, found)
    if args.json:
        print(json.dumps(rows))
        return
    print(f"{args.problem}: {len(signals)} signals, {len(atoms)} atoms, {signals.shape[1]} samples, {args.threads} threads")
    for row in rows:
        middle = "-" if row["median_gap"] is None else f"{row['median_gap']:.1e}"
        print(
            f"beta {row['beta']:.3f} {row['who']:<22} {row['seconds']:8.3f} s  {row['nonzero_percent']:5.2f} % nonzero  "
            f"gap at most {row['max_gap']:.1e}, median {middle}"
        )


if __name__ == "__main__":
    main()
