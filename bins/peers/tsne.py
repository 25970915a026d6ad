"""t-SNE by openTSNE, scikit-learn and bhtsne, and ours, on the first rows of MNIST, all judged by one evaluator.

    pip install numpy scipy scikit-learn openTSNE safetensors threadpoolctl
    cargo build --bin tsne
    python bins/peers/tsne.py [--n 10000] [--data mnist] [--systems ours,opentsne-fft,opentsne-bh,sklearn] [--threads 2] [--json]

Each system has its own default settings at perplexity 30; `bhtsne` needs `pip install bhtsne`, which compiles C++. Seconds are those from rows in
memory to the layout. The evaluator is written here, in float64: the divergence has P from the exact 90 nearest neighbours and Q over all pairs;
trustworthiness is over 12 neighbours and labels are voted for by 10, over at most 10,000 rows. The figures of `tsne evaluate` for each layout stand
beside its own, and the script fails where they differ by more than rounding.
"""
import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PERPLEXITY, NEIGHBOURS, TRUST, VOTES, MOST_ROWS, BLOCK = 30.0, 90, 12, 10, 10_000, 500


def parsed():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tsne", default="target/debug/tsne", help="our program")
    parser.add_argument("--n", type=int, default=10_000, help="rows, at most 70,000; above 60,000 all of them")
    parser.add_argument("--data", default="mnist", help="where our program finds MNIST: mnist, or a folder of its idx files")
    parser.add_argument("--systems", default="ours,opentsne-fft,opentsne-bh,sklearn", help="also bhtsne")
    parser.add_argument("--threads", type=int, default=2, help="threads of each system")
    parser.add_argument("--json", action="store_true", help="print one JSON object for each system")
    return parser.parse_args()


def nearest(rows, k, picks):
    """Squared distances and indices of the k nearest other rows: float32 products propose, float64 differences decide."""
    centred = rows - rows.mean(axis=0)
    squares = (centred * centred).sum(axis=1)
    near, apart = np.empty((len(picks), k), np.int64), np.empty((len(picks), k))
    proposed = min(k + 20, len(rows) - 1)
    for start in range(0, len(picks), BLOCK):
        own = picks[start : start + BLOCK]
        distance = squares[None] - 2 * centred[own] @ centred.T
        distance[np.arange(len(own)), own] = np.inf
        candidates = np.argpartition(distance, proposed - 1, axis=1)[:, :proposed]
        for line, (i, among) in enumerate(zip(own, candidates), start):
            exact = ((rows[among].astype(np.float64) - rows[i]) ** 2).sum(axis=1)
            first = np.lexsort((among, exact))[:k]
            near[line], apart[line] = among[first], exact[first]
    return apart, near


def affinities(apart, near):
    """P, of rows whose perplexity is found by bisection."""
    shifted = apart - apart[:, :1]
    low, high, beta = np.zeros(len(apart)), np.full(len(apart), np.inf), np.ones(len(apart))
    for _ in range(200):
        p = np.exp(-shifted * beta[:, None])
        total = p.sum(axis=1)
        entropy = np.log(total) + beta * (shifted * p).sum(axis=1) / total
        flat = entropy > math.log(PERPLEXITY)
        low, high = np.where(flat, beta, low), np.where(flat, high, beta)
        beta = np.where(np.isinf(high), 2 * beta, (low + high) / 2)
    p = np.exp(-shifted * beta[:, None])
    n, k = near.shape
    directed = csr_matrix(((p / p.sum(axis=1, keepdims=True)).ravel(), near.ravel(), np.arange(0, n * k + 1, k)), (n, n))
    return ((directed + directed.T) / (2 * n)).tocoo()


