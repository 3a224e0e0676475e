"""`fedmf reproduce`: a part of the list is computed anew, and a stale result or a new difference is found."""

from __future__ import annotations

import dataclasses
import importlib
import re
import shutil
import sys
from pathlib import Path

import pytest

from fedmf.cli.app import run as fedmf
from fedmf.cli.reproduce import runner

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
FOLDER = ROOT / "simulations" / "reproduce"
sys.path.insert(0, str(FOLDER))
items, reading, verdicts, all_items = map(
    importlib.import_module, ("items", "reading", "verdicts", "all_items")
)
sys.path.remove(str(FOLDER))
CATALOGUE = all_items.CATALOGUE
#: Pages that are no results of one script: times of a machine, and sweeps by `fedmf sweep`.
NO_ITEMS = {
    "apps",
    "benchmarks",
    "engine",
    "gpu",
    "scale",
    "design",
    "compare_jax_privacy",
    "language",
    "lora",
    "jme-adam",
    "optimizers",
    "mistakes",
    "missing-cells",
    "raw-data",
}


def test_a_part_of_the_list_agrees_and_is_current(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """About 20 seconds: closed forms, pictures, exact limits and a short simulation."""
    part = ["lambda-cgd-table4", "lambda-cgd-fig6", "bandmf-fig11", "nu-dp-ftrl"]
    assert fedmf(["reproduce", *part, "--out", str(tmp_path)]) == 0
    shown = capfd.readouterr().out
    assert shown.count("ok   ") == 2 * len(part)
    assert (tmp_path / "lambda-cgd-fig6.png").stat().st_size > 10_000


@pytest.mark.parametrize("name", CATALOGUE)
def test_items_name_what_exists(name: str) -> None:
    item = CATALOGUE[name]
    assert item.name == name
    for command in filter(None, (item.quick, item.full)):
        assert (ROOT / "simulations" / command[0]).is_file()
    for result in (*item.results, *item.kept):
        assert (RESULTS / result).is_file(), result


def test_every_page_is_of_an_item() -> None:
    pages = {str(path.relative_to(RESULTS).with_suffix("")) for path in RESULTS.rglob("*.md")}
    named = {str(Path(result).with_suffix("")) for item in CATALOGUE.values() for result in item.results}
    assert pages - named == NO_ITEMS


def test_committed_pages_agree_with_the_papers_or_say_why() -> None:
    """The full tables as they are committed: no difference without a reason, and most need none."""
    compared = 0
    for item in CATALOGUE.values():
        verdict = verdicts.judge(item, RESULTS, RESULTS)
        assert verdict.good, verdict
        if match := re.search(r"in (\d+) of (\d+)", verdict.text):
            compared += int(match[2])
    assert compared > 200


def test_a_changed_figure_is_stale(tmp_path: Path) -> None:
    """One digit of the committed page, of a picture's curve, and of an estimate beyond its interval."""
    for name, old, new in (
        ("table4.md", "| 33.47 | 33.463 |", "| 33.47 | 33.563 |"),
        ("gamma-bifr-amplified.md", "4.55 / 4.53 ± 0.01", "4.55 / 4.63 ± 0.01"),
    ):
        item = next(item for item in CATALOGUE.values() if name in item.results)
        item = dataclasses.replace(item, results=(name,))
        text = (RESULTS / name).read_text(encoding="utf-8")
        assert old in text
        (tmp_path / name).write_text(text.replace(old, new), encoding="utf-8")
        verdict = verdicts.judge(item, RESULTS, tmp_path)
        assert not verdict.good
        assert "STALE" in verdict.text
    curves = CATALOGUE["lambda-cgd-fig6"]
    for result in curves.results:
        shutil.copy(RESULTS / result, tmp_path)
    path = tmp_path / curves.results[0]
    path.write_text(re.sub(r"0\.9(\d+)\]", r"0.8\1]", path.read_text(), count=1))
    assert "STALE" in verdicts.judge(curves, RESULTS, tmp_path).text


def test_a_difference_from_the_paper_without_a_reason_is_no_agreement(tmp_path: Path) -> None:
    page = tmp_path / "table4.md"
    page.write_text("| mechanism | paper | fedmf |\n|---|---|---|\n| BISR (p=2) | 48.45 | 49.2 |\n")
    item = dataclasses.replace(CATALOGUE["lambda-cgd-table4"], results=("table4.md",))
    verdict = verdicts.judge(item, tmp_path, tmp_path)
    assert not verdict.good
    assert "unexplained" in verdict.text
    explained = dataclasses.replace(item, known=(items.Known("BISR", "of a test"),))
    assert verdicts.judge(explained, tmp_path, tmp_path).good


def test_what_was_not_written_is_said(tmp_path: Path) -> None:
    assert "was not written" in verdicts.judge(CATALOGUE["jme-fig5"], tmp_path, RESULTS).text


@pytest.mark.parametrize(
    ("cell", "value", "half_width", "paper"),
    [
        ("4.55 / 4.53 ± 0.01, -0.4 %; bands 256", 4.53, 0.01, 4.55),
        ("24.45 / 24.47, +0.1 %", 24.47, 0.0, 24.45),
    ],
)
def test_cells_are_read(tmp_path: Path, cell: str, value: float, half_width: float, paper: float) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"| a | ε = 8 |\n|---|---|\n| b | {cell} |\n\ntext\n")
    (figure,) = reading.figures(page)
    assert (figure.value, figure.half_width, figure.paper) == (value, half_width, paper)
    assert figure.row == "b, ε = 8"


def test_errors_are_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert fedmf(["reproduce", "lambda-cgd-fgi6"]) == 2
    assert "Did you mean lambda-cgd-fig6?" in capfd.readouterr().err
    assert fedmf(["reproduce", "all", "--quick", "--full"]) == 2
    with pytest.raises(ValueError, match="must run from a checkout"):
        runner(tmp_path / "site-packages" / "fedmf")
