"""A plugin for pytest that keeps what tests take: processor seconds by function, all its cases together.

Loaded by ``make seconds``; `tests.support.quick` chooses by it.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

TABLE = Path(__file__).parents[1] / "seconds.json"
#: Quicker functions are not listed.
LEAST = 0.3

_spent: defaultdict[str, float] = defaultdict(float)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    before = sum(os.times()[:4])
    try:
        return (yield)
    finally:
        _spent[item.nodeid.partition("[")[0]] += sum(os.times()[:4]) - before


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker hands its table to the process that started it, which keeps the sum."""
    output = getattr(session.config, "workeroutput", None)
    if output is None:
        keep()
    else:
        output["seconds"] = dict(_spent)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    for name, seconds in getattr(node, "workeroutput", {}).get("seconds", {}).items():
        _spent[name] += seconds


def keep() -> None:
    """Write the table: the slow functions in order."""
    slow = {name: round(seconds, 1) for name, seconds in sorted(_spent.items()) if seconds >= LEAST}
    TABLE.write_text(json.dumps(slow, indent=0) + "\n", encoding="utf-8")


def kept() -> dict[str, float]:
    return json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.is_file() else {}
