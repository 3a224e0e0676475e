"""Whole runs of users that come when they can: the contract, resuming, who is connected,
withdrawals.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.ledgers import participations
from support.small_runs import client_for, linear_task, run_small, seeing, small_run

import fedmf
from fedmf.cohorts import AvailableCohorts
from fedmf.flower.apps import WorkerPool
from fedmf.flower.clients import run_on_grid
from fedmf.flower.grid import InProcessGrid
from fedmf.ledger.ledger import Ledger
from fedmf.runs.loop import RoundRecord, RoundReport
from fedmf.runs.run import Run
from fedmf.runs.session import Session

USERS = 24
ROUNDS = 12


def available_run(**given: object) -> Run:
    """24 users whose updates are known; three users a round."""
    run = small_run(linear_task(USERS, 5), mechanism="bsr", bands=4)
    return dataclasses.replace(
        run, cohorts=AvailableCohorts(**{"rounds": ROUNDS, "users_per_round": 3, **given})
    )


class ComingAndGoing(WorkerPool):
    """Workers that serve user u in round t if ``there(u, t)``."""

    def __init__(self, session: Session, there: Callable[[int, int], bool]) -> None:
        super().__init__(session)
        self.session = session
        self.there = there

    def nodes_of(self, users: Mapping[int, str]) -> dict[str, int]:
        t = self.session.server.t
        return super().nodes_of(
            {index: user for index, user in users.items() if self.there(index, t)}
        )


def carried_on(path: Path, run: Run, there: Callable[[int, int], bool]) -> list[RoundReport]:
    reports: list[RoundReport] = []
    with fedmf.resume(run, path) as session:
        pool = ComingAndGoing(session, there)
        run_on_grid(session, InProcessGrid(client_for(session)), seeing(reports.append), pool)
    return reports


def carried_out(path: Path, run: Run, there: Callable[[int, int], bool]) -> list[RoundReport]:
    fedmf.start(run, path).close()
    return carried_on(path, run, there)


def joined(path: Path) -> dict[str, list[int]]:
    """The rounds of each user, by the ledger."""
    rounds: dict[str, list[int]] = {}
    with Ledger.open(path / "ledger.sqlite", read_only=True) as ledger:
        for t, user in sorted(participations(ledger)):
            rounds.setdefault(user, []).append(t)
    return rounds


def stopped_after(path: Path, run: Run, rounds: int) -> None:
    class Stop(Exception):
        pass

    def stop(record: RoundRecord) -> None:
        if record.rounds == rounds:
            raise Stop

    with pytest.raises(Stop), fedmf.start(run, path) as session:
        run_on_grid(session, InProcessGrid(client_for(session)), stop)


def go_on(path: Path, run: Run) -> np.ndarray:
    with Session.resume(path, run) as session:
        run_on_grid(session, InProcessGrid(client_for(session)))
        return session.server.parameters.numpy().copy()


@pytest.mark.parametrize(("b", "k"), [(1, 12), (4, 2), (3, 4), (8, 1), (12, 1)])
def test_the_contract_is_kept_and_rounds_are_as_full_as_it_allows(
    b: int, k: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Everybody is connected: m users come unless (k, b) leaves fewer, and then all of those. A
    warning says if none is left.
    """
    run = available_run(min_separation=b, max_participations=k)
    run_small(tmp_path / "run", run)
    rounds = joined(tmp_path / "run")
    last: dict[str, int] = {}
    count: Counter[str] = Counter()
    for t in range(ROUNDS):
        came = sorted(user for user, own in rounds.items() if t in own)
        user_list = [f"u{u:03d}" for u in range(USERS)]
        able = [user for user in user_list if t - last.get(user, -b) >= b and count[user] < k]
        assert set(came) <= set(able)
        assert len(came) == min(3, len(able))
        assert (f"round {t + 1}: nobody contributed" in caplog.text) == (not came)
        last |= dict.fromkeys(came, t)
        count.update(came)
    statement = json.loads((tmp_path / "run" / "statement.json").read_text())
    assert (statement["min_separation"], statement["max_participations"]) == (b, k)
    assert statement["actual_max_participations"] <= k
    assert statement["epsilon_spent"] <= statement["epsilon"] == pytest.approx(8.0, rel=1e-6)
    assert statement["sampling"] == "none: available cohorts, no amplification claimed"
    assert any(
        "determine whether that user is connected" in text for text in statement["assumptions"]
    )


def waiting(run: Run, **execution: Any) -> Run:
    return dataclasses.replace(run, execution=dataclasses.replace(run.execution, **execution))


def test_only_connected_users_are_drawn_and_nobody_stops_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In rounds 0-2 one user is there, then nobody; after that the even ones, half of all."""

    def there(user: int, t: int) -> bool:
        return user == 5 and t < 3

    run = waiting(available_run(min_separation=1, max_participations=9), min_users=1)
    path = tmp_path / "run"
    with pytest.raises(RuntimeError, match=r"round 4: no user .* within 0\.1 s .* spends anything"):
        carried_out(path, waiting(run, connection_timeout=0.1), there)
    assert joined(path) == {"u005": [0, 1, 2]}
    assert "23 of 24 users are not served" in caplog.text
    assert "They take part from the round in which their nodes connect." in caplog.text
    assert "zeros" not in caplog.text
    # Both times, and the number of users to wait for, may change: they change no bit.
    run = waiting(run, connection_timeout=0.2, handshake_timeout=0.3, min_reply_share=1.0)
    caplog.clear()
    reports = carried_on(path, run, lambda user, t: user % 2 == 0 and (t != 5 or user == 2))
    assert [(each.cohort_size, each.present) for each in reports] == [
        *(2 * [(3, 3)]),
        (1, 1),
        *(6 * [(3, 3)]),
    ]
    assert "round 6: only 1 users who may take part, for 3 places" in caplog.text
    assert caplog.text.count("places") == 1
    rounds = joined(path)
    del rounds["u005"]
    assert all(int(user[1:]) % 2 == 0 and min(own) >= 3 for user, own in rounds.items())


def test_arrivals_can_be_read_while_a_run_works(tmp_path: Path) -> None:
    read = list[dict[str, Any]]()

    def look(record: RoundRecord) -> None:
        read.append(json.loads((tmp_path / "run" / "operator.json").read_text()))

    with fedmf.start(available_run(), tmp_path / "run") as session:
        run_on_grid(session, InProcessGrid(client_for(session)), look)
    assert read[0]["arrivals"] == [3]
    assert read[-1]["arrivals"] == [3]  # it is not written in every short round


def test_a_resumed_run_takes_the_same_users_and_releases_the_same_models(tmp_path: Path) -> None:
    run = available_run(min_separation=3, max_participations=3)
    whole = run_small(tmp_path / "whole", run)
    stopped_after(tmp_path / "run", run, 5)
    assert np.array_equal(go_on(tmp_path / "run", run), whole)
    assert joined(tmp_path / "run") == joined(tmp_path / "whole")
