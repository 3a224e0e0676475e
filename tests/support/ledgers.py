"""Ledgers of tests: made and written to with one public key."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fedmf.ledger.ledger import Ledger
from fedmf.ledger.packed import unpack
from fedmf.noise.key import NoiseKey
from fedmf.participation import Participation

KEY = NoiseKey.from_seed(3)
CONTRACT = Participation(rounds=10, max_participations=3, min_separation=3)


def begin(
    path: str | Path, contract: Participation = CONTRACT, header: Mapping[str, Any] = {}
) -> Ledger:
    """A new ledger, ready for its first round."""
    Ledger.create(Path(path), contract, header, KEY)
    return go_on(path)


def go_on(path: str | Path) -> Ledger:
    """A ledger that was begun, ready for its next round."""
    ledger = Ledger.open(Path(path), KEY)
    ledger.opening()
    return ledger


def commit(ledger: Ledger, *cohorts: list[str]) -> None:
    """The next rounds, each with a state of its own."""
    for users in cohorts:
        ledger.commit_round(ledger.released, users, b"state %d" % ledger.released)


def participations(ledger: Ledger) -> list[tuple[int, str]]:
    """(round, user) in the order of rounds."""
    names = ledger.histories.names
    times, keys = ledger.participations()
    return [(t, names[key]) for t, key in sorted(zip(times.tolist(), keys.tolist(), strict=True))]


def contents(ledger: Ledger) -> tuple[Any, ...]:
    """What a ledger says."""
    return ledger.released, ledger.state(), len(ledger.histories), participations(ledger)


def released(path: Path) -> int:
    """How many rounds a reader finds."""
    with Ledger.open(path, read_only=True) as ledger:
        return ledger.released


def last_state(folder: Path) -> tuple[Tensor, dict[str, Tensor], dict[str, Any]]:
    """The last state that a run directory holds: model, optimizer, position of the noise."""
    with Ledger.open(folder / "ledger.sqlite", read_only=True) as ledger:
        kept = ledger.state()
    assert kept is not None
    state = unpack(kept)
    return state["parameters"], state["optimizer"], state["noise"]


def flip_everywhere(file: Path) -> None:
    """Damage one bit in every 64 bytes but the first."""
    content = bytearray(file.read_bytes())
    for at in range(128, len(content), 64):
        content[at] ^= 1
    file.write_bytes(content)


def participants(ledger: Ledger, t: int) -> list[str]:
    """The users of one round, in the order in which the ledger first met them."""
    return [user for index, user in participations(ledger) if index == t]
