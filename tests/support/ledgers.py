"""Ledgers of tests: made and written to with one public key."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fedmf.noise import NoiseKey
from fedmf.participation import Participation
from fedmf.records import Ledger, load_state

KEY = NoiseKey.from_seed(3)
CONTRACT = Participation(rounds=10, max_participations=3, min_separation=3)
#: What `load_state` gives.
Loaded = tuple[Tensor, dict[str, Tensor], dict[str, Any]]


def begin(path: str | Path, contract: Participation, header: Mapping[str, Any]) -> Ledger:
    """A new ledger, ready for its first round."""
    ledger = Ledger.create(path, contract, header, KEY)
    ledger.open_era(bytes(32))
    return ledger


def commit(ledger: Ledger, *cohorts: list[str]) -> None:
    """The next rounds."""
    for users in cohorts:
        last = ledger.last_round()
        index = 0 if last is None else last + 1
        ledger.commit_round(index, users, f"{index}.npz", f"digest-{index}")


def contents(ledger: Ledger) -> tuple[Any, ...]:
    """What a ledger says."""
    return (
        ledger.last_round(),
        ledger.checkpoint(),
        list(ledger.participations()),
        ledger.pattern_counts(),
    )


def go_on(path: str | Path) -> Ledger:
    """A ledger that was begun, ready for its next round."""
    ledger = Ledger.open(path, KEY)
    ledger.open_era(bytes(32))
    return ledger


def tails(folder: Path, ledger: str = "ledger.sqlite") -> list[Path]:
    """The files beside a ledger that hold its newest rows and states."""
    return sorted(folder.glob(f"{ledger}-tail-*"))


def last_state(folder: Path) -> Loaded:
    """The last state that a run directory holds."""
    with Ledger.open(folder / "ledger.sqlite", read_only=True) as ledger:
        committed = ledger.checkpoint()
        assert committed is not None
        return load_state(ledger, *committed[1:])


def flip_in_the_middle(file: Path) -> None:
    """Damage one bit."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
