"""The one loop of rounds, under both strategies: what a kill or a stop between two of its steps loses."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message
from flwr.serverapp.strategy import FedAvg
from support.child_processes import in_child
from support.evaluated_apps import evaluated, reported
from support.judged_tasks import carry_out, judged_run, judged_task
from support.small_runs import answering, client_for, reply_with
from support.wrapped_apps import (
    DIMENSION,
    ROSTER,
    USERS,
    Next,
    adding,
    model,
    private,
    saying,
    update_of,
)

import fedmf
from fedmf.flower import CorrelatedNoise, CorrelatedNoiseStrategy, InProcessGrid, UsersSayWho
from fedmf.flower.simulation import run_on_grid
from fedmf.parts import QuantileClipping
from fedmf.records import Ledger
from fedmf.rounds import Rounds
from fedmf.runs import PrivateEvaluator, Run, account
from fedmf.training import UserFailure

CLIPPING = QuantileClipping(quantile=0.3, rounds_per_update=1)
#: The round at which processes die or are stopped; an evaluation follows it.
DYING = 4


def own_run() -> Run:
    return dataclasses.replace(judged_run(judged_task(1, 30), mechanism="bisr"), clipping=CLIPPING)


def of_own_clients(path: Path) -> None:
    carry_out(path, own_run())


def wrapped_app(path: Path, **options: Any) -> None:
    strategy = evaluated(path, identity=UsersSayWho(ROSTER), adaptive_clipping=CLIPPING, **options)
    grid = InProcessGrid(saying(lambda user, _: update_of(user), reported), nodes=USERS)
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


def _released(rounds: Rounds, *_: Any) -> bool:
    return rounds.session.server.t == DYING


def _numbered(_: Rounds, number: int, *__: Any) -> bool:
    return number == DYING


def _evaluated(evaluator: PrivateEvaluator, *_: Any) -> bool:
    return evaluator.plan.after(evaluator.released - 1) == DYING


#: Where a process dies, by what it has done of its round.
STEPS: dict[str, Callable[[], None]] = {
    "asked": lambda: dies_after(Rounds, "ask", _numbered),
    "released": lambda: dies_before(Rounds, "_keep", _released),
    "kept": lambda: dies_before(Rounds, "_judge", _numbered),
    "asked about": lambda: dies_after(Rounds, "ask_about", _numbered),
    "judged": lambda: dies_after(
        PrivateEvaluator, "release", lambda e, *_: e.plan.after(e.released - 1) == DYING
    ),
    "judged and kept": lambda: dies_before(Rounds, "_end", _numbered),
    "told": lambda: dies_after(Rounds, "_end", _numbered),
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
    """Rows of metrics (clip norms, ε, private estimates), models and statements are those of a whole run."""
    name, expected = undisturbed
    path = tmp_path / "run"

    def dying() -> None:
        STEPS[step]()
        STRATEGIES[name](path)

    assert in_child(dying) == -signal.SIGKILL
    STRATEGIES[name](path)
    assert what_is_kept(path) == expected


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_row_that_a_killed_process_did_not_make_is_made_up_for_where_nobody_is_asked(
    tmp_path: Path,
) -> None:
    """Without an evaluation to catch up on nothing else looks at the round again."""

    def quiet(path: Path) -> None:
        strategy = private(FedAvg(), path, identity=UsersSayWho(ROSTER), adaptive_clipping=CLIPPING)
        grid = InProcessGrid(saying(lambda user, _: update_of(user)), nodes=USERS)
        strategy.start(grid=grid, initial_arrays=model())
        strategy.close()

    def dying() -> None:
        STEPS["released"]()
        quiet(tmp_path / "run")

    quiet(tmp_path / "whole")
    assert in_child(dying) == -signal.SIGKILL
    quiet(tmp_path / "run")
    assert what_is_kept(tmp_path / "run") == what_is_kept(tmp_path / "whole")


def _failures(path: Path) -> list[tuple[int, str, str]]:
    lines = [json.loads(line) for line in (path / "failures.jsonl").read_text().splitlines()]
    return [(line["round"], line["user"], line["stage"]) for line in lines]


def _rows(path: Path) -> set[int]:
    with Ledger.open(path / "ledger.sqlite", read_only=True) as ledger:
        return set(ledger.metrics())


def test_a_stop_in_an_evaluation_loses_neither_names_nor_the_row_of_its_round(tmp_path: Path) -> None:
    """Of fedmf's own clients: somebody presses a key while the first evaluation waits for rows."""
    path, told = tmp_path / "run", list[tuple[UserFailure, ...]]()
    run = judged_run(judged_task(1, 30), messages="per-user", users_per_message=1, refusals=0)

    def train(request: Message, reply: Message) -> Message:
        return reply_with(request, reply, array=("rows", np.full((1, 30), np.nan, np.float32)))

    def evaluate(_: Message, reply: Message) -> Message:
        raise KeyboardInterrupt

    with fedmf.start(run, path) as session:
        grid = InProcessGrid(answering(client_for(session), train, evaluate))
        with pytest.raises(KeyboardInterrupt):
            run_on_grid(session, grid, lambda report, _: told.append(report.failures))
    size = run.cohorts.size
    assert [(t, stage) for t, _, stage in _failures(path)] == size * [(1, "reply")] + size * [(2, "reply")]
    assert [len(failures) for failures in told] == [size, size]
    assert _rows(path) == {0, 1, 2}
    assert json.loads((path / "statement.json").read_text())["rounds_released"] == 2


