"""The pages of the papers: every numbered item has a row, all names in it exist, the counts are right."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from fedmf.factorization import bsr

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "papers"
#: The numbered items found in each paper's text, appendices included.
LABELS: dict[str, list[str]] = json.loads(Path(__file__).with_name("items.json").read_text(encoding="utf-8"))
HEADS = "| item | what it says | API | test | reproduced by | agreement |"
VERDICTS = ("real", "part", "not run")
KINDS = {
    *("Theorem", "Lemma", "Proposition", "Corollary", "Definition", "Algorithm", "Table", "Figure"),
    *("Remark", "Example", "Assumption", "Property", "Problem"),
}


def modules(folder: str, *names: str) -> list[ModuleType]:
    """Scripts of a folder of simulations/ as modules."""
    place = str(ROOT / "simulations" / folder)
    sys.path.insert(0, place)
    try:
        return [importlib.import_module(name) for name in names]
    finally:
        sys.path.remove(place)


(ALL_ITEMS,) = modules("reproduce", "all_items")
(GAMMAS,) = modules("accounting", "gamma_bifr_gammas")


@dataclass(frozen=True)
class Row:
    """One row of a page."""

    label: str
    says: str
    names: tuple[str, ...]
    tests: tuple[str, ...]
    sources: tuple[str, ...]
    verdict: str
    remark: str


def rows(text: str) -> list[Row]:
    """Of a page's table."""
    found, inside = [], False
    for line in text.splitlines():
        inside = line == HEADS or (inside and line.startswith("|"))
        if not inside or line == HEADS or set(line) <= set("|-"):
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        assert len(cells) == 6, line
        label, says, names, tests, sources, agreement = cells
        quoted = [tuple(re.findall(r"`([^`]+)`", cell)) for cell in (names, tests, sources)]
        links = tuple(re.findall(r"\]\(([^)#]+)", sources))
        verdict = re.match(r"\*\*(.+?)\*\*(?:: (.+))?$", agreement)
        assert verdict is not None, line
        found.append(Row(label, says, quoted[0], quoted[1], quoted[2] + links, verdict[1], verdict[2] or ""))
    return found


def page(name: str) -> tuple[str, list[Row]]:
    """Text and rows."""
    text = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    return text, rows(text)


def count_line(found: list[Row]) -> str:
    """What a page has to say on top."""
    counts = Counter(row.verdict for row in found)
    return f"{len(found)} items: " + ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS) + "."


def mistakes(found: list[Row], labels: list[str]) -> list[str]:
    """All that is wrong with the rows of a page, a line each."""
    wrong = [f"no row: {label}" for label in labels if label not in {row.label for row in found}]
    wrong += [f"no such item: {row.label}" for row in found if row.label not in labels]
    wrong += [f"twice: {label}" for label, times in Counter(row.label for row in found).items() if times > 1]
    for row in found:
        wrong += [f"{row.label}: no such name {name}" for name in row.names if not is_importable(name)]
        wrong += [f"{row.label}: no such test {test}" for test in row.tests if not is_test(test)]
        wrong += [f"{row.label}: no such source {source}" for source in row.sources if not is_source(source)]
        if row.verdict not in VERDICTS:
            wrong.append(f"{row.label}: verdict {row.verdict}")
        if row.verdict == "real" and not row.tests + row.sources:
            wrong.append(f"{row.label}: nothing shows that it is real")
        if row.verdict != "real" and len(row.remark) < 10:
            wrong.append(f"{row.label}: what is missing is not said")
    return wrong


def is_importable(name: str) -> bool:
    """Whether a dotted name below fedmf exists."""
    module, _, attribute = name.rpartition(".")
    return name.startswith("fedmf") and bool(module) and hasattr(importlib.import_module(module), attribute)


def is_test(name: str) -> bool:
    """Whether FILE::FUNCTION exists."""
    file, _, function = name.partition("::")
    path = ROOT / file
    return (
        path.is_file() and re.search(rf"^def {function}\(", path.read_text("utf-8"), re.MULTILINE) is not None
    )


