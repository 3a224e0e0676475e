"""The one loop of rounds, under both strategies: what a kill or a stop between two of its steps loses."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg
from support.child_processes import in_child
from support.small_runs import client_for, linear_task, small_run
from support.wrapped_apps import (
    ROSTER,
    USERS,
    model,
    private,
    saying,
    update_of,
)

import fedmf
from fedmf.flower import CorrelatedNoise, CorrelatedNoiseStrategy, InProcessGrid, UsersSayWho
from fedmf.flower.strategy import run_on_grid
from fedmf.records import Ledger
from fedmf.runs import Rounds, Run, Session, account
from fedmf.runs.statistics import QuantileClipping

CLIPPING = QuantileClipping(quantile=0.3, rounds_per_update=1)
#: The round at which processes die.
DYING = 4


def own_run() -> Run:
    return dataclasses.replace(small_run(linear_task(24, 30), mechanism="bisr"), clipping=CLIPPING)


def of_own_clients(path: Path) -> None:
    run = own_run()
    with fedmf.resume(run, path) if path.exists() else fedmf.start(run, path) as session:
        run_on_grid(session, InProcessGrid(client_for(session), nodes=run.execution.workers))


def wrapped_app(path: Path, **options: Any) -> None:
    strategy = private(FedAvg(), path, identity=UsersSayWho(ROSTER), adaptive_clipping=CLIPPING, **options)
    grid = InProcessGrid(saying(lambda user, _: update_of(user)), nodes=USERS)
    strategy.start(grid=grid, initial_arrays=model())
    strategy.close()


STRATEGIES: dict[str, Callable[[Path], None]] = {"own clients": of_own_clients, "an app": wrapped_app}


def what_is_kept(path: Path) -> tuple[Any, ...]:
    """Rows of metrics, the model, the statement."""
    with Ledger.open(path / "ledger.sqlite", read_only=True) as ledger:
        rows = ledger.metrics()
    parameters = {name: tensor.tolist() for name, tensor in fedmf.load_model(path).items()}
    return rows, parameters, account(path).to_dict()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dies_before(owner: Any, name: str, when: Callable[..., bool]) -> None:
    called = getattr(owner, name)

    def dying(self: Any, *arguments: Any, **named: Any) -> Any:
        if when(self, *arguments):
            die()
        return called(self, *arguments, **named)

    setattr(owner, name, dying)


def dies_after(owner: Any, name: str, when: Callable[..., bool]) -> None:
    called = getattr(owner, name)

    def dying(self: Any, *arguments: Any, **named: Any) -> Any:
        returned = called(self, *arguments, **named)
        if when(self, *arguments):
            die()
        return returned

    setattr(owner, name, dying)


def _noted(_: Session, t: int, *__: Any) -> bool:
    return t + 1 == DYING


def _numbered(_: Rounds, number: int, *__: Any) -> bool:
    return number == DYING


#: Where a process dies, by what it has done of its round.
STEPS: dict[str, Callable[[], None]] = {
    "asked": lambda: dies_after(Rounds, "cohort", _numbered),
    "released": lambda: dies_before(Session, "note_failures", _noted),
    "kept": lambda: dies_before(Rounds, "_tell", lambda self, _: self.session.server.t == DYING),
    "told": lambda: dies_after(Rounds, "release", _numbered),
}


@pytest.fixture(scope="module", params=STRATEGIES)
def undisturbed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    path = tmp_path_factory.mktemp("whole") / "run"
    STRATEGIES[request.param](path)
    return request.param, what_is_kept(path)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("step", STEPS)
def test_a_process_killed_between_any_two_steps_loses_nothing(
    step: str, undisturbed: tuple[str, Any], tmp_path: Path
) -> None:
    """Rows of metrics (clip norms, ε), models and statements are those of a whole run."""
    name, expected = undisturbed
    path = tmp_path / "run"

    def dying() -> None:
        STEPS[step]()
        STRATEGIES[name](path)

    assert in_child(dying) == -signal.SIGKILL
    STRATEGIES[name](path)
    assert what_is_kept(path) == expected


def test_evaluate_fn_sees_each_committed_model_once_and_the_initial_one(tmp_path: Path) -> None:
    """In fedmf's own strategy as around another's."""
    run, seen = small_run(linear_task(24, 30)), dict[int, float]()
    with fedmf.start(run, tmp_path / "run") as session:

        def note(number: int, arrays: Any) -> None:
            assert number not in seen
            assert session.server.t == number
            seen[number] = float(np.abs(arrays["parameters"].numpy()).sum())

        strategy = CorrelatedNoiseStrategy(session)
        result = strategy.start(InProcessGrid(client_for(session)), evaluate_fn=note)
    assert sorted(seen) == [*range(13)]
    assert len(set(seen.values())) == 13
    assert not result.evaluate_metrics_clientapp


def test_sessions_of_both_have_the_same_rounds() -> None:
    """No strategy has a loop of its own."""
    for kind in (CorrelatedNoise, CorrelatedNoiseStrategy):
        own = {"configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate"} & vars(
            kind
        ).keys()
        assert not own
