"""The disk cache: exact, computed once, safe with damaged entries and concurrent runs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedmf.accounting.disk_cache import DiskCache
from fedmf.matrices.factorization import Factorization, normalized
from fedmf.matrices.toeplitz import Toeplitz
from fedmf.mechanisms.design_cache import disk_cached
from fedmf.participation import Participation

CALLS: list[object] = []
CONTRACT = Participation(64, 2, 8)


def random_strategy(participation: Participation, seed: int, scale: float = 1.0) -> Factorization:
    CALLS.append(seed)
    c = np.random.default_rng(seed).random(40) * scale
    c[0] += 1.0
    return normalized(Toeplitz(c, participation.rounds))


def another_process() -> Callable[..., Factorization]:
    return disk_cached(random_strategy, version=1)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    CALLS.clear()
    monkeypatch.setenv("FEDMF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / f"designs-{os.geteuid()}"


def same(first: Factorization, second: Factorization) -> bool:
    return first.to_dict() == second.to_dict()


def test_a_request_is_computed_once_in_a_process_and_on_a_machine(folder: Path) -> None:
    wrapped = another_process()
    first = wrapped(CONTRACT, 3)
    assert wrapped(CONTRACT, 3) is first
    again = another_process()(CONTRACT, 3)
    assert CALLS == [3]
    assert same(first, again)
    assert type(first) is type(again)
    for request in ((CONTRACT, 4), (Participation(64, 3, 8), 3), (CONTRACT, 3, 1.0 + 1e-15)):
        wrapped(*request)
    disk_cached(random_strategy, version=2)(CONTRACT, 3)
    assert len(CALLS) == len(list(folder.iterdir())) == 5


@pytest.mark.parametrize(
    "damage", ["empty", "noise", "another horizon", "another type", "no factorization"]
)
def test_a_damaged_entry_is_replaced(folder: Path, damage: str) -> None:
    truth = another_process()(CONTRACT, 3)
    (entry,) = folder.iterdir()
    whole = entry.read_bytes()
    described = truth.to_dict()
    if damage == "empty":
        entry.write_bytes(b"")
    elif damage == "noise":
        entry.write_bytes(whole[:-9] + b"?" + whole[-8:])
    else:  # with a valid name and digest, as anyone with the user's rights can write
        forged = {
            "another horizon": Toeplitz([1.0], 63).to_dict(),
            "another type": {**described, "type": "diagonal"},
            "no factorization": {"type": "toeplitz", "coefficients": [1.0, "x"], "rounds": 64},
        }[damage]
        DiskCache(folder.parent, "designs", 2**20, 2**20).write(
            entry.name, json.dumps(forged).encode()
        )
    assert same(another_process()(CONTRACT, 3), truth)
    assert CALLS == [3, 3]
    assert entry.read_bytes() == whole


@pytest.mark.parametrize("directory", ["off", "{}/file/inside"])
def test_without_a_writable_place_every_process_computes(
    directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDMF_CACHE", directory.format(tmp_path))
    assert same(another_process()(CONTRACT, 3), another_process()(CONTRACT, 3))
    assert CALLS == [3, 3]
