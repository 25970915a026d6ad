"""Sparse coding by others on the patches that `cargo run -p chandlery-bins --example pursuit -- --out FOLDER` wrote.

    pip install numpy spams-bin dictlearn[numba] scikit-learn
    python bins/peers/pursuit.py FOLDER [--nonzero 8] [--threads 2] [--runs 5]

One line a measurement, as the example prints: median and least microseconds a signal, relative residual in f64. A peer that is
not installed is left out with a line that says so.

What to know before comparing:
- SPAMS's `omp` chooses by least squares; compare it with our `ols`. In f32 it needs `eps=0.` or may return zeros.
- scikit-learn and dictlearn choose by correlation; compare them with our `bomp`. They code the first `--slow` signals only, so that
  their residual is that of `--example pursuit -- --signals 10000`.
- OpenBLAS before 0.3.20 does not know recent processors and falls back to SSE2: name the kernels by OPENBLAS_CORETYPE,
  which is set here when the processor has AVX-512 and the environment names none.
"""
import argparse
import os
import statistics
import time
import warnings


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', help='where signals.npy and dictionary-N.npy lie')
    parser.add_argument('--nonzero', type=int, default=8, help='atoms of a signal')
    parser.add_argument('--threads', type=int, default=os.cpu_count(), help='of every peer')
    parser.add_argument('--runs', type=int, default=5, help='timed runs, after one that is not')
    parser.add_argument('--slow', type=int, default=10000, help='signals for peers that take over 20 us each')
    return parser.parse_args()


ARGS = arguments()
for name in ('OMP', 'OPENBLAS', 'MKL', 'NUMBA'):  # before NumPy reads them
    os.environ[f'{name}_NUM_THREADS'] = str(ARGS.threads)
try:
    with open('/proc/cpuinfo') as cpuinfo:
        if ' avx512bw' in cpuinfo.read():
            os.environ.setdefault('OPENBLAS_CORETYPE', 'SkylakeX')
except OSError:
    pass

import numpy as np  # noqa: E402

warnings.filterwarnings('ignore', message='.*linear dependence')  # scikit-learn says it for each signal coded exactly


def report(peer, what, signals, dictionary, code):
    """`code()` gives dense or sparse codes, a row a signal."""
    code()
    times = []
    for _ in range(ARGS.runs):
        start = time.perf_counter()
        codes = code()
        times.append((time.perf_counter() - start) / len(signals) * 1e6)
    left = signals.astype(np.float64) - codes.astype(np.float64) @ dictionary.astype(np.float64)
    residual = np.linalg.norm(left) / np.linalg.norm(signals.astype(np.float64))
    print(f'{peer} | {what} | n {len(dictionary)}, m {len(signals)} | {statistics.median(times):.3f} us | least {min(times):.3f} '
          f'| residual {residual:.6f}', flush=True)


def spams_omp(signals, dictionary):
    import spams
    for dtype in (np.float32, np.float64):
        columns = np.asfortranarray(signals.T, dtype)
        atoms = np.asfortranarray(dictionary.T, dtype)
        for threads in sorted({1, ARGS.threads}):
            code = lambda: spams.omp(columns, atoms, L=ARGS.nonzero, eps=0., numThreads=threads).T
            report('spams', f'omp (OLS) {dtype.__name__} {threads} threads', signals, dictionary, code)


def dictlearn_omp(signals, dictionary):
    import dictlearn
    few, atoms = signals[:ARGS.slow].astype(np.float64), dictionary.astype(np.float64)
    code = lambda: dictlearn.sparse_encode(few, atoms, algorithm='omp', n_nonzero_coefs=ARGS.nonzero)
    report('dictlearn', 'omp float64', few, atoms, code)


def sklearn_omp(signals, dictionary):
    from sklearn.decomposition import sparse_encode
    few, atoms = signals[:ARGS.slow].astype(np.float64), dictionary.astype(np.float64)
    code = lambda: sparse_encode(few, atoms, algorithm='omp', n_nonzero_coefs=ARGS.nonzero, n_jobs=ARGS.threads)
    report('scikit-learn', f'omp float64 {ARGS.threads} jobs', few, atoms, code)


def main():
    signals = np.load(os.path.join(ARGS.folder, 'signals.npy'))
    names = sorted(name for name in os.listdir(ARGS.folder) if name.startswith('dictionary-'))
    for name in names:
        dictionary = np.load(os.path.join(ARGS.folder, name))
        for peer in (spams_omp, dictlearn_omp, sklearn_omp):
            try:
                peer(signals, dictionary)
            except ImportError as missing:
                print(f'{peer.__name__} | not installed: {missing}', flush=True)


if __name__ == '__main__':
    main()
