"""Private evaluation in runs: right numbers, users' failures are theirs alone, released exactly once."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message
from support.judged_tasks import ROUNDS, Tamper, carry_out, judged_run
from support.small_runs import reply_with, small_run

import fedmf
from fedmf.accounting import UserLevel, gaussian_epsilon
from fedmf.cli.view import RunView
from fedmf.cohorts import BallsInBinsCohorts
from fedmf.errors import ConfigError
from fedmf.noise import NoiseStream
from fedmf.rounds import run_in_process
from fedmf.runs import PrivateEvaluation, Run, Session, account
from fedmf.runs.evaluation import private_columns
from fedmf.runs.outputs import METRICS
from fedmf.statements import user_privacy
from fedmf.training import judgements

KEYS = {"mechanism": "bisr", "bands": 4, "evaluate_every": 5, "partition": "dirichlet-sizes"}
TASK = small_run(**KEYS).task_source.build()
DUE = list(range(2, ROUNDS + 1, 2))
COLUMNS = [column for name in ("loss", "accuracy") for column in private_columns(name)]


def run_with(asked: PrivateEvaluation | None = None, **keys: Any) -> Run:
    return judged_run(TASK, asked, **{**KEYS, **keys})


@pytest.fixture
def silent_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise of evaluations that is not added, so that the sums can be seen."""
    add = NoiseStream.add_

    def none(self: NoiseStream, out: torch.Tensor, scale: float) -> None:
        add(self, out, 0.0 if self.source.domain.name == "EVALUATION" else scale)

    monkeypatch.setattr(NoiseStream, "add_", none)


def by_hand(parameters: torch.Tensor, user: int, bound: float) -> tuple[float, float]:
    """One user's clamped mean loss and accuracy in units of half their ranges."""
    features, labels = TASK.dataset.examples(np.array([user]))
    outputs = TASK.model.forward(parameters, features)
    loss = float(torch.nn.functional.cross_entropy(outputs, labels))
    accuracy = float((outputs.argmax(dim=1) == labels).double().mean())
    return min(loss, bound) / (bound / 2) - 1, 2 * accuracy - 1


@pytest.mark.parametrize(("messages", "workers"), [("slice", 1), ("slice", 3), ("per-user", 2)])
@pytest.mark.parametrize("size", [12, None])
def test_estimates_are_means_over_the_cohorts_users(
    messages: str, workers: int, size: int | None, tmp_path: Path, silent_noise: None
) -> None:
    """With the fixed denominator and without the noise, they are what NumPy makes of each user."""
    bound = 2.0  # below some users' losses
    asked = PrivateEvaluation(every=5, size=size, loss_bound=bound)
    expected: dict[int, np.ndarray] = {}

    def watch(session: Session) -> None:
        release = session.evaluator.release

        def noted(e: int, total: Any, users: Any) -> Any:
            indices = TASK.dataset.indices(list(users))
            assert sorted(users) == sorted(session.judges(e).values())
            rows = [by_hand(session.server.parameters, int(user), bound) for user in indices]
            expected[session.server.t] = np.sum(rows, axis=0) / (size or 24)
            return release(e, total, users)

        session.evaluator.release = noted  # type: ignore[union-attr,method-assign]

    run = run_with(asked, messages=messages, workers=workers)
    metrics = carry_out(tmp_path / "run", run, prepare=watch)
    assert sorted(expected) == [5, 10, 12]
    for t, (loss, accuracy) in expected.items():
        assert metrics[t]["loss_private"] == pytest.approx(bound / 2 * (1 + loss), rel=1e-5)
        assert metrics[t]["accuracy_private"] == pytest.approx((1 + accuracy) / 2, abs=1e-9)
    table = pd.read_parquet(tmp_path / "run" / METRICS).set_index("round")
    assert list(table.columns) == ["loss", "accuracy", "epsilon", *COLUMNS]
    assert table["loss_private"].notna().tolist() == [t in expected for t in table.index]
    assert table["epsilon"].iloc[-1] <= 8.0


def test_the_denominator_is_the_planned_size_whoever_takes_part(tmp_path: Path, silent_noise: None) -> None:
    """Else the estimate would tell how many did."""
    budgets = tmp_path / "budgets.csv"
    budgets.write_text("user,epsilon\n" + "".join(f"{user},0\n" for user in TASK.dataset.user_ids[:5]))
    asked = PrivateEvaluation(every=12, loss_bound=2.0)
    run = run_with(asked, user_budgets=str(budgets))
    metrics = carry_out(tmp_path / "run", run)
    with fedmf.resume(run, tmp_path / "run") as session:
        rows = np.array([by_hand(session.server.parameters, user, 2.0) for user in range(5, 24)])
        assert session.directory.own_records["evaluation"].user_count() == 19
    assert metrics[12]["loss_private"] == pytest.approx(1 + rows[:, 0].sum() / 24, rel=1e-5)
    assert metrics[12]["accuracy_private"] == pytest.approx(0.5 + 0.5 * rows[:, 1].sum() / 24, abs=1e-9)


