"""Checkpoints in some rounds only: an interruption costs work, and no row of noise is ever used twice."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.ledgers import last_state, tails
from support.small_runs import client_for, linear_task, run_small, small_run

import fedmf
from fedmf.errors import LedgerError
from fedmf.flower.local_run.grid import InProcessGrid
from fedmf.flower.simulation import run_on_grid
from fedmf.runs import Session

#: Updates do not depend on the model and the server has no momentum, so the model is a sum over its rounds.
TASK = linear_task(24, 40)
RUN = small_run(TASK, mechanism="bsr", bands=4, server_momentum=0.0, checkpoint_every=5)


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """What each round of an uninterrupted run adds to the model, shape (rounds, d)."""
    path = tmp_path_factory.mktemp("whole") / "run"
    models = [np.zeros(40)]
    with fedmf.start(RUN, path) as session:
        run_on_grid(
            session,
            InProcessGrid(client_for(session)),
            lambda _report, _row: models.append(session.server.parameters.numpy().astype(np.float64)),
        )
    return np.diff(models, axis=0)


def test_the_model_is_that_of_a_run_that_keeps_every_round(tmp_path: Path) -> None:
    keys = {"mechanism": "blt", "server_momentum": 0.9}
    sparse = run_small(tmp_path / "sparse", small_run(TASK, **keys, checkpoint_every=7))
    assert np.array_equal(sparse, run_small(tmp_path / "every", small_run(TASK, **keys)))
    assert last_state(tmp_path / "sparse")[2]["t"] == 12
    assert len(tails(tmp_path / "sparse")) == 1


def test_noise_of_the_rounds_after_an_interruption_is_that_of_their_rows(tmp_path: Path) -> None:
    """Feedback streams need the rows that were lost: they are made again inside, and added to nothing."""
    run = small_run(TASK, mechanism="banded-toeplitz", bands=4, server_momentum=0.0, checkpoint_every=6)
    moves = {}
    for name, stop in (("whole", 12), ("parts", 4)):
        with fedmf.start(run, tmp_path / name) as session:
            moves[name] = _noise_steps(session, stop)
    with fedmf.resume(run, tmp_path / "parts") as session:
        assert session.server.lost == range(0, 4)
        rest = _noise_steps(session, 8)
    # Models differ in what was added before; each step is a float32 difference of entries below 4.
    torch.testing.assert_close(torch.stack(rest), torch.stack(moves["whole"][4:]), atol=1e-6, rtol=0)


def _noise_steps(session: Session, rounds: int) -> list[torch.Tensor]:
    """What rounds without a reply add: their noise alone."""
    steps = []
    for _ in range(rounds):
        before = session.server.parameters
        steps.append(session.server.release(session.server.new_sum(), []) - before)
    return steps


def test_an_older_checkpoint_than_the_ledger_names_is_refused(tmp_path: Path) -> None:
    with fedmf.start(RUN, tmp_path / "run") as session:
        _noise_steps(session, 5)
        (file,) = tails(tmp_path / "run")
        old = file.read_bytes()
        _noise_steps(session, 5)
    (file,) = tails(tmp_path / "run")
    file.write_bytes(old)
    with pytest.raises(LedgerError, match=r"cannot be gone on with: .*last state missing"):
        fedmf.resume(RUN, tmp_path / "run")
