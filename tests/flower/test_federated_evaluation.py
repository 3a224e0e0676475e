"""Federated evaluation: right numbers, nothing else changed, and said to be not private."""

import logging
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from support.small_runs import answering, client_for, run_small, schedule_of, small_run

import fedmf
from fedmf.flower.local_run.grid import InProcessGrid
from fedmf.flower.simulation import run_on_grid
from fedmf.flower.strategy import CorrelatedNoiseStrategy
from fedmf.rounds import RoundReport
from fedmf.runs import Run, not_private
from fedmf.runs.outputs import METRICS
from fedmf.statements.words import NOT_PRIVATE

#: Users of unequal size, with noise, momentum and a checkpoint's worth of state.
KEYS = {"mechanism": "bisr", "bands": 4, "partition": "dirichlet-sizes", "evaluate_every": 5}
DUE = [5, 10, 12]
TASK = small_run(**KEYS).task_source.build()
SECOND_NODE = 2**63 + 1001
FEDERATED_LOSS, FEDERATED_ACCURACY = not_private("loss"), not_private("accuracy")


def run_with(**changes: object) -> Run:
    return small_run(**{**KEYS, "evaluation": "not-private", **changes})


def by_hand(parameters: np.ndarray, users: list[int]) -> tuple[float, float]:
    """Mean cross-entropy and accuracy over all examples of some users, one example at a time."""
    losses, right = [], []
    for user in users:
        features, labels = TASK.dataset.examples(np.array([user]))
        for x, y in zip(features, labels, strict=True):
            (output,) = TASK.model.forward(torch.from_numpy(parameters), x[None])
            losses.append(float(F.cross_entropy(output, y)))
            right.append(int(output.argmax()) == int(y))
    return float(np.mean(losses)), float(np.mean(right))


def metrics_of(path: Path) -> pd.DataFrame:
    return pd.read_parquet(path / METRICS).set_index("round")


@pytest.mark.parametrize(("messages", "workers"), [("slice", 1), ("slice", 3), ("per-user", 2)])
def test_the_numbers_are_means_over_the_examples_of_the_rounds_users(
    messages: str, workers: int, tmp_path: Path
) -> None:
    run = run_with(messages=messages, workers=workers)
    models: dict[int, np.ndarray] = {}
    with fedmf.start(run, tmp_path / "run") as session:
        run_on_grid(
            session,
            InProcessGrid(client_for(session), nodes=workers),
            lambda report, _: models.update({report.t + 1: session.server.parameters.numpy().copy()}),
        )
    table = metrics_of(tmp_path / "run")
    assert list(table.index) == [0, *DUE]
    assert math.isnan(table[FEDERATED_LOSS][0])
    for number in DUE:
        loss, accuracy = by_hand(models[number], schedule_of(run).cohort(number - 1).tolist())
        assert table[FEDERATED_LOSS][number] == pytest.approx(loss, rel=1e-5)  # float32 outputs
        assert table[FEDERATED_ACCURACY][number] == pytest.approx(accuracy, abs=1e-12)
        assert table[FEDERATED_LOSS][number] != pytest.approx(table["loss"][number], rel=1e-3)


@pytest.mark.parametrize("messages", ["slice", "per-user"])
def test_the_model_is_the_same_with_and_without(messages: str, tmp_path: Path) -> None:
    """No noise is drawn and nothing of the run moves: not a bit of model, ledger or central metrics."""
    asked: list[int] = []

    def note(request: Message, reply: Message) -> Message:
        asked.append(int(request.content.config_records["config"]["round"]) + 1)
        return reply

    def carry_out(name: str, run: Run) -> tuple[bytes, list, dict, pd.DataFrame]:
        with fedmf.start(run, tmp_path / name) as session:
            run_on_grid(session, InProcessGrid(answering(client_for(session), evaluate=note)))
            ledger = session.directory.ledger
            model, noise = session.server.parameters.numpy().tobytes(), session.server._noise_state({})
            return model, list(ledger.participations()), noise, metrics_of(tmp_path / name)

    plain = carry_out("without", small_run(**KEYS, messages=messages))
    assert asked == []
    evaluated = carry_out("with", run_with(messages=messages))
    assert asked == DUE
    assert evaluated[:2] == plain[:2]
    assert str(evaluated[2]) == str(plain[2])
    assert list(plain[3].columns) == ["loss", "accuracy", "epsilon"]
    added = [FEDERATED_LOSS, FEDERATED_ACCURACY]
    pd.testing.assert_frame_equal(evaluated[3].drop(columns=added), plain[3])


