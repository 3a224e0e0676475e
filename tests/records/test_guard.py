"""What a machine remembers outside a directory: it notices backups and copies, and stops nothing else."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.child_processes import in_child

from fedmf.errors import ConfigError
from fedmf.noise.key import NoiseKey
from fedmf.records.guard import Guard, Loss, guards_folder

KEY = NoiseKey(bytes(range(32)))


@dataclass(frozen=True)
class Opened:
    first_round: int
    fresh: bytes


FIRST, SECOND, OTHER = Opened(0, b"a" * 32), Opened(5, b"b" * 32), Opened(5, b"c" * 32)


def head(rounds: int) -> bytes:
    return f"chain after {rounds}".encode()


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "fedmf" / "guards"


def losses(openings: list[Opened], released: int, head_after=head) -> list[tuple[int, int]]:
    with Guard.open(KEY) as guard:
        return [(loss.first, loss.released) for loss in guard.losses(openings, released, head_after)]


def note(openings: list[Opened], released: int, lost: list[Loss] | None = None) -> None:
    with Guard.open(KEY) as guard:
        guard.note(openings, released, head(released), lost)


def test_nothing_is_lost_where_nothing_is_known_or_all_is_there():
    assert losses([FIRST], 3) == []
    note([FIRST], 7)
    assert losses([FIRST], 7) == []
    assert losses([FIRST, Opened(7, b"d" * 32)], 9) == []  # it went on elsewhere
    assert losses([FIRST, Opened(7, b"d" * 32)], 7) == []  # opened, and stopped before its first round


@pytest.mark.parametrize(
    ("openings", "released", "lost"),
    [
        ([FIRST], 4, (4, 9)),  # a backup of before the second opening
        ([FIRST], 5, (5, 9)),
        ([FIRST, SECOND], 6, (6, 9)),
        ([FIRST, OTHER], 9, (5, 9)),  # a copy of round 5 that went on elsewhere, as far
        ([FIRST, OTHER], 12, (5, 9)),  # and further
        ([FIRST, Opened(6, b"d" * 32)], 8, (5, 9)),
        ([], 0, (0, 9)),
    ],
)
def test_what_a_backup_or_copy_lacks(openings, released, lost):
    note([FIRST, SECOND], 9)
    assert losses(openings, released) == [lost]


def test_another_head_at_the_same_round_is_another_branch():
    """As of a copy of a living process: the same openings and other rounds. Where they part is not known."""
    note([FIRST], 7)
    assert losses([FIRST], 7, lambda rounds: b"another") == [(0, 7)]
    assert losses([FIRST], 8, lambda rounds: b"another") == [(0, 7)]
    assert losses([FIRST], 8, lambda rounds: None) == []  # a stream keeps no heads of earlier steps


def test_what_was_lost_before_is_lost_still():
    note([FIRST], 9)
    with Guard.open(KEY) as guard:
        (loss,) = guard.losses([FIRST], 5, head)
        guard.note([FIRST, SECOND], 5, head(5), [loss])
        guard.note([FIRST, SECOND], 7, head(7))
    assert losses([FIRST, SECOND], 7) == []
    assert losses([FIRST], 3) == [(3, 9), (3, 7)]
    assert losses([FIRST], 5) == [(5, 9), (5, 7)]


def test_the_file_is_for_its_owner_and_tells_no_chain(state: Path):
    note([FIRST], 7)
    (place,) = state.iterdir()
    assert place.name == KEY.fingerprint
    assert place.stat().st_mode & 0o777 == 0o600
    assert state.stat().st_mode & 0o777 == 0o700
    content = place.read_bytes()
    for secret in (head(7), FIRST.fresh, head(7).hex().encode(), FIRST.fresh.hex().encode()):
        assert secret not in content


def test_a_shorter_text_leaves_nothing_of_a_longer_one(state: Path):
    note([FIRST, *(Opened(t, bytes([t]) * 32) for t in range(1, 40))], 100)
    note([FIRST], 3)
    assert losses([FIRST], 2) == [(2, 3)]


@pytest.mark.parametrize(
    "content", [b"{", b"\xff\x00", b"[]", b'[1,-1,"",[],[]]', b'[2,5,"",[],[]]', b'[1,5,"",7,[]]']
)
def test_a_damaged_file_stops_nothing(state: Path, content: bytes, caplog: pytest.LogCaptureFixture):
    note([FIRST], 7)
    (state / KEY.fingerprint).write_bytes(content)
    assert losses([FIRST], 3) == []
    (said,) = caplog.records
    assert "does not hold what fedmf wrote there" in said.getMessage()
    assert "\n" not in said.getMessage()
    note([FIRST], 3)
    assert losses([FIRST], 2) == [(2, 3)]


def test_a_place_that_cannot_be_written_stops_nothing(state: Path, monkeypatch: pytest.MonkeyPatch):
    state.parent.mkdir(parents=True)
    state.write_text("in the way")
    note([FIRST], 7)
    assert losses([FIRST], 3) == []
    monkeypatch.setattr("fedmf.records.guard.guards_folder", lambda: None)
    note([FIRST], 7)
    assert losses([FIRST], 3) == []


def test_a_full_disk_stops_nothing(monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedmf.records.guard.os.pwrite", full)
    note([FIRST], 7)
    monkeypatch.undo()
    assert losses([FIRST], 3) == []


def test_public_keys_are_not_remembered(state: Path):
    with Guard.open(NoiseKey.from_seed(1)) as guard:
        guard.note([FIRST], 7, head(7))
    with Guard.open(None) as guard:
        guard.note([FIRST], 7, head(7))
    assert not state.exists()


def test_two_copies_are_not_open_at_once():
    with Guard.open(KEY), pytest.raises(ConfigError, match="another process has a copy") as caught:
        Guard.open(KEY)
    assert "\n" not in str(caught.value)
    Guard.open(KEY).close()


def test_where_it_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert guards_folder() == tmp_path / ".local" / "state" / "fedmf" / "guards"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")  # to be ignored, says the specification
    assert guards_folder() == tmp_path / ".local" / "state" / "fedmf" / "guards"


def test_a_killed_process_leaves_what_it_noted(state: Path):
    def dying() -> None:
        Guard.open(NoiseKey(bytes(range(32)))).note([], 4, b"head")
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(dying) == -signal.SIGKILL
    assert losses([], 2) == [(2, 4)]
