"""Ledgers of tests: made and written to with one public key."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedmf.noise import NoiseKey
from fedmf.participation import Participation
from fedmf.records import Ledger

KEY = NoiseKey.from_seed(3)


def begin(path: str | Path, contract: Participation, header: Mapping[str, Any]) -> Ledger:
    """A new ledger, ready for its first round."""
    ledger = Ledger.create(path, contract, header, KEY)
    ledger.open_era(bytes(32))
    return ledger


def go_on(path: str | Path) -> Ledger:
    """A ledger that was begun, ready for its next round."""
    ledger = Ledger.open(path, KEY)
    ledger.open_era(bytes(32))
    return ledger
