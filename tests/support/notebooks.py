"""The notebooks of docs/notebooks: executed as a reader would, each in a kernel and a folder of its own.

python -m tests.support.notebooks [NAME...] [--into FOLDER]

writes them with their outputs, which are committed, into the folder, or over themselves.
"""

from __future__ import annotations

import sys
import tempfile
from itertools import groupby
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).resolve().parents[2] / "docs" / "notebooks"


def executed(path: Path) -> nbformat.NotebookNode:
    """The notebook with outputs of its own; an error in a cell is raised."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        NotebookClient(
            notebook, timeout=1200, startup_timeout=600, record_timing=False, resources=resources
        ).execute()
    return notebook


def printed(notebook: nbformat.NotebookNode) -> list[str]:
    """What each cell of code wrote, and the word "picture" for each picture.

    A kernel hands on what a cell writes by its own clock: however many pieces it took, they are one text.
    """
    return [
        text
        for cell in notebook.cells
        if cell.cell_type == "code"
        for written, outputs in groupby(cell.outputs, lambda output: output.get("name", ""))
        for text in (["".join(output.text for output in outputs)] if written else map(shown, outputs))
    ]


def shown(output: nbformat.NotebookNode) -> str:
    """A cell's result that is not text it wrote."""
    return "picture" if "image/png" in output.get("data", {}) else str(output)


def execute(names: list[str], into: Path) -> None:
    """Write the notebooks with these names, or all, with their outputs into a folder."""
    for path in [NOTEBOOKS / f"{name}.ipynb" for name in names] or sorted(NOTEBOOKS.glob("*.ipynb")):
        notebook = executed(path)
        notebook.metadata = {"kernelspec": notebook.metadata.kernelspec, "language_info": {"name": "python"}}
        nbformat.write(notebook, into / path.name)


if __name__ == "__main__":
    at = sys.argv.index("--into") if "--into" in sys.argv else len(sys.argv)
    execute(sys.argv[1:at], Path(*sys.argv[at + 1 :]) if sys.argv[at:] else NOTEBOOKS)
