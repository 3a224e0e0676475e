"""A commit whose flush fails: nothing is taken back or written behind it, and the next opening adopts it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from support.ledgers import CONTRACT, begin, go_on, tails

from fedmf.errors import LedgerError
from fedmf.records import Ledger, State, frames
from fedmf.records.lock import ReleaseRight

STATE = State.of([b"x" * 700])


def failing(_: int) -> None:
    raise OSError(errno.EIO, "Input/output error")


def last_round(path: Path) -> int | None:
    with Ledger.open(path, read_only=True) as reader:
        return reader.last_round()


def test_what_a_reader_saw_stays_and_is_adopted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.sqlite"
    seen: list[int | None] = []

    def failing_with_a_reader(_: int) -> None:
        seen.append(last_round(path))
        failing(_)

    with begin(path, CONTRACT, {}) as ledger:
        ledger.commit_round(0, ["a"], "c", "d")
        with monkeypatch.context() as patched:
            patched.setattr(frames, "_flush", failing_with_a_reader)
            with pytest.raises(LedgerError, match=r"round 2 failed \(.*Input/output error\)") as failed:
                ledger.commit_round(1, ["b"], "s", STATE.digest.hex(), state=STATE)
        assert "\n" not in str(failed.value)
        assert seen == [1]
        assert ledger.last_round() == 1  # its statements count what a reader has
        for again in (
            lambda: ledger.commit_round(1, ["c"], "c", "d"),
            lambda: ledger.commit_round(2, ["c"], "c", "d"),
            lambda: ledger.put_metrics(1, {}),
            lambda: ledger.open_era(bytes(32)),
        ):
            with pytest.raises(LedgerError) as repeated:
                again()
            assert str(repeated.value) == str(failed.value)
    assert last_round(path) == 1
    before = [file.read_bytes() for file in tails(tmp_path)]
    assert len(before) == 1
    with go_on(path) as ledger:
        assert list(ledger.participations()) == [(0, "a"), (1, "b")]
        ((file, kept),) = [(file.name, ledger._tail.state(STATE.digest.hex())) for file in tails(tmp_path)]
        assert (file, kept) == ("ledger.sqlite-tail-0000001", [b"x" * 700])  # written again
        assert ledger.replay().rounds == 2
        assert [opening.first_round for opening in ledger.openings()] == [0, 2]
        ledger.commit_round(2, ["c"], "c", "d")


def test_a_frame_that_was_never_whole_is_nobodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, write = tmp_path / "ledger.sqlite", os.pwrite

    def short(descriptor: int, content: memoryview, at: int) -> int:
        if len(content) <= 512:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, content[:512], at)

    with begin(path, CONTRACT, {}) as ledger:
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", short)
            with pytest.raises(LedgerError, match=r"round 1 failed .*No space left"):
                ledger.commit_round(0, ["a"], "c", "d")
        assert last_round(path) is None
    with go_on(path) as ledger:
        ledger.commit_round(0, ["b"], "c", "d")
        assert list(ledger.participations()) == [(0, "b")]


def test_a_reader_shows_nothing_that_could_not_be_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that went read-only after an error says EROFS; what it shows may be in memory alone."""
    path = tmp_path / "ledger.sqlite"
    with begin(path, CONTRACT, {}) as ledger:
        ledger.commit_round(0, ["a"], "c", "d")
        flush = os.fsync
        for number, shown in ((errno.EROFS, False), (errno.EIO, False), (errno.EINVAL, True)):

            def answering(descriptor: int, number: int = number) -> None:
                if "tail" in os.readlink(f"/proc/self/fd/{descriptor}"):
                    raise OSError(number, os.strerror(number))
                flush(descriptor)

            with monkeypatch.context() as patched:
                patched.setattr(os, "fsync", answering)
                if shown:
                    assert last_round(path) == 0
                else:
                    with pytest.raises(LedgerError, match=os.strerror(number)):
                        last_round(path)


def test_the_right_is_lost_by_whatever_happens_within() -> None:
    right = ReleaseRight(LedgerError)
    with pytest.raises(KeyboardInterrupt), right.exercise("round 7"):
        raise KeyboardInterrupt
    with pytest.raises(LedgerError, match=r"round 7 failed \(KeyboardInterrupt\)"), right.exercise("round 8"):
        pytest.fail("nothing more may be released")
    right = ReleaseRight(LedgerError)
    with right.exercise("round 7"), pytest.raises(LedgerError), right.exercise("its row"):
        raise LedgerError("no disk.")  # caught by who must not
    with pytest.raises(LedgerError, match=r"its row failed \(no disk\)"):
        right.require()
    right = ReleaseRight(LedgerError)
    with (
        pytest.raises(LedgerError, match=r"^round 7 failed \("),
        right.exercise("round 7"),
        right.exercise("its row"),
    ):
        raise LedgerError("no disk.")