def test_both_message_modes_release_the_same_bits(tmp_path: Path) -> None:
    found = [
        carry_out(tmp_path / f"{messages}{workers}", run_with(messages=messages, workers=workers))
        for messages, workers in (("slice", 1), ("slice", 3), ("per-user", 2))
    ]
    for t in DUE:
        assert len({found[0][t][name] for name in COLUMNS}) == len(COLUMNS)
    # Training differs in the rounding of updates sent one by one, so what is compared is the slices.
    assert [found[0][t] for t in DUE] == [found[1][t] for t in DUE]


def _tampered(request: Message, reply: Message, value: np.ndarray) -> Message:
    (name,) = reply.content.array_records["arrays"]
    reply.content["arrays"] = ArrayRecord({name: Array(value if name == "sum" else value[None])})
    return Message(reply.content, reply_to=request)


def _raise(request: Message, reply: Message) -> Message:
    raise RuntimeError("disk on fire")


BROKEN: dict[str, Tamper] = {
    "nan": lambda request, reply: _tampered(request, reply, np.array([np.nan, 1.0])),
    "huge": lambda request, reply: _tampered(request, reply, np.array([1e300, -1e300])),
    "short": lambda request, reply: _tampered(request, reply, np.array([1.0])),
    "whole numbers": lambda request, reply: _tampered(request, reply, np.array([2**62, 2**62])),
    "another round": lambda request, reply: reply_with(request, reply, round=99),
    "another user": lambda request, reply: reply_with(request, reply, users=["u999"]),
    "raises": _raise,
}


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("messages", ["slice", "per-user"])
def test_a_hostile_reply_moves_the_sum_by_its_own_users_at_most(
    messages: str, broken: str, tmp_path: Path, silent_noise: None
) -> None:
    """Compared with honest replies: by one user's row, or by those of one slice; who replied is on record."""
    victim = TASK.dataset.user_ids[3]

    def evaluate(request: Message, reply: Message) -> Message:
        users = list(request.content.config_records["config"]["users"])  # type: ignore[arg-type]
        return BROKEN[broken](request, reply) if victim in users else reply

    asked = PrivateEvaluation(every=12, size=None, loss_bound=1.0)
    run = run_with(asked, messages=messages, workers=3, users_per_message=1)
    honest = carry_out(tmp_path / "honest", run)[12]
    found = carry_out(tmp_path / "broken", run, evaluate)[12]
    users = 1 if messages == "per-user" else 8
    for name in ("loss_private", "accuracy_private"):
        assert abs(found[name] - honest[name]) <= users / 24 + 1e-9
    assert found != honest
    with fedmf.resume(run, tmp_path / "broken") as session:
        assert len(session.directory.own_records["evaluation"].participants(0)) == 24
        failed = (tmp_path / "broken" / "failures.jsonl").read_text()
    assert (victim in failed) == (broken != "huge" or messages == "slice")
    assert found["epsilon"] == honest["epsilon"]


def test_one_users_broken_examples_are_a_row_of_zeros(tmp_path: Path, silent_noise: None) -> None:
    """Nobody else's part in the sum changes, to the last bit of the released numbers."""

    class Broken(type(TASK.dataset)):  # type: ignore[misc]
        def examples(self, users: Any) -> Any:
            if 3 in users:
                raise ValueError("cannot be decoded")
            return super().examples(users)

    fields = {field.name: getattr(TASK.dataset, field.name) for field in dataclasses.fields(TASK.dataset)}
    task = dataclasses.replace(TASK, dataset=Broken(**fields))
    theta = TASK.model.initial() * 2
    rows, failures = judgements(TASK, theta, TASK.dataset.user_ids, 2.0)
    broken, named = judgements(task, theta, TASK.dataset.user_ids, 2.0)
    assert failures == []
    assert [(failure.user, failure.stage) for failure in named] == [(TASK.dataset.user_ids[3], "evaluation")]
    assert not broken[3].any()
    assert rows[3].any()
    others = [u for u in range(24) if u != 3]
    assert torch.equal(rows[others], broken[others])
    assert float(rows.abs().max()) <= 1.0


