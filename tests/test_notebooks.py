"""The notebooks of the documentation: executed again, they print what they are committed with."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from support.notebooks import NOTEBOOKS, printed

ROOT = NOTEBOOKS.parents[1]
NUMBER = re.compile(r"-?\d+\.?\d*(?:e-?\d+)?")


def words(text: str) -> list[str]:
    return NUMBER.sub("", text).replace("[", " ").replace("]", " ").split()


@pytest.mark.weekly
@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_is_committed_with(path: Path, tmp_path: Path) -> None:
    """Words and pictures are equal, numbers nearly: trained models differ in late digits between machines."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.notebooks", path.stem, "--into", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=3000,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    committed, again = (printed(nbformat.read(place / path.name, 4)) for place in (NOTEBOOKS, tmp_path))
    assert len(committed) >= 3
    for shown, found in zip(committed, again, strict=True):
        assert words(found) == words(shown)
        expected = [float(number) for number in NUMBER.findall(shown)]
        assert [float(number) for number in NUMBER.findall(found)] == pytest.approx(
            expected, rel=0.05, abs=0.02
        )


def test_what_a_cell_writes_may_come_in_pieces() -> None:
    """On a loaded machine a kernel hands on six lines in two pieces; a warning between stays where it was."""
    pieces = [("stdout", "a\nb\n"), ("stdout", "c\n"), ("stderr", "w\n"), ("stdout", "d\n")]
    cell = nbformat.v4.new_code_cell(
        outputs=[nbformat.v4.new_output("stream", name=name, text=text) for name, text in pieces]
    )
    assert printed(nbformat.v4.new_notebook(cells=[cell])) == ["a\nb\nc\n", "w\n", "d\n"]
