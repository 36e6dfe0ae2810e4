"""The notebooks run from top to bottom on a small sweep, and lie in git without outputs."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from study.compose import compose
from study.execute import execute

NOTEBOOKS = sorted((Path(__file__).parents[2] / "analysis/notebooks").glob("*.ipynb"))


def test_there_are_three():
    assert [p.stem for p in NOTEBOOKS] == ["new_claim", "probe", "sweep"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("notebooks") / "runs"
    for norm in ("bn", "none"):
        settings = [
            "scale=smoke",
            "probes=init",
            "lr=0.1",
            f"norm={norm}",
            f"runs_dir={folder}",
            "device=cpu",
        ]
        execute(compose(settings))
    return folder


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_it_lies_in_git_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in code_cells(notebook):
        assert cell.outputs == []
        assert cell.execution_count is None
        assert set(cell.metadata) <= {"tags"}
    assert set(notebook.metadata) <= {"kernelspec", "language_info"}
    assert "/home/" not in path.read_text()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_it_runs(path, runs, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    (given,) = [c for c in code_cells(notebook) if "parameters" in c.metadata.get("tags", [])]
    assert "runs = " in given.source
    given.source = f"runs = {str(runs)!r}"
    resources = {"metadata": {"path": str(tmp_path)}}  # wherever it is started
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    shown = [out for c in code_cells(notebook) for out in c.outputs]
    assert not [out for out in shown if out.output_type == "stream" and out.name == "stderr"]
    text = "\n".join(str(out.get("data", out.get("text"))) for out in shown)
    assert {
        "sweep": "digits" not in text and "<svg" in text and "bn_permits_larger_rates" in text,
        "probe": "gradient_tails" in text and "<svg" in text and "Kurtosis: bn" in text,
        "new_claim": "undetermined · needs" in text and "no difference" in text,
    }[path.stem]