def _answer(request: Message, users: list | None = None, t: int | None = None, **metrics: object) -> Message:
    """An answer with other contents than the request asks for."""
    asked = request.content.config_records["config"]
    names = list(asked["users"])  # type: ignore[arg-type]
    owned = int(TASK.dataset.sizes(TASK.dataset.indices(names)).sum())
    values = {"loss": [1.0], "accuracy": [1.0], "examples": owned, **metrics}
    content = {
        "metrics": MetricRecord({name: value for name, value in values.items() if value is not None}),  # type: ignore[arg-type]
        "config": ConfigRecord(
            {"round": asked["round"] if t is None else t, "users": names if users is None else users}
        ),
    }
    return Message(RecordDict(content), reply_to=request)  # type: ignore[arg-type]


def _fail(request: Message, reply: Message) -> Message:
    raise RuntimeError("disk on fire")


def _without_metrics(request: Message, reply: Message) -> Message:
    del reply.content["metrics"]
    return reply


def _without_config(request: Message, reply: Message) -> Message:
    del reply.content["config"]
    return reply


BAD = {
    "raises": _fail,
    "no metrics": _without_metrics,
    "no header": _without_config,
    "NaN": lambda q, _: _answer(q, loss=[math.nan]),
    "infinite": lambda q, _: _answer(q, loss=[-math.inf]),
    "loss is an integer": lambda q, _: _answer(q, loss=10**400),
    "losses are integers": lambda q, _: _answer(q, loss=[1]),
    "loss is a number": lambda q, _: _answer(q, loss=1.0),
    "two losses": lambda q, _: _answer(q, loss=[1.0, 2.0]),
    "no loss": lambda q, _: _answer(q, loss=None),
    "more correct than examples": lambda q, _: _answer(q, accuracy=[1e6]),
    "fewer than none correct": lambda q, _: _answer(q, accuracy=[-1.0]),
    "correct is an integer": lambda q, _: _answer(q, accuracy=[1]),
    "no accuracy": lambda q, _: _answer(q, accuracy=None),
    "too many examples": lambda q, _: _answer(q, examples=2**62),
    "no examples": lambda q, _: _answer(q, examples=0, accuracy=[0.0]),
    "another round": lambda q, _: _answer(q, t=99),
    "nobody": lambda q, _: _answer(q, users=[]),
    "strangers": lambda q, _: _answer(q, users=["u999"]),
    "twice the same": lambda q, _: _answer(q, users=["7", "7"]),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return run_small(tmp_path_factory.mktemp("plain") / "run", small_run(**KEYS, workers=2)).tobytes()


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_answer_is_left_out_and_the_run_goes_on(kind: str, plain: bytes, tmp_path: Path) -> None:
    def tamper(request: Message, reply: Message) -> Message:
        return BAD[kind](request, reply) if reply.metadata.src_node_id == SECOND_NODE else reply

    reports: list[RoundReport] = []
    run = run_with(workers=2)
    models: list[np.ndarray] = []
    with fedmf.start(run, tmp_path / "run") as session:

        def note(report: RoundReport, _: object) -> None:
            reports.append(report)
            models.append(session.server.parameters.numpy().copy())

        run_on_grid(session, InProcessGrid(answering(client_for(session), evaluate=tamper), nodes=2), note)
    assert models[-1].tobytes() == plain
    table = metrics_of(tmp_path / "run")
    for report, model in zip(reports, models, strict=True):
        due = report.t + 1 in DUE
        assert len(report.failures) == due
        assert all("evaluation, node" in failure.reason for failure in report.failures)
        if due:
            honest = [u for u in schedule_of(run).cohort(report.t).tolist() if u % 2 == 0]
            assert table[FEDERATED_LOSS][report.t + 1] == pytest.approx(by_hand(model, honest)[0], rel=1e-5)


def test_without_one_valid_answer_the_columns_are_empty(plain: bytes, tmp_path: Path) -> None:
    huge = lambda q, _: _answer(q, loss=[math.nan])  # noqa: E731
    model = run_small(
        tmp_path / "run",
        run_with(workers=2),
        client=lambda s: answering(client_for(s), evaluate=huge),
    )
    assert model.tobytes() == plain
    table = metrics_of(tmp_path / "run")
    assert list(table.index) == [0, *DUE]
    assert table[[FEDERATED_LOSS, FEDERATED_ACCURACY]].isna().all().all()
    assert table["loss"].notna().all()


def test_the_largest_finite_losses_do_not_overflow(tmp_path: Path) -> None:
    largest = float(np.finfo(np.float64).max)
    huge = lambda q, _: _answer(q, loss=[largest])  # noqa: E731
    run_small(
        tmp_path / "run",
        run_with(workers=2),
        client=lambda s: answering(client_for(s), evaluate=huge),
    )
    assert np.isfinite(metrics_of(tmp_path / "run")[FEDERATED_LOSS][DUE]).all()


def test_only_users_whose_updates_are_in_the_model_are_evaluated(tmp_path: Path) -> None:
    """Whose reply did not arrive is not on record for the round, and is not asked."""
    asked: set[str] = set()

    def note(request: Message, reply: Message) -> Message:
        asked.update(request.content.config_records["config"]["users"])  # type: ignore[arg-type]
        return reply

    def train(request: Message, reply: Message) -> Message:
        gone = Error(ErrorCode.NODE_UNAVAILABLE, "left")
        return Message(gone, reply_to=request) if reply.metadata.src_node_id == SECOND_NODE else reply

    run_small(
        tmp_path / "run",
        run_with(workers=2, evaluate_every=1),
        client=lambda session: answering(client_for(session), train, evaluate=note),
    )
    assert asked == set(TASK.dataset.user_ids[0::2])


def test_a_run_stopped_in_an_evaluation_is_resumed_to_the_same_model(plain: bytes, tmp_path: Path) -> None:
    def stop(request: Message, reply: Message) -> Message:
        if int(request.content.config_records["config"]["round"]) == 4:
            raise KeyboardInterrupt
        return reply

    run = run_with(workers=2)
    with fedmf.start(run, tmp_path / "run") as session, pytest.raises(KeyboardInterrupt):
        run_on_grid(session, InProcessGrid(answering(client_for(session), evaluate=stop), nodes=2))
    with fedmf.resume(run, tmp_path / "run") as session:
        assert session.server.t == 5
        run_on_grid(session, InProcessGrid(client_for(session), nodes=2))
        assert session.server.parameters.numpy().tobytes() == plain
    table = metrics_of(tmp_path / "run")
    assert list(table.index) == [0, *DUE]
    assert table["loss"].notna().all()
    assert table[FEDERATED_LOSS].notna().tolist() == [False, False, True, True]


def test_statement_and_log_say_that_it_is_not_private(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said = NOT_PRIVATE["federated evaluation"]
    for wanted in (False, True):
        run = small_run(**KEYS, evaluation="not-private" if wanted else "off")
        caplog.clear()
        with caplog.at_level(logging.WARNING, "fedmf"):
            run_small(tmp_path / str(wanted), run)
        assert sum("not private" in line for line in caplog.messages) == wanted
        with fedmf.resume(run, tmp_path / str(wanted)) as session:
            statement, text = session.statement().to_dict(), session.statement().render_text()
        assert (said in statement["not_covered"]) == wanted
        assert ("federated evaluation" in " ".join(statement["not_covered"])) == wanted
        assert (said in text) == wanted


def test_flowers_own_loop_reports_it(tmp_path: Path) -> None:
    from flwr.serverapp.strategy import Strategy

    from fedmf.flower.population import Population

    run = run_with(rounds=5, evaluate_every=4)
    with fedmf.start(run, tmp_path / "run") as session:
        assignment = Population(session.roster)
        strategy = CorrelatedNoiseStrategy(session, assignment=assignment)
        grid = InProcessGrid(client_for(session))
        assignment.gather(grid, 5.0)
        result = Strategy.start(strategy, grid, strategy.initial_arrays(), num_rounds=run.cohorts.rounds)
        last = by_hand(session.server.parameters.numpy(), schedule_of(run).cohort(4).tolist())
    found = result.evaluate_metrics_clientapp
    assert sorted(found) == [4, 5]
    assert found[5][FEDERATED_LOSS] == pytest.approx(last[0], rel=1e-5)
    assert found[5][FEDERATED_ACCURACY] == pytest.approx(last[1], abs=1e-12)
