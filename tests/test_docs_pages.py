"""The pages of docs/: how long they are, whom they address, what glossary and pitfalls promise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
#: Words of all pages at the top of docs/, which are those that users read.
MOST_WORDS = 60_000
HANDLED = ("refused", "warned", "named", "documented")


def rows(page: str) -> list[list[str]]:
    """Cells of all rows of tables, heads and lines left out."""
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_the_top_level_is_what_a_person_can_read() -> None:
    assert sum(len(page.read_text("utf-8").split()) for page in DOCS.glob("*.md")) <= MOST_WORDS


@pytest.mark.parametrize("place", ["", "theory", "trails"])
def test_pages_say_for_whom_they_are_before_anything_else(place: str) -> None:
    for page in (DOCS / place).glob("*.md"):
        text = re.sub(r"<!--.*?-->", "", page.read_text("utf-8"), flags=re.DOTALL)
        assert re.match(r"# .+\n+\*?(For|[A-Z][a-z]+ for) \w", text), page.name


def test_the_glossary_has_each_symbol_with_a_page_that_defines_it() -> None:
    found = {row[0]: row for row in rows((DOCS / "glossary.md").read_text("utf-8"))}
    for symbol in (
        "n",
        "k",
        "b",
        "m",
        "d",
        "ζ",
        "σ",
        "μ",
        "ε",
        "δ",
        "C",
        "B",
        "A",
        "s, sens(C)",
        "θ_t",
        "ρ",
        "p",
    ):
        assert "](" in found[symbol][-1], symbol
    assert all("](" in row[-1] for row in found.values() if row[0] not in ("symbol", "term"))


def test_pitfalls_say_how_each_is_handled_and_quote_what_is_seen() -> None:
    """Each quotation is in the package, or in the record of slips made on purpose."""
    page = (DOCS / "pitfalls.md").read_text("utf-8")
    package = "".join(file.read_text("utf-8") for file in (ROOT / "fedmf").rglob("*.py"))
    sources = re.sub(r'"\s*\n\s*f?"', "", package) + (DOCS / "results/mistakes.md").read_text("utf-8")
    listed = [row for row in rows(page) if row[0] != "pitfall"]
    assert len(listed) > 50
    for pitfall, handled, seen, mend in listed:
        assert handled.startswith(HANDLED), pitfall
        assert seen
        assert mend
        for quoted in re.findall(r"[`*]([^`*]{6,})[`*]", seen):
            parts = [part.strip(" ?.") for part in quoted.split("…")]
            assert all(part in sources for part in parts if "=" not in part), quoted
