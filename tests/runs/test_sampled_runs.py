"""Whole runs with random cohorts: what they claim, and that a resumed run draws the same
cohorts.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.ledgers import participations
from support.small_runs import client_for, run_small, small_run

from fedmf.flower.clients import run_on_grid
from fedmf.flower.grid import InProcessGrid
from fedmf.ledger.ledger import Ledger
from fedmf.runs.loop import RoundRecord
from fedmf.runs.session import Session

SAMPLED = ("cyclic-poisson", "balls-in-bins", "b-min-sep")


@pytest.mark.parametrize("schedule", SAMPLED)
def test_a_resumed_run_draws_the_same_cohorts(schedule: str, tmp_path: Path) -> None:
    run = small_run(schedule=schedule, cohort_size=3, mechanism="identity")
    whole = run_small(tmp_path / "whole", run)

    class Stop(Exception):
        pass

    def stop(record: RoundRecord) -> None:
        if record.rounds == 5:
            raise Stop

    with pytest.raises(Stop), Session.start(tmp_path / "run", run) as session:
        run_on_grid(session, InProcessGrid(client_for(session)), stop)
    with Session.resume(tmp_path / "run", run) as session:
        run_on_grid(session, InProcessGrid(client_for(session)))
        assert np.array_equal(session.server.parameters.numpy(), whole)


def test_private_runs_of_one_configuration_draw_different_cohorts(tmp_path: Path) -> None:
    run = small_run(schedule="b-min-sep", cohort_size=3, noise_seed=-1)
    cohorts = []
    for name in ("a", "b"):
        with Session.start(tmp_path / name, run) as session:
            schedule = session.cohort_schedule()
            cohorts.append([schedule.cohort(t).tolist() for t in range(run.cohorts.rounds)])
    assert cohorts[0] != cohorts[1]


def test_empty_cohorts_are_released_and_do_not_stop_the_run(tmp_path: Path) -> None:
    """One user in twenty-four on average: three empty rounds in a row are nothing unusual."""
    run = small_run(schedule="b-min-sep", cohort_size=1, min_separation=1, rounds=30, noise_seed=2)
    run_small(tmp_path / "run", run)
    with Ledger.open(tmp_path / "run" / "ledger.sqlite", read_only=True) as ledger:
        released = ledger.released
        asked = {t for t, _ in participations(ledger)}
    assert released == 30
    silent = [t for t in range(28) if not {t, t + 1, t + 2} & asked]
    assert silent, "this seed no longer shows three empty rounds in a row; choose another"
