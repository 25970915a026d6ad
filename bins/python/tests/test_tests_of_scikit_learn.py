"""scikit-learn's own test files for the classes that ours take the place of."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

FILES = [
    "manifold/tests/test_t_sne.py",
    "neural_network/tests/test_rbm.py",
    "decomposition/tests/test_dict_learning.py",
    "decomposition/tests/test_pca.py",
    "linear_model/tests/test_omp.py",
]


@pytest.mark.parametrize("file", FILES)
def test_file(file):
    folder = Path(importlib.util.find_spec("sklearn").origin).parent
    path = folder / file
    if not path.exists():
        pytest.skip("this scikit-learn came without its tests")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "in_place_of_theirs",
        "-p",
        "no:cacheprovider",
        path,
    ]
    beside = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(beside)}
    run = subprocess.run(
        [*map(str, command), "-W", "ignore", "--rootdir", str(folder.parent)],
        env=environment,
        cwd=folder.parent,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr[-2000:]
