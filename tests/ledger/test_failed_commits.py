"""A commit that fails: the opening ends, nothing is written behind it, and the next opening
tells.
"""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

import pytest
from support.ledgers import begin, go_on, participations, released

from fedmf.errors import LedgerError
from fedmf.ledger import ledger as ledger_module


def test_the_opening_ends_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No row of noise is used for a second sum (FEDMF-2026-2)."""
    path = tmp_path / "ledger.sqlite"

    def failing(connection: sqlite3.Connection) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with begin(path) as ledger:
        ledger.commit_round(0, ["a"], b"state")
        with monkeypatch.context() as patched:
            patched.setattr(ledger_module, "_flush", failing)
            with pytest.raises(
                LedgerError, match=r"round 2 failed \(.*Input/output error\)"
            ) as failed:
                ledger.commit_round(1, ["b"], b"other")
        assert "\n" not in str(failed.value)
        for again in (
            lambda: ledger.commit_round(1, ["c"]),
            lambda: ledger.put_metrics(1, {}),
            lambda: ledger.keep_state(b"another"),
        ):
            with pytest.raises(LedgerError) as repeated:
                again()
            assert str(repeated.value) == str(failed.value)
    assert released(path) == 1
    with go_on(path) as ledger:
        assert participations(ledger) == [(0, "a")]
        assert ledger.state() == b"state"
        assert [opening.first_round for opening in ledger.openings()] == [0, 1]
        ledger.commit_round(1, ["c"])


def test_a_commit_that_was_made_though_it_seemed_to_fail_is_adopted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.sqlite"

    def late(connection: sqlite3.Connection) -> None:
        connection.execute("COMMIT")
        raise OSError(errno.EIO, "Input/output error")

    with begin(path) as ledger, monkeypatch.context() as patched:
        patched.setattr(ledger_module, "_flush", late)
        with pytest.raises(LedgerError):
            ledger.commit_round(0, ["a"], b"state")
    with go_on(path) as ledger:
        assert (participations(ledger), ledger.state()) == ([(0, "a")], b"state")
        assert [opening.first_round for opening in ledger.openings()] == [0, 1]
