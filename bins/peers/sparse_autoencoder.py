"""A sparse autoencoder by SciPy, from the patches and the start of `bench sparse-autoencoder --training --dump DIR`, and ours in turn.

    pip install numpy scipy threadpoolctl
    cargo build --bin bench
    python bins/peers/sparse_autoencoder.py [--bench target/debug/bench] [--history 10] [--repeats 3] [--json]

64-25-64 with sigmoid units over 10,000 patches, weight decay 1e-4, sparsity weight 3, target 0.01, 400 iterations. SciPy runs L-BFGS-B in
float64 with NumPy's products on one BLAS thread: with two the pools of NumPy and SciPy wait for each other, and it is slower. Prints seconds and
the final cost of each; that of ours is evaluated here, too, so that no program judges itself.
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
import scipy
from scipy.optimize import minimize
from scipy.special import expit
from threadpoolctl import threadpool_limits

N_HIDDEN, DECAY, BETA, TARGET, ITERATIONS = 25, 1e-4, 3.0, 0.01, 400


def objective(theta, rows):
    """The cost and its gradient; theta holds weight, decoder weight, bias and visible bias, each row by row."""
    m, n_visible = rows.shape
    shapes = [(N_HIDDEN, n_visible), (n_visible, N_HIDDEN), (N_HIDDEN,), (n_visible,)]
    ends = np.cumsum([np.prod(shape) for shape in shapes])
    weight, decoder, bias, visible_bias = (
        part.reshape(shape) for part, shape in zip(np.split(theta, ends[:-1]), shapes)
    )
    features = expit(rows @ weight.T + bias)
    outputs = expit(features @ decoder.T + visible_bias)
    mean, apart = features.mean(axis=0), outputs - rows
    divergence = TARGET * np.log(TARGET / mean) + (1 - TARGET) * np.log((1 - TARGET) / (1 - mean))
    cost = 0.5 * (apart**2).sum() / m + BETA * divergence.sum() + 0.5 * DECAY * (theta[: ends[1]] ** 2).sum()
    outer = apart * outputs * (1 - outputs) / m
    pull = BETA * ((1 - TARGET) / (1 - mean) - TARGET / mean) / m
    inner = (outer @ decoder + pull) * features * (1 - features)
    parts = [inner.T @ rows + DECAY * weight, outer.T @ features + DECAY * decoder, inner.sum(axis=0), outer.sum(axis=0)]
    return cost, np.concatenate([part.ravel() for part in parts])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", default="target/debug/bench", help="the built benchmark")
    parser.add_argument("--history", type=int, default=10, help="steps that SciPy keeps (maxcor)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each, taken in turn")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()

    seconds, costs = {"ours": [], "scipy": []}, {}
    with tempfile.TemporaryDirectory() as folder, threadpool_limits(1):
        command = f"{args.bench} sparse-autoencoder --training --repeats 1 --device cpu --json --dump {folder}"
        for _ in range(args.repeats):
            made = json.loads(subprocess.run(command.split(), check=True, capture_output=True, text=True).stdout)
            seconds["ours"].append(made["seconds"])
            costs["ours"] = made["cost"]
            rows, theta = (np.load(Path(folder, name)).astype(np.float64) for name in ("rows.npy", "theta.npy"))
            options = dict(maxiter=ITERATIONS, maxcor=args.history, maxfun=10**6, ftol=0, gtol=0)
            start = time.perf_counter()
            result = minimize(objective, theta.ravel(), (rows,), "L-BFGS-B", True, options=options)
            seconds["scipy"].append(time.perf_counter() - start)
            costs["scipy"] = float(result.fun)
        start_cost = float(objective(theta.ravel(), rows)[0])
    assert abs(start_cost / made["cost_start"] - 1) < 1e-5, (start_cost, made["cost_start"])
    if args.json:
        print(json.dumps({"seconds": seconds, "costs": costs, "cost_start": start_cost}))
        return
    for name, label in [("ours", "ours, f32"), ("scipy", f"SciPy {scipy.__version__}, f64")]:
        times = seconds[name]
        print(f"{label:20} {statistics.median(times):6.3f} s ({min(times):.3f} to {max(times):.3f}), cost {start_cost:.4f} -> {costs[name]:.6f}")


if __name__ == "__main__":
    main()
