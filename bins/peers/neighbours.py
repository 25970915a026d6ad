"""Nearest neighbours by other libraries, of the rows that `bench neighbours` writes, with the recall of each.

    pip install numpy; and those of torch, pynndescent, faiss-cpu and scikit-learn that are to be timed
    cargo run --bin bench -- neighbours --rows 200000 --features 50 --clusters 1 --directions 50 --repeats 1 --dump DIR
    python bins/peers/neighbours.py DIR/rows.npy [--k 90] [--systems torch,pynndescent,faiss-flat,faiss-ivf] [--device cpu] [--threads 2] [--json]

Seconds are those from rows in memory (of torch: on the device) to indices in memory; pynndescent compiles its code first, on other rows.
Recall is the share of neighbours that are no farther than the k-th nearest, over 512 rows drawn at random, by float64 distances to all rows. Systems
that are not installed are left out, with a note.

What to know before comparing: torch compares all pairs, in blocks, and keeps the k best of each block by `topk`; TF32 is off unless --tf32.
pynndescent runs with its defaults. faiss-ivf searches `--probes` of 4 sqrt(n) lists. Seconds of processors are those of all threads, for machines
that have other work.
"""
import argparse
import importlib
import json
import os
import sys
import time

PARSER = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
PARSER.add_argument("rows", help="a .npy file of float32, [n, n_features]")
PARSER.add_argument("--k", type=int, default=90)
PARSER.add_argument("--systems", default="torch,pynndescent,faiss-flat,faiss-ivf")
PARSER.add_argument("--device", default="cpu", help="of torch: cpu or cuda")
PARSER.add_argument("--tf32", action="store_true", help="let torch multiply in TF32")
PARSER.add_argument("--threads", type=int, default=2)
PARSER.add_argument("--probes", type=int, default=64)
PARSER.add_argument("--block", type=int, default=4096, help="queries, and 16 times as many rows, of a product of torch")
PARSER.add_argument("--seed", type=int, default=0)
PARSER.add_argument("--json", action="store_true", help="print one JSON object for each system")
ARGS = PARSER.parse_args()

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[name] = str(ARGS.threads)

import numpy as np  # noqa: E402: threads are set before


def timed(search):
    """Seconds by the clock and of the processors, and what was found."""
    clock, processors = time.perf_counter(), time.process_time()
    near = search()
    return time.perf_counter() - clock, time.process_time() - processors, near


def of_torch(rows):
    torch = importlib.import_module("torch")
    torch.set_num_threads(ARGS.threads)
    torch.backends.cuda.matmul.allow_tf32 = ARGS.tf32
    x = torch.from_numpy(rows).to(ARGS.device)
    n, k = len(x), ARGS.k

    def wait():
        if ARGS.device != "cpu":
            torch.cuda.synchronize()

    def search():
        centred = x - x.mean(0)
        halves = centred.square().sum(1) / 2
        near = torch.empty(n, k, dtype=torch.int64, device=x.device)
        apart = torch.empty(n, k, device=x.device)
        for start in range(0, n, ARGS.block):
            own = centred[start : start + ARGS.block]
            best, at = None, None
            for first in range(0, n, 16 * ARGS.block):
                part = centred[first : first + 16 * ARGS.block]
                half = halves[None, first : first + len(part)] - own @ part.T
                diagonal = torch.arange(start, start + len(own), device=x.device) - first
                inside = (diagonal >= 0) & (diagonal < len(part))
                half[torch.nonzero(inside)[:, 0], diagonal[inside]] = torch.inf
                value, index = half.topk(min(k, len(part)), dim=1, largest=False)
                index += first
                if best is not None:
                    value, index = torch.cat([best, value], 1), torch.cat([at, index], 1)
                    value, among = value.topk(k, dim=1, largest=False)
                    index = index.gather(1, among)
                best, at = value, index
            near[start : start + len(own)] = at
            apart[start : start + len(own)] = (2 * (best + halves[start : start + len(own), None])).clamp(min=0).sqrt()
        wait()
        return near, apart

    if ARGS.device != "cpu":
        search()  # loads kernels
    return timed(lambda: search()[0].cpu().numpy())


def of_pynndescent(rows):
    from pynndescent import NNDescent

    small = np.random.default_rng(ARGS.seed).standard_normal((5000, rows.shape[1]), dtype=np.float32)
    NNDescent(small, n_neighbors=ARGS.k + 1, random_state=ARGS.seed, n_jobs=ARGS.threads)
    return timed(lambda: NNDescent(rows, n_neighbors=ARGS.k + 1, random_state=ARGS.seed, n_jobs=ARGS.threads).neighbor_graph[0])


def of_faiss(rows, lists):
    import faiss

    faiss.omp_set_num_threads(ARGS.threads)

    def search():
        flat = faiss.IndexFlatL2(rows.shape[1])
        index = faiss.IndexIVFFlat(flat, rows.shape[1], int(4 * len(rows) ** 0.5)) if lists else flat
        if lists:
            index.train(rows[np.random.default_rng(ARGS.seed).permutation(len(rows))[: 50 * index.nlist]])
            index.nprobe = ARGS.probes
        index.add(rows)
        return index.search(rows, ARGS.k + 1)[1]

    return timed(search)


SYSTEMS = {
    "torch": of_torch,
    "pynndescent": of_pynndescent,
    "faiss-flat": lambda rows: of_faiss(rows, False),
    "faiss-ivf": lambda rows: of_faiss(rows, True),
}


class Recall:
    """The share of the nearest that some rows have, by float64."""

    def __init__(self, rows):
        self.rows = rows
        self.picks = np.random.default_rng(ARGS.seed + 1).choice(len(rows), min(512, len(rows)), replace=False)
        self.reach = np.empty(len(self.picks))
        for at, i in enumerate(self.picks):
            squares = self.squares(i, slice(None))
            squares[i] = np.inf
            self.reach[at] = np.partition(squares, ARGS.k - 1)[ARGS.k - 1]

    def squares(self, i, among):
        total = np.zeros(len(self.rows[among]))
        for first in range(0, self.rows.shape[1], 16):
            own = self.rows[i, first : first + 16].astype(np.float64)
            total += ((self.rows[among, first : first + 16] - own) ** 2).sum(1)
        return total

    def __call__(self, near):
        """Of lists that may hold the row itself, and -1 for none."""
        shares = []
        for i, reach in zip(self.picks, self.reach):
            found = np.unique(near[i][(near[i] != i) & (near[i] >= 0)])
            shares.append(min(ARGS.k, (self.squares(i, found) <= reach).sum()) / ARGS.k)
        return float(np.mean(shares)), float(1.96 * np.std(shares, ddof=1) / len(shares) ** 0.5)


def main():
    rows = np.ascontiguousarray(np.load(ARGS.rows), dtype=np.float32)
    recall = Recall(rows)
    for name in ARGS.systems.split(","):
        try:
            seconds, of_processors, near = SYSTEMS[name](rows)
        except ImportError as missing:
            print(f"note: {name}: {missing}", file=sys.stderr)
            continue
        mean, error = recall(near)
        figures = {"seconds": seconds, "processor_seconds": of_processors, "recall": mean, "recall_error": error}
        if ARGS.json:
            print(json.dumps({"system": name, "n": len(rows), "n_features": rows.shape[1], "k": ARGS.k, **figures}), flush=True)
        else:
            took = f"{seconds:8.2f} s ({of_processors:.1f} s of processors)"
            print(f"{name:12} {len(rows)} x {rows.shape[1]}, k {ARGS.k}: {took}, recall {mean:.4f} ± {error:.4f}", flush=True)


if __name__ == "__main__":
    main()
