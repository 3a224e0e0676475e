"""States of a run, bound to their digest and free of code; files that are replaced whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest
import torch
from support.ledgers import begin, flip_in_the_middle, tails
from torch import Tensor

from fedmf.errors import LedgerError
from fedmf.participation import Participation
from fedmf.records import durable, load_state, pack_state
from fedmf.records.durable import write_durably
from fedmf.records.ledger import Ledger

PARAMETERS = torch.randn(33, generator=torch.Generator().manual_seed(0))
STATE = {"velocity": torch.arange(33, dtype=torch.float64), "step": torch.tensor(7)}
NOISE = {"t": 3, "digest": "00ff"}


@pytest.fixture
def ledger(tmp_path: Path):
    with begin(tmp_path / "ledger.sqlite", Participation(9, 9, 1), {}) as made:
        yield made


def kept(ledger: Ledger, *of_a_run: object) -> str:
    """Commit a round with its state; returns the digest."""
    state, last = pack_state(*of_a_run), ledger.last_round()  # type: ignore[arg-type]
    ledger.commit_round(0 if last is None else last + 1, [], "s", state.digest.hex(), state=state)
    return state.digest.hex()


def check_equal(state: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert list(state) == list(expected)
    for name, value in expected.items():
        assert state[name].dtype == value.dtype
        assert torch.equal(state[name], value)


@pytest.mark.parametrize(
    "state", [STATE, {}, {"parameters": torch.ones(2), "none": torch.zeros(0, 3)}], ids=list
)
def test_what_was_kept_is_loaded_bit_for_bit(ledger: Ledger, state: dict[str, Tensor]) -> None:
    special = torch.tensor([float("nan"), float("inf"), -0.0, 1e-45])
    digest = kept(ledger, torch.cat([PARAMETERS, special]), state, NOISE)
    parameters, loaded, noise = load_state(ledger, "s", digest)
    assert noise == NOISE
    assert parameters.numpy().tobytes() == torch.cat([PARAMETERS, special]).numpy().tobytes()
    check_equal(loaded, state)
    parameters.add_(1.0)


def test_keeping_detaches(ledger: Ledger) -> None:
    digest = kept(ledger, PARAMETERS.clone().requires_grad_(), {}, NOISE)
    assert not load_state(ledger, "s", digest)[0].requires_grad


def test_the_digest_is_that_of_the_bytes() -> None:
    state = pack_state(PARAMETERS, STATE, NOISE)
    assert state.digest == hashlib.sha256(b"".join(state.pieces)).digest()
    assert b"".join(state.pieces[1:2]) == PARAMETERS.numpy().tobytes()


def test_another_state_than_the_committed_is_not_found(ledger: Ledger, tmp_path: Path) -> None:
    digests = [kept(ledger, PARAMETERS + t, STATE, NOISE) for t in range(2)]
    assert torch.equal(load_state(ledger, "s", digests[1])[0], PARAMETERS + 1)
    other = pack_state(PARAMETERS + 2, STATE, NOISE).digest.hex()
    with pytest.raises(LedgerError, match="is in none of the files beside it"):
        load_state(ledger, "s", other)
    (file,) = tails(tmp_path)
    flip_in_the_middle(file)
    with pytest.raises(LedgerError, match=r"damaged|is in none"):
        load_state(ledger, "s", digests[0])


def test_writing_replaces_and_leaves_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "f"
    for content in (b"old", b"", b"new" * 100_000):
        write_durably(path, content)
        assert path.read_bytes() == content
        assert os.listdir(tmp_path) == ["f"]


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failing_disk_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "f"
    write_durably(path, b"old")
    monkeypatch.setattr(durable.os, call, full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_durably(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]


def test_content_is_on_disk_before_the_name_and_the_name_before_returning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(descriptor: int) -> None:
        is_directory = os.path.isdir(f"/proc/self/fd/{descriptor}")
        size = os.fstat(descriptor).st_size
        events.append("directory" if is_directory else f"file of {size}")
        fsync(descriptor)

    def noted_replace(source: object, target: object) -> None:
        events.append("replace")
        replace(source, target)  # type: ignore[arg-type]

    monkeypatch.setattr(durable.os, "fsync", noted_fsync)
    monkeypatch.setattr(durable.os, "replace", noted_replace)
    write_durably(tmp_path / "f", b"12345")
    assert events == ["file of 5", "replace", "directory"]
