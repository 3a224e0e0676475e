"""Mistakes that once ended in an error of Python or torch, or in none, get a line that helps."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "simulations"))

from mistakes import MISTAKES, Mistake, made, write_files

#: Those of `simulations/mistakes.py` that need no run and no stream, by kind.
CHOSEN = {
    "configurations": ("a table that does not exist", "a negative layer"),
    "impossible combinations": ("all users held out",),
    "streams": (
        "no clip norm",
        "another first row",
        "dimension as text",
        "rows None",
        "a share of false alarms above 1",
        "absent rows to score",
    ),
    "calendar releases": ("a month",),
    "silos": ("a misspelt key", "two people with one name", "no training"),
    "Flower apps": ("users as text", "a state dict as the model"),
    "Python": (
        "a run by name",
        "a number as privacy",
        "a name as server",
        "another device",
        "NaN weights",
        "one class",
        "an array of text",
        "complex numbers",
    ),
    "designs": ("-2 silos",),
    "sweeps": ("an axis that is a number",),
}


def chosen() -> list[Mistake]:
    found = []
    for kind, names in CHOSEN.items():
        by_name = {mistake.what: mistake for mistake in MISTAKES[kind]}
        found += [by_name[name] for name in names]
    return found


@pytest.mark.parametrize("mistake", chosen(), ids=lambda mistake: mistake.what)
def test_a_mistake_is_refused_in_a_line_that_helps(
    mistake: Mistake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDMF_MARKS", str(tmp_path))
    for folder in ("here", "original"):
        (tmp_path / folder).mkdir()
    write_files(tmp_path / "original")
    found, _, message = made(mistake, tmp_path / "here", tmp_path / "original")
    assert not found, message
