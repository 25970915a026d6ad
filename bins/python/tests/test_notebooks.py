"""The notebooks run from their first cell to their last, and find what they say."""

import importlib.util
import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
#: Modules that cells need, which carry their names as tags.
OPTIONAL = ["matplotlib"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "load_sample_image" in path.read_text():
        pytest.importorskip("PIL")
    names = {"__name__": "__main__"}
    for number, cell in enumerate(json.loads(path.read_text())["cells"]):
        if cell["cell_type"] != "code":
            continue
        missing = [
            name for name in cell["metadata"].get("tags", ()) if importlib.util.find_spec(name) is None
        ]
        if set(missing) & set(OPTIONAL):
            continue
        exec(compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec"), names)


def test_there_are_notebooks_without_outputs():
    assert len(NOTEBOOKS) >= 3
    for path in NOTEBOOKS:
        for cell in json.loads(path.read_text())["cells"]:
            assert not cell.get("outputs") and cell.get("execution_count") is None, path.name
