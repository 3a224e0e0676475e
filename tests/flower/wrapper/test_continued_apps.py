"""A stopped run of a wrapped app goes on to the same model, and no other run goes on in its place."""

from pathlib import Path

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg, FedAvgM
from support.wrapped_apps import (
    INNER,
    ROSTER,
    ROUNDS,
    USERS,
    adding,
    flat,
    model,
    private,
    saying,
    update_of,
)

from fedmf.errors import ConfigError
from fedmf.flower import InProcessGrid, UsersSayWho


@pytest.mark.parametrize("kind", INNER)
def test_a_stopped_run_goes_on_to_the_same_model(kind: str, tmp_path: Path) -> None:
    """With a new strategy in a new process, on nodes that came back in another order under other ids."""

    def run(path: Path, num_rounds: int) -> np.ndarray:
        strategy = private(INNER[kind](), path, identity=UsersSayWho(ROSTER))
        grid = InProcessGrid(saying(lambda user, _: update_of(user)), nodes=USERS)
        result = strategy.start(grid=grid, initial_arrays=model(), num_rounds=num_rounds)
        strategy.close()
        assert result.arrays is not None
        return flat(result.arrays)

    run(tmp_path / "stopped", 2)
    run(tmp_path / "stopped", 3)
    resumed = run(tmp_path / "stopped", ROUNDS)
    assert np.array_equal(resumed, run(tmp_path / "whole", ROUNDS))


def test_a_run_whose_users_are_virtual_nodes_cannot_go_on(tmp_path: Path) -> None:
    grid = InProcessGrid(adding(lambda user, _: update_of(user)), nodes=USERS)
    first = private(FedAvg(), tmp_path / "run")
    first.start(grid=grid, initial_arrays=model(), num_rounds=1)
    first.close()
    with pytest.raises(ConfigError, match="users are virtual nodes"):
        private(FedAvg(), tmp_path / "run").start(grid=grid, initial_arrays=model())


def test_a_run_is_not_continued_with_users_in_another_order(tmp_path: Path) -> None:
    """Cohorts are drawn by place on the roster: another order would ask users too soon again."""
    grid = InProcessGrid(saying(lambda user, _: update_of(user)), nodes=USERS)
    first = private(FedAvg(), tmp_path / "run", identity=UsersSayWho(ROSTER))
    first.start(grid=grid, initial_arrays=model(), num_rounds=1)
    first.close()
    other = private(FedAvg(), tmp_path / "run", identity=UsersSayWho(ROSTER[::-1]))
    with pytest.raises(ConfigError, match=r"its task\.roster is"):
        other.start(grid=grid, initial_arrays=model())


def test_another_run_is_not_continued(tmp_path: Path) -> None:
    grid = InProcessGrid(saying(lambda user, _: update_of(user)), nodes=USERS)
    first = private(FedAvg(), tmp_path / "run", identity=UsersSayWho(ROSTER))
    first.start(grid=grid, initial_arrays=model(), num_rounds=1)
    first.close()
    for inner, keys in ((FedAvgM(), {}), (FedAvg(), {"epsilon": 9.0}), (FedAvg(), {"clipping_norm": 1.0})):
        other = private(inner, tmp_path / "run", identity=UsersSayWho(ROSTER), **keys)
        with pytest.raises(ConfigError, match="holds another run: its"):
            other.start(grid=grid, initial_arrays=model())
