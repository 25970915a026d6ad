"""Contrastive divergence on the CPU, 784 x 500, minibatches of 100: scikit-learn's BernoulliRBM and `bench rbm`, in turn.

    pip install scikit-learn
    cargo build --bin bench
    python bins/peers/rbm.py [--bench target/debug/bench] [--rows 60000] [--repeats 5]

Both take f32 rows of the same shape. An epoch of ours is CD-1 with mean reconstructions, without momentum and decay; of
scikit-learn's PCD-1 with drawn ones: the same products, one draw more. The time does not depend on the data, so that the rows are drawn:
binary with a mean of 0.13, that of MNIST's pixels. Prints a line a program: median, fastest and slowest seconds of an epoch.
"""

import argparse
import json
import os
import statistics
import subprocess
import time
from pathlib import Path

# OpenBLAS that does not know a recent processor falls back to old kernels.
if " avx512bw" in Path("/proc/cpuinfo").read_text():
    os.environ["OPENBLAS_CORETYPE"] = "SkylakeX"

import numpy as np
from sklearn import __version__
from sklearn.neural_network import BernoulliRBM

N_VISIBLE, N_HIDDEN, BATCH, MEAN = 784, 500, 100, 0.13


def sklearn_epoch(rows):
    rbm = BernoulliRBM(n_components=N_HIDDEN, batch_size=BATCH, learning_rate=0.1, n_iter=1, random_state=0)
    start = time.perf_counter()
    rbm.fit(rows)
    return time.perf_counter() - start


def our_epoch(bench, n_rows):
    """Seconds of an epoch by one run of the benchmark, which prints seconds for a million rows."""
    command = f"{bench} rbm --device cpu --size {N_VISIBLE}x{N_HIDDEN} --batch {BATCH} --precision f32"
    command += " --momentum 0 --weight-decay 0 --repeats 1 --json"
    (row,) = json.loads(subprocess.run(command.split(), check=True, capture_output=True, text=True).stdout)
    return row["seconds"] * n_rows / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", default="target/debug/bench", help="the built benchmark")
    parser.add_argument("--rows", type=int, default=60_000, help="rows of an epoch")
    parser.add_argument("--repeats", type=int, default=5, help="epochs of each, taken in turn")
    args = parser.parse_args()

    rows = (np.random.default_rng(0).random((args.rows, N_VISIBLE)) < MEAN).astype(np.float32)
    sklearn_epoch(rows[:BATCH])  # the first call loads the libraries
    seconds = {"ours": [], f"scikit-learn {__version__}": []}
    ours, theirs = seconds.values()
    for _ in range(args.repeats):
        ours.append(our_epoch(args.bench, args.rows))
        theirs.append(sklearn_epoch(rows))
    for name, times in seconds.items():
        low, high = min(times), max(times)
        print(f"{name:20} {statistics.median(times):6.3f} s an epoch of {args.rows} rows ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