class Evaluator:
    def __init__(self, rows, labels):
        self.rows, self.labels, n = rows, labels, len(rows)
        self.p = affinities(*nearest(rows, NEIGHBOURS, np.arange(n)))
        self.picks = np.arange(n) if n <= MOST_ROWS else np.arange(MOST_ROWS) * n // MOST_ROWS

    def __call__(self, layout):
        y, n = np.asarray(layout, np.float64), len(layout)
        assert y.shape == (len(self.rows), 2) and np.isfinite(y).all()
        total = sum((1 / (1 + cdist(y[s : s + BLOCK], y, "sqeuclidean"))).sum() for s in range(0, n, BLOCK)) - n
        p, i, j = self.p.data, self.p.row, self.p.col
        kl = float((p * np.log(p * (1 + ((y[i] - y[j]) ** 2).sum(axis=1)) * total))[p > 0].sum())
        near = cKDTree(y).query(y[self.picks], TRUST + 1)[1]
        near = np.array([[j for j in line if j != i][:TRUST] for i, line in zip(self.picks, near)])
        centred = self.rows - self.rows.mean(axis=0)
        squares, excess = (centred * centred).sum(axis=1), 0
        for s in range(0, len(self.picks), BLOCK):
            own = self.picks[s : s + BLOCK]
            distance = squares[None] - 2 * centred[own] @ centred.T
            distance[np.arange(len(own)), own] = np.inf
            for line, among in zip(distance, near[s : s + BLOCK]):
                ranks = 1 + np.searchsorted(np.sort(line), line[among], "left")
                excess += np.maximum(0, ranks - TRUST).sum()
        trust = 1 - 2 * excess / (len(self.picks) * TRUST * (2 * n - 3 * TRUST - 1))
        votes = [np.bincount(self.labels[among[:VOTES]]).argmax() for among in near]
        return {"kl": kl, "trustworthiness": float(trust), "knn_label_accuracy": float(np.mean(votes == self.labels[self.picks]))}


def timed(layout):
    start = time.perf_counter()
    return np.asarray(layout()), time.perf_counter() - start


def peer(system, rows, threads):
    if system.startswith("opentsne-"):
        import openTSNE

        return timed(lambda: openTSNE.TSNE(n_jobs=threads, random_state=0, negative_gradient_method=system.split("-")[1]).fit(rows))
    if system == "sklearn":
        from sklearn.manifold import TSNE

        return timed(lambda: TSNE(n_jobs=threads, random_state=0).fit_transform(rows))
    if system == "bhtsne":
        import bhtsne

        return timed(lambda: bhtsne.tsne(rows.astype(np.float64), perplexity=PERPLEXITY, rand_seed=0))
    sys.exit(f"--systems: no such system: {system}")


def main():
    args = parsed()
    rows_of = ["--split", "train", "--max-rows", str(args.n)] if args.n <= 60_000 else []
    of_data = ["--data", args.data, *rows_of, "--threads", str(args.threads), "--device", "cpu", "--json"]

    def ours(*command):
        done = subprocess.run([args.tsne, *command, *of_data], capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        return json.loads(done.stdout)

    with tempfile.TemporaryDirectory() as folder, threadpool_limits(args.threads):
        run = Path(folder, "run")
        made = ours("train", "--skip-measures", "--out", str(run))
        rows = load_file(run / "model.safetensors")["rows"].astype(np.float32) / 255
        labels = np.loadtxt(run / "layout.csv", delimiter=",", skiprows=1, usecols=2).astype(np.int64)
        evaluator = Evaluator(rows, labels)
        for system in args.systems.split(","):
            layout, seconds = (np.load(run / "layout.npy"), made["layout_seconds"]) if system == "ours" else peer(system, rows, args.threads)
            file = Path(folder, f"{system}.npy")
            np.save(file, layout.astype(np.float32))
            figures = evaluator(np.load(file))
            by_ours = ours("evaluate", str(file))
            if args.json:
                print(json.dumps({"system": system, "n": len(rows), "seconds": seconds, **figures}), flush=True)
            else:
                print(
                    f"{system:14} {seconds:7.1f} s  KL {figures['kl']:.4f}  trustworthiness {figures['trustworthiness']:.4f}"
                    f"  label by 10 nearest points {100 * figures['knn_label_accuracy']:.2f} %",
                    flush=True,
                )
            # Labels are voted for by a sample here, and by all rows there, where there are more.
            checked = {"kl": 1e-3, "trustworthiness": 1e-4} | ({"knn_label_accuracy": 1e-3} if len(rows) <= MOST_ROWS else {})
            for name, most in checked.items():
                assert abs(figures[name] - by_ours[name]) < most, (system, name, figures[name], by_ours[name])


if __name__ == "__main__":
    # Threads are counted when libraries are loaded.
    threads = str(parsed().threads)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[name] = threads
    import numpy as np
    from safetensors.numpy import load_file
    from scipy.sparse import csr_matrix
    from scipy.spatial import cKDTree
    from scipy.spatial.distance import cdist
    from threadpoolctl import threadpool_limits

    main()
