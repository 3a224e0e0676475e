"""Results kept on disk: exact, computed once, safe with damaged entries and concurrent runs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from fedmf.kept_files import KeptFiles, cache_directory
from fedmf.mechanisms.cache import remembered
from fedmf.mechanisms.closed_forms import bisr
from fedmf.mechanisms.matrix import Factorization, normalized
from fedmf.mechanisms.toeplitz import Toeplitz
from fedmf.participation import Participation

CALLS: list[object] = []


def random_strategy(participation: Participation, seed: int, scale: float = 1.0) -> Factorization:
    CALLS.append(seed)
    c = np.random.default_rng(seed).random(40) * scale
    c[0] += 1.0
    return normalized(Toeplitz(c, participation.rounds))


CONTRACT = Participation(64, 2, 8)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    CALLS.clear()
    monkeypatch.setenv("FEDMF_CACHE", str(tmp_path / "kept"))
    return tmp_path / "kept" / f"designs-{os.geteuid()}"


def same(first: Factorization, second: Factorization) -> bool:
    return first.to_dict() == second.to_dict()


def test_a_request_is_computed_once_and_read_back_exactly(folder: Path) -> None:
    wrapped = remembered(random_strategy, version=1)
    first, again = wrapped(CONTRACT, 3), wrapped(CONTRACT, 3)
    assert CALLS == [3]
    assert same(first, again)
    assert type(first) is type(again)
    assert len(list(folder.iterdir())) == 1


def test_every_part_of_a_request_counts(folder: Path) -> None:
    wrapped = remembered(random_strategy, version=1)
    wrapped(CONTRACT, 3)
    wrapped(CONTRACT, 4)
    wrapped(Participation(64, 3, 8), 3)
    wrapped(CONTRACT, 3, scale=1.0 + 1e-15)
    remembered(random_strategy, version=2)(CONTRACT, 3)
    assert len(CALLS) == len(list(folder.iterdir())) == 5


@pytest.mark.parametrize("damage", ["empty", "cut", "noise", "other key", "folder"])
def test_a_damaged_entry_is_replaced(folder: Path, damage: str) -> None:
    wrapped = remembered(random_strategy, version=1)
    truth = wrapped(CONTRACT, 3)
    (entry,) = folder.iterdir()
    whole = entry.read_bytes()
    entry.unlink()
    if damage == "folder":
        entry.mkdir()
    elif damage == "other key":
        wrapped(CONTRACT, 4)
        (other,) = folder.iterdir()
        other.rename(entry)
    else:
        broken = bytearray(whole)
        broken[len(broken) // 2] ^= 0xFF
        entry.write_bytes({"empty": b"", "cut": whole[: len(whole) // 2], "noise": bytes(broken)}[damage])
    CALLS.clear()
    assert same(wrapped(CONTRACT, 3), truth)
    assert CALLS == [3]
    assert entry.read_bytes() == whole
    assert same(wrapped(CONTRACT, 3), truth)
    assert CALLS == [3]
    assert [name for name in folder.iterdir() if len(name.name) != 64] == []


FORGED = {
    "another horizon": ({"rounds": 63}, b""),
    "a huge horizon": ({"rounds": 10**9}, b""),
    "too many coefficients": ({"coefficients": [1.0] * 65}, b""),
    "another type": ({"type": "diagonal", "entries": [1.0] * 64}, b""),
    "an inverse that overflows": ({"coefficients": [1.0, 1e9]}, b""),
    "an infinite number": ({"coefficients": {"floats": 20}}, np.full(20, np.inf).tobytes()),
    "fewer numbers than said": ({"coefficients": {"floats": 20}}, np.ones(19).tobytes()),
    "more numbers than said": ({"coefficients": {"floats": 20}}, np.ones(21).tobytes()),
    "half a number": ({"coefficients": {"floats": 20}}, np.ones(20).tobytes() + b"x"),
    "a negative length": ({"coefficients": {"floats": -1}}, b""),
}


@pytest.mark.parametrize("what", FORGED)
def test_an_entry_that_cannot_be_the_result_is_replaced(folder: Path, what: str) -> None:
    """Under a right name and digest: whoever has the user's rights can write so."""

    def toeplitz(participation: Participation) -> Toeplitz:
        CALLS.append(participation)
        return Toeplitz([1.0, 0.5], participation.rounds)

    wrapped = remembered(toeplitz, version=1)
    truth = wrapped(CONTRACT)
    (entry,) = folder.iterdir()
    described, numbers = FORGED[what]
    changed = json.dumps({**truth.to_dict(), **described}).encode()
    files = KeptFiles(folder.parent, "designs", 2**20, 2**20)
    files.write(entry.name, changed + b"\n" + numbers)
    assert same(wrapped(CONTRACT), truth)
    assert len(CALLS) == 2
    assert same(wrapped(CONTRACT), truth)
    assert len(CALLS) == 2


@pytest.fixture
def restless_threads() -> Iterator[None]:
    """Threads that give way as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("restless_threads")
def test_many_at_once(folder: Path) -> None:
    wrapped = remembered(random_strategy, version=1)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: wrapped(CONTRACT, i % 3), range(300)))
    assert all(same(own, random_strategy(CONTRACT, i % 3)) for i, own in enumerate(found))
    assert len(list(folder.iterdir())) == 3


def test_it_can_be_turned_off_and_moved(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapped = remembered(random_strategy, version=1)
    monkeypatch.setenv("FEDMF_CACHE", "off")
    assert cache_directory() is None
    assert same(wrapped(CONTRACT, 3), wrapped(CONTRACT, 3))
    assert CALLS == [3, 3]
    assert not folder.exists()
    monkeypatch.delenv("FEDMF_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory() == tmp_path / "xdg" / "fedmf"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache" / "fedmf"


def test_a_place_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDMF_CACHE", str(tmp_path / "file" / "inside"))
    wrapped = remembered(random_strategy, version=1)
    assert same(wrapped(CONTRACT, 3), wrapped(CONTRACT, 3))
    assert CALLS == [3, 3]


def test_arguments_without_content_are_refused() -> None:
    with pytest.raises(TypeError, match="content"):
        remembered(lambda made: made(), version=1)(lambda: bisr(2, 4))


def test_optimised_mechanisms_are_remembered(folder: Path) -> None:
    from fedmf.mechanisms.registry import build

    contract = Participation(57, 3, 19)
    first = build("banded-toeplitz", contract, bands=7)
    entries = {entry.name: entry.read_bytes() for entry in folder.iterdir()}
    assert len(entries) == 1
    again = build("banded-toeplitz", contract, bands=7)
    assert json.dumps(again.factorization.to_dict()) == json.dumps(first.factorization.to_dict())
    assert {entry.name for entry in folder.iterdir()} == set(entries)
