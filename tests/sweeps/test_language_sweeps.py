"""The sweeps of the language task can be carried out as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmf.sweeps import load_sweep

FOLDER = Path(__file__).parents[2] / "simulations" / "language"
SWEEPS = sorted(path for path in FOLDER.glob("*.toml") if path.stem != "base")


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_sweeps_of_the_language_task(path: Path) -> None:
    sweep = load_sweep(path)
    assert sweep.metric == "perplexity"
    assert sweep.baseline == "identity"
    assert not {*sweep.seeds} & {*sweep.tuning_seeds}
    results = (FOLDER.parents[1] / "docs" / "results" / "language.md").read_text(encoding="utf-8")
    assert f"simulations/language/{path.name}" in results
    for cell in sweep.cells:
        assert f"| {cell.variant} |" in results
