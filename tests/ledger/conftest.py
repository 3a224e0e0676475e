"""A ledger of each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.ledgers import CONTRACT, begin

from fedmf.ledger.ledger import Ledger


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    with begin(path, CONTRACT, {"name": "test"}) as created:
        yield created