def test_training_has_the_rest_of_the_budget(tmp_path: Path) -> None:
    """The models are those of a run whose ε is that of training alone: nothing else of it changes."""
    with fedmf.start(run_with(), tmp_path / "run") as session:
        plan = session.plan
    alone = fedmf.plan(small_run(**KEYS, epsilon=gaussian_epsilon(plan.noise_multiplier, 1e-5)))
    assert alone.noise_multiplier == pytest.approx(plan.noise_multiplier, rel=1e-9)
    assert plan.epsilon_after(12) <= 8.0 < fedmf.plan(small_run(**KEYS)).epsilon_after(12) * (1 + 1e-9)


def test_users_own_budgets_hold_for_both_streams(tmp_path: Path) -> None:
    budgets = tmp_path / "budgets.csv"
    names = TASK.dataset.user_ids[:6]
    limits = dict(zip(names, [0.0, 0.5, 2.0, 4.0, 6.0, 8.0], strict=True))
    rows = [f"{name},{limit}" for name, limit in limits.items()]
    budgets.write_text("\n".join(["user,epsilon", *rows]) + "\n")
    run = run_with(user_budgets=str(budgets))
    carry_out(tmp_path / "run", run)
    with fedmf.resume(run, tmp_path / "run") as session:
        records = session.directory
        spent = user_privacy(records.header, records.ledger, records.own_records)
        share = gaussian_epsilon(session.plan.own_streams[0].noise_multiplier, 1e-5)
    of = {
        user: (epsilon, judged, trained)
        for user, epsilon, judged, trained in zip(
            spent.users, spent.epsilon, spent.evaluations, spent.participations, strict=True
        )
    }
    for name, limit in limits.items():
        epsilon, judged, _ = of.get(name, (0.0, 0, 0))
        assert epsilon <= limit
        assert (judged > 0) == (limit >= share)
    trained = [of[name][2] for name in names if name in of]
    assert trained == sorted(trained)
    assert 0 < trained[1] < trained[2] == 3
    assert all(of[name][1:] == (3, 3) for name in TASK.dataset.user_ids[6:])


@pytest.mark.parametrize("second", ["per-user", "squared-mean"])
def test_it_composes_with_a_pair_of_streams(second: str, tmp_path: Path) -> None:
    run = run_with(server_optimizer="jme-adam", second_moment=second)
    metrics = carry_out(tmp_path / "run", run)
    statement = account(tmp_path / "run").to_dict()
    assert statement["second_moment"]["form"] == second
    assert statement["evaluation"]["evaluations_released"] == 6
    assert statement["epsilon_planned"] == pytest.approx(8.0, rel=1e-9)
    assert statement["epsilon_realised"] <= statement["epsilon_planned"]
    assert COLUMNS[0] in metrics[12]


def test_what_no_theorem_covers_is_refused_in_one_line() -> None:
    asked = PrivateEvaluation()
    with pytest.raises(ConfigError, match="in an amplified run: no theorem covers") as caught:
        Run(privacy=UserLevel(amplified=True), cohorts=BallsInBinsCohorts(), evaluation=asked)
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="in a run without noise"):
        small_run(private=False, evaluation="private")
    with pytest.raises(ConfigError, match=r"m_e .* must be at most N=360"):
        Run(evaluation=PrivateEvaluation(size=361))
    with pytest.raises(ConfigError, match=r"w .window width."):
        Run(evaluation=PrivateEvaluation(workload="window:25"))


def test_a_test_part_of_training_users_is_called_what_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the table, on the screen and in the statement; a test part of others keeps the contract's names."""
    fields = {field.name: getattr(TASK.dataset, field.name) for field in dataclasses.fields(TASK.dataset)}
    dataset = type(TASK.dataset)(**{**fields, "test_owner": "training users"})
    for name, task in (("others", TASK), ("own", dataclasses.replace(TASK, dataset=dataset))):
        run = judged_run(task, PrivateEvaluation(every=12), **{**KEYS, "evaluate_every": 12})
        with fedmf.start(run, tmp_path / name) as session:
            with RunView(session) as view:
                run_in_process(session, view.update)
            view.conclude()
        said = "(not private)  users' own accuracy" in capsys.readouterr().out
        table = pd.read_parquet(tmp_path / name / METRICS)
        statement = account(tmp_path / name).to_dict()
        listed = any(line.startswith("central test part") for line in statement["not_covered"])
        assert said == listed == (name == "own")
        names = ["loss_not_private", "accuracy_not_private"] if name == "own" else ["loss", "accuracy"]
        assert list(table.columns) == ["round", *names, "epsilon", *COLUMNS]
        assert table[names].notna().all().all()