def is_source(name: str) -> bool:
    """Whether an item of `fedmf reproduce`, a script or a page exists."""
    if name.startswith("fedmf reproduce "):
        return name.removeprefix("fedmf reproduce ") in ALL_ITEMS.CATALOGUE
    return (ROOT / name).is_file() or (PAGES / name).is_file()


@pytest.mark.parametrize("name", LABELS)
def test_every_item_has_an_answer_that_exists(name: str) -> None:
    text, found = page(name)
    assert mistakes(found, LABELS[name]) == []
    assert count_line(found) in text.splitlines()[:4]


def test_every_page_is_of_a_paper_and_the_index_names_it() -> None:
    assert {path.stem for path in PAGES.glob("*.md")} == set(LABELS)
    index = (ROOT / "docs" / "project" / "papers.md").read_text(encoding="utf-8")
    total: list[Row] = []
    for name in LABELS:
        _, found = page(name)
        assert f"(../papers/{name}.md)" in index
        assert count_line(found) in index
        total.extend(found)
    counts = Counter(row.verdict for row in total)
    together = (
        f"{len(total)} items, {counts['real']} real, {counts['part']} part, {counts['not run']} not run"
    )
    assert together in (ROOT / "docs" / "project" / "coverage.md").read_text(encoding="utf-8")


def test_labels_are_of_numbered_kinds() -> None:
    for labels in LABELS.values():
        for label in labels:
            kind, _, number = label.partition(" ")
            assert kind in KINDS, label
            assert re.fullmatch(r"([A-F]\.)?\d+(\.\d+)?", number), label


def test_a_missing_row_a_false_name_and_an_empty_reason_are_found() -> None:
    good = Row("Lemma 1", "", ("fedmf.factorization.bisr",), (), ("fedmf reproduce jme-fig5",), "real", "")
    assert mistakes([good], ["Lemma 1"]) == []
    bad = [
        Row("Lemma 2", "", ("fedmf.factorization.bisrr",), (), ("fedmf reproduce jme-fig55",), "real", ""),
        Row("Lemma 3", "", ("numpy.array",), ("tests/papers/test_pages.py::test_nothing",), (), "part", ""),
        Row("Lemma 3", "", (), (), (), "real", ""),
    ]
    found = mistakes(bad, ["Lemma 1", "Lemma 2"])
    assert [line.split(":")[0] for line in found] == [
        "no row", "no such item", "no such item", "twice", "Lemma 2", "Lemma 2",
        "Lemma 3", "Lemma 3", "Lemma 3", "Lemma 3",
    ]  # fmt: skip


def test_memory_of_the_examples_of_bandmf() -> None:
    """Examples 3.1 to 3.3: vectors kept, of 4-byte numbers, on each machine: about 1 GB."""
    for bands, parameters, machines in ((64, 4e6, 1), (128, 128e6, 64), (4096, 4e6, 64)):
        kept = bsr(bands, 2 * bands).recurrence().memory_vectors
        assert kept == bands - 1
        assert 4 * kept * parameters / machines == pytest.approx(1e9, rel=0.03)


def test_gammas_of_bifr_are_where_the_amplified_error_is_least() -> None:
    """Two cells of γ-BIFR's Table 1: the γ of the paper against others three steps away and BISR's ½."""
    contract = GAMMAS.CONTRACTS["IMDb"]
    for bands, epsilon, paper in ((4, 4.0, 0.75), (64, 8.0, 0.40)):
        strategies = GAMMAS.inverse_roots(bands, contract)
        tried = {gamma: strategies[gamma] for gamma in sorted({paper, paper - 0.15, paper + 0.15, 0.5})}
        grid = GAMMAS.amplified({round(g, 2): C for g, C in tried.items()}, contract, epsilon)
        assert grid.best == paper
