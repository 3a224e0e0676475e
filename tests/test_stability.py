"""What others build on is as docs/stability.md promises; `tests.support.release.public` renews the table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.release.public import TABLE, public, text

ROOT = Path(__file__).resolve().parents[1]


def changes(promised: dict[str, Any], now: dict[str, Any], place: str = "") -> Iterator[str]:
    """What is gone and what is new, by its place in the table."""
    for name in sorted(promised.keys() | now.keys()):
        mine, theirs = promised.get(name, {}), now.get(name, {})
        at = f"{place}{name}"
        if isinstance(mine, dict) and isinstance(theirs, dict):
            yield from changes(mine, theirs, f"{at}: ")
        else:
            yield from (f"{at}: {entry} is gone" for entry in mine if entry not in theirs)
            yield from (f"{at}: {entry} is new" for entry in theirs if entry not in mine)


@pytest.fixture(scope="module")
def promised() -> dict[str, Any]:
    return json.loads(TABLE.read_text(encoding="utf-8"))


def test_what_is_public_changes_on_purpose_only(promised: dict[str, Any]) -> None:
    now = public()
    assert list(changes(promised, now)) == []
    assert text(now) == TABLE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("fedmf", "Run"),
        ("commands", "stream"),
        ("keys", "privacy.epsilon: float"),
        ("fedmf.flower", "run_app"),
    ],
)
def test_a_change_is_seen(promised: dict[str, Any], place: str, name: str) -> None:
    kept = promised[place]
    less = {key: value for key, value in kept.items() if key != name} if isinstance(kept, dict) else None
    without = less if less is not None else [entry for entry in kept if entry != name]
    assert [line for line in changes(promised, {**promised, place: without}) if "is gone" in line] != []
    assert [line for line in changes({**promised, place: without}, promised) if "is new" in line] != []


def test_the_page_says_of_each_kind_what_is_promised(promised: dict[str, Any]) -> None:
    page = (ROOT / "docs/stability.md").read_text(encoding="utf-8")
    for words in ("`fedmf.__all__`", "`fedmf.flower`", "## Records", "tests/public.json"):
        assert words in page