def test_a_stop_in_an_evaluation_of_an_app_loses_neither(tmp_path: Path) -> None:
    path = tmp_path / "run"

    def broken(message: Message, context: Context, call_next: Next) -> Message:
        if message.metadata.message_type == "evaluate":
            raise KeyboardInterrupt
        return call_next(message, context)

    strategy = evaluated(path, adaptive_clipping=CLIPPING)
    app = adding(lambda *_: np.full(DIMENSION, np.nan), reported, mods=[broken])
    with pytest.raises(KeyboardInterrupt):
        strategy.start(grid=InProcessGrid(app, nodes=USERS), initial_arrays=model())
    strategy.close()
    assert {(t, stage) for t, _, stage in _failures(path)} == {(1, "reply")}
    with Ledger.open(path / "ledger.sqlite", read_only=True) as ledger:
        assert ledger.metrics()[1].keys() >= {"epsilon", "clip_norm"}
    assert json.loads((path / "statement.json").read_text())["rounds_released"] == 1


def test_names_of_an_evaluation_that_was_left_are_kept(tmp_path: Path) -> None:
    """A process died before an evaluation, which the next makes up for: who fails in it is on record too."""
    path = tmp_path / "run"
    run = judged_run(judged_task(1, 30), messages="per-user", users_per_message=1)

    def dying() -> None:
        dies_before(Rounds, "_judge", lambda _, number, *__: number == 2)
        carry_out(path, run)

    assert in_child(dying) == -signal.SIGKILL

    def evaluate(request: Message, reply: Message) -> Message:
        if int(request.content.config_records["config"]["round"]) == 1:
            return reply_with(request, reply, array=("rows", np.full((1, 2), np.nan)))
        return reply

    carry_out(path, run, evaluate)
    assert {(t, stage) for t, _, stage in _failures(path)} == {(2, "evaluation")}


def test_evaluate_fn_sees_each_committed_model_once_and_the_initial_one(tmp_path: Path) -> None:
    """In fedmf's own strategy as around another's; figures of users come in Flower's result."""
    run, seen = judged_run(judged_task(1, 30)), dict[int, float]()
    with fedmf.start(run, tmp_path / "run") as session:

        def note(number: int, arrays: Any) -> None:
            assert number not in seen
            assert session.server.t == number
            seen[number] = float(np.abs(arrays["parameters"].numpy()).sum())

        strategy = CorrelatedNoiseStrategy(session)
        result = strategy.start(InProcessGrid(client_for(session)), evaluate_fn=note)
    assert sorted(seen) == [*range(13)]
    assert len(set(seen.values())) == 13
    assert sorted(result.evaluate_metrics_clientapp) == [2, 4, 6, 8, 10, 12]


def test_sessions_of_both_have_the_same_rounds() -> None:
    """No strategy has a loop of its own."""
    for kind in (CorrelatedNoise, CorrelatedNoiseStrategy):
        own = {"configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate"} & vars(
            kind
        ).keys()
        assert not own


def test_silence_is_asked_again_unless_a_useless_node_is_left_out(tmp_path: Path) -> None:
    """Another useless reply of it would have ended the wait: in a round, and in a private evaluation."""
    run = judged_run(judged_task(1, 30), messages="per-user", users_per_message=1, refusals=1)
    with fedmf.start(run, tmp_path / "run") as session:
        strategy, grid = CorrelatedNoiseStrategy(session), InProcessGrid(client_for(session))
        rounds, dialogue = strategy.begun(None), strategy.dialogue
        dialogue.nodes.gather(grid, 5.0)
        link = strategy.link(grid)
        for ask, number, users in (
            (rounds.ask, 1, [session.roster[u] for u in session.cohort_schedule().cohort(0)]),
            (rounds.ask_about, 2, list(session.judges(0).values())),
        ):
            everybody = len(ask(number, link))
            assert rounds._may_repeat
            user = users[0]
            (node,) = dialogue.served.nodes_of(np.array([session.roster.index(user)]))
            assert node is not None
            dialogue.quarantine.refused(node, [user])
            assert len(ask(number, link)) == everybody - 1
            assert not rounds._may_repeat
            dialogue.quarantine.accepted(node, [user])
