"""Checkpoints in some rounds only: an interruption costs work, and no row of noise is ever used
twice.
"""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from support.child_processes import in_child
from support.small_runs import client_for, linear_task, small_run

import fedmf
from fedmf.flower.clients import run_on_grid
from fedmf.flower.grid import InProcessGrid

#: Updates do not depend on the model and the server has no momentum, so the model is a sum over its
#: rounds.
TASK = linear_task(24, 40)
RUN = small_run(TASK, mechanism="bsr", bands=4, server_momentum=0.0, checkpoint_every=5)


def _run_until(path: Path, log: Path, t: int, where: str) -> None:
    """Start or resume; die at a point of the release of round t; log what was released before
    that.
    """
    opened = fedmf.resume(RUN, path) if path.exists() else fedmf.start(RUN, path)
    with opened as session:
        release = session.server.release
        commit_round = session.directory.ledger.commit_round

        def logged_release(total, users):
            model = release(total, users)
            with log.open("a") as file:
                file.write(json.dumps({"t": session.server.t - 1, "model": model.tolist()}) + "\n")
            return model

        def dying_commit_round(round_index, *rest):
            if round_index == t and where == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            commit_round(round_index, *rest)
            if round_index == t and where == "after":
                os.kill(os.getpid(), signal.SIGKILL)

        session.server.release = logged_release  # type: ignore[method-assign]
        session.directory.ledger.commit_round = dying_commit_round  # type: ignore[method-assign]
        run_on_grid(session, InProcessGrid(client_for(session)))


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """What each round of an uninterrupted run adds to the model, shape (rounds, d)."""
    path = tmp_path_factory.mktemp("whole") / "run"
    models = [np.zeros(40)]
    with fedmf.start(RUN, path) as session:
        run_on_grid(
            session,
            InProcessGrid(client_for(session)),
            lambda _: models.append(session.server.parameters.numpy().astype(np.float64)),
        )
    return np.diff(models, axis=0)


# (round, before or after its ledger row, rounds that this interruption loses), from 0; kept after
# 5, 10, 12.
CASES = [
    [(4, "before", range(0, 4))],  # its checkpoint is written, but no row names it
    [(4, "after", range(0))],
    [(6, "after", range(5, 7)), (8, "before", range(5, 8)), (11, "before", range(10, 11))],
]


@pytest.mark.filterwarnings(
    "ignore:This process:DeprecationWarning"
)  # fork with threads: they are idle
@pytest.mark.parametrize("kills", CASES, ids=str)
def test_killed_between_checkpoints_loses_work_and_repeats_nothing(
    kills: list[tuple[int, str, range]], steps: np.ndarray, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    log = tmp_path / "log"
    lost: set[int] = set()
    for t, where, rounds in kills:
        assert in_child(lambda t=t, where=where: _run_until(path, log, t, where)) == -signal.SIGKILL
        with fedmf.resume(RUN, path) as session:
            assert session.server.t == t + (where == "after")
            assert session.server.lost == rounds
        lost |= set(rounds)
    assert in_child(lambda: _run_until(path, log, -1, "never")) == 0

    kept = [t for t in range(RUN.cohorts.rounds) if t not in lost]
    with fedmf.resume(RUN, path) as session:
        model = session.server.parameters.numpy()
        assert session.directory.ledger.released == RUN.cohorts.rounds
        assert session.server.lost == range(0)
    # Row t of the noise went into round t or, where the round was lost, nowhere: float32 sums of 12
    # rounds.
    np.testing.assert_allclose(model, steps[kept].sum(axis=0), atol=2e-6)
    released = [json.loads(line)["t"] for line in log.read_text().splitlines()]
    assert released == sorted(set(released)), "a round was released twice"
    assert np.abs(steps).max(axis=1).min() > 1e-3


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_stop_between_checkpoints_loses_nothing(
    error: type[BaseException], tmp_path: Path
) -> None:
    def stopping(record: fedmf.runs.RoundRecord) -> None:
        if record.rounds == 7:
            raise error

    whole = fedmf.simulate(RUN, tmp_path / "whole")
    with pytest.raises(error):
        fedmf.simulate(RUN, tmp_path / "run", on_round=stopping)
    with fedmf.resume(RUN, tmp_path / "run") as session:
        assert (session.server.t, session.server.lost) == (7, range(0))
    continued = fedmf.simulate(RUN, tmp_path / "run")
    assert np.array_equal(continued.parameters.numpy(), whole.parameters.numpy())


def test_only_true_stops_a_run(tmp_path: Path) -> None:
    for answer in (1, "yes", np.True_, [0]):
        place = tmp_path / f"{type(answer).__name__}"
        on_round = lambda _, answer=answer: answer  # type: ignore[misc]  # noqa: E731
        result = fedmf.simulate(RUN, place, on_round=on_round)  # type: ignore[arg-type]
        assert result.stopped == ""
    stopping = fedmf.simulate(RUN, tmp_path / "true", on_round=lambda record: record.rounds == 3)
    assert stopping.stopped == "on_round"
