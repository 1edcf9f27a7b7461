"""The notebook in examples/ runs, and each of its cells shows something."""

import ast
import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[3] / "examples" / "buffer.ipynb"


def run_cell(source, names):
    """Run a cell like a kernel: return the value of its last expression; None without one."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, str(NOTEBOOK), "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names)


def test_the_notebook_runs(tmp_path, monkeypatch, pytestconfig):
    """From the first cell to the last, in one namespace and without its temporary directory."""
    if pytestconfig.getoption("--deliver-sealed"):
        pytest.skip("the notebook has the default settings")
    monkeypatch.setattr("tempfile.mkdtemp", lambda: str(tmp_path))
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    names = {}
    shown = [run_cell(cell, names) for cell in cells]

    opened, ingested, scan, errors, delivered, reader = shown
    assert (errors, delivered) == (75, 300)
    for value in (opened, ingested, scan, reader):
        assert value._repr_html_().startswith("<div>")
    assert "message 0" in scan._repr_html_()
    assert "closed" in opened._repr_html_()


def test_the_notebook_has_no_outputs():
    """They would be figures of another machine; a reader runs it."""
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    for cell in notebook["cells"]:
        assert cell["cell_type"] == "markdown" or (cell["outputs"], cell["execution_count"]) == ([], None)
