"""After a release that did not end well nothing is released before the records are opened again."""

from __future__ import annotations

import contextlib
import errno
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.small_runs import linear_task, small_run

import fedmf
from fedmf.errors import LedgerError
from fedmf.ledger import ledger as ledger_module
from fedmf.runs.run_statement import account
from fedmf.runs.session import Session

LINE = "this process releases nothing more"


@contextlib.contextmanager
def failing_flush(monkeypatch: pytest.MonkeyPatch, at: int) -> Iterator[None]:
    """The commit number ``at`` fails."""
    flush = ledger_module._flush
    calls = iter(range(10**6))

    def failing(connection: sqlite3.Connection) -> None:
        if next(calls) == at:
            raise OSError(errno.EIO, "Input/output error")
        flush(connection)

    with monkeypatch.context() as patched:
        patched.setattr(ledger_module, "_flush", failing)
        yield


def release(session: Session, first: float, by: Callable[..., Any] | None = None) -> np.ndarray:
    """The next round, with this first coordinate of the sum; by the server's `release` unless
    said.
    """
    server = session.server
    t = session.server.t
    users = [
        session.task.dataset.user_ids[u] for u in map(int, session.cohort_schedule().cohort(t))
    ]
    rows = torch.zeros(len(users), server.dimension)
    rows[0, 0] = first
    total = server.new_sum()
    total.add_updates(rows)
    (by or server.release)(total, users)
    return server.parameters.double().numpy().copy()


def test_no_row_of_noise_is_around_two_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack: another sum after a flush that failed. Nothing more is released."""
    run = small_run(linear_task(24, 30), noise_seed=-1)
    with fedmf.start(run, tmp_path / "run") as session:
        release(session, 0.1)
        with failing_flush(monkeypatch, 0), pytest.raises(LedgerError, match=LINE) as failed:
            release(session, 0.1)
        with pytest.raises(LedgerError) as repeated:
            release(session, -0.1)
        assert str(repeated.value) == str(failed.value)
        assert "round 2 failed" in str(failed.value)
        assert session.statement().to_dict()["rounds_released"] == 1
    with fedmf.resume(run, tmp_path / "run") as session:
        assert session.server.t == 1
        assert (
            session.directory.ledger.openings()[0].salt != session.directory.ledger.opening().salt
        )
        release(session, 0.1)
    assert account(tmp_path / "run").to_dict()["rounds_released"] == 2


def test_what_can_be_refused_costs_nothing(tmp_path: Path) -> None:
    with fedmf.start(small_run(linear_task(24, 30), noise_seed=-1), tmp_path / "run") as session:
        server = session.server
        for users in (["u000", "u000"], ["u000"]):
            total = server.new_sum()
            total.add_nothing(2)
            with pytest.raises(ValueError, match=r"twice|listed users"):
                server.release(total, users)
        release(session, 0.1)


@pytest.mark.parametrize("where", ["rule", "commit"])
def test_an_exception_after_the_noise_was_seen_is_the_end(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rule of the user's own has seen the noisy mean: the same row must not get another sum, and
    nobody sees a model of the first one.
    """
    with fedmf.start(small_run(linear_task(24, 30), noise_seed=-1), tmp_path / "run") as session:
        server = session.server
        before = server.parameters.clone()
        with monkeypatch.context() as patched:

            def interrupted(*_: Any) -> None:
                raise KeyboardInterrupt

            if where == "rule":
                patched.setattr(type(server._optimizer), "step", interrupted)
            else:
                patched.setattr(session.directory.ledger, "commit_round", interrupted)
            with pytest.raises(KeyboardInterrupt):
                release(session, 0.1)
        with pytest.raises(LedgerError, match=r"round 1 failed \(KeyboardInterrupt\)"):
            release(session, 0.2)
        assert torch.equal(server.parameters, before)
    with Session.resume(tmp_path / "run", session.run) as session:
        assert session.server.t == 0
        release(session, 0.2)
        first, second = session.directory.ledger.openings()
        assert first.salt != second.salt
