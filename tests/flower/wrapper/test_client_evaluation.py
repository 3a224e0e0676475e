"""Metrics of unmodified clients, released with noise under one ε with training."""

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord
from scipy import stats
from support.evaluated_apps import (
    DELTA,
    EPSILON,
    RANGES,
    SHARE,
    carried_out,
    cyclic,
    evaluated,
    reported,
)
from support.wrapped_apps import (
    COHORT,
    ROUNDS,
    SEED,
    USERS,
    Next,
    dense_c,
)

from fedmf.flower import CorrelatedNoise
from fedmf.noise import Domain, GaussianSource, NoiseKey, NoiseStream
from fedmf.runs import PrivateEvaluation

FALSE_ALARM = 1e-6


def row_of(said: dict[str, Any], ranges: dict[str, tuple[float, float]] = RANGES) -> np.ndarray:
    """(clip(x) − c)/h by NumPy."""
    low, high = np.array(list(ranges.values())).T
    values = np.array([said[name] for name in ranges], dtype=np.float64)
    return (np.clip(values, low, high) - (low + high) / 2) / ((high - low) / 2)


@pytest.fixture
def silent_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise of evaluations that is not added, so that the sums can be seen."""
    add = NoiseStream.add_

    def none(self: NoiseStream, out: torch.Tensor, scale: float) -> None:
        add(self, out, 0.0 if self.source.domain is Domain.EVALUATION else scale)

    monkeypatch.setattr(NoiseStream, "add_", none)


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize("size", [COHORT, None])
def test_what_is_released_is_by_dense_matrices(size: int | None, adjacency: str, tmp_path: Path) -> None:
    """c + h·(Σ rows + √q·σ_e·s_e·f·z)/m_e, each user once whatever number of examples it reports."""
    asked = PrivateEvaluation(share=SHARE, every=2, size=size)
    strategy = evaluated(tmp_path / "run", asked, adjacency=adjacency)
    metrics = carried_out(strategy)
    assert sorted(metrics) == [2, 4, 6]
    m, times = size or USERS, 1 if size else 3  # 3 evaluations of 4 of 12 users in turn, or of all
    sigma = dp_accounting.get_sigma_gaussian(EPSILON, DELTA) / math.sqrt(SHARE)
    std = math.sqrt(2) * sigma * math.sqrt(times) * {"zero-out": 1, "replace-one": 2}[adjacency]
    source = GaussianSource(NoiseKey.from_seed(SEED), 2, Domain.EVALUATION)
    for e, t in enumerate((2, 4, 6)):
        users = cyclic(e, COHORT) if size else range(USERS)
        total = np.sum([row_of(reported(user)) for user in users], axis=0)
        mean = (total + std * source.block(e, 0, 2).numpy()) / m
        for (name, (low, high)), expected in zip(RANGES.items(), mean, strict=True):
            half = (high - low) / 2
            # The two accountants calibrate σ to 1e-8; sums are exact to 2⁻³².
            assert metrics[t][name] == pytest.approx((low + high) / 2 + half * expected, abs=1e-6)
            assert metrics[t][f"{name}_std"] == pytest.approx(half * std / m, rel=1e-7)
        assert metrics[t].keys() == {"eval_loss", "eval_loss_std", "eval_acc", "eval_acc_std"}


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[np.ndarray, dict[str, Any]]:
    """Noise of the rows of 600 metrics in the middle of their ranges, shape (E, q); the statement."""
    names = [f"m{index}" for index in range(600)]
    asked = PrivateEvaluation(share=SHARE, every=1, size=COHORT, mechanism="cgd", workload="exponential:0.9")
    path = tmp_path_factory.mktemp("noise") / "run"
    strategy = evaluated(path, asked, evaluation_metrics=dict.fromkeys(names, (0.0, 1.0)))
    metrics = carried_out(strategy, lambda _: dict.fromkeys(names, 0.5))
    shown = np.array([[metrics[t][name] - 0.5 for name in names] for t in range(1, ROUNDS + 1)]) / 0.5
    A = np.array([[0.9 ** (i - j) if i >= j else 0.0 for j in range(ROUNDS)] for i in range(ROUNDS)])
    return np.linalg.solve(A, A.sum(axis=1, keepdims=True) * shown), strategy.statement().to_dict()


def test_the_covariance_of_released_metrics_is_that_of_the_promise(
    many: tuple[np.ndarray, dict[str, Any]],
) -> None:
    """From ε, δ and share alone; a noise of ×1.1 or ×0.9 is rejected. False alarm 10⁻⁶ together."""
    noise, statement = many
    decay = statement["evaluation"]["params"]["lambda"]
    C = np.array([[decay ** (i - j) if i >= j else 0.0 for j in range(ROUNDS)] for i in range(ROUNDS)])
    contract = statement["evaluation"]["max_participations"], statement["evaluation"]["min_separation"]
    assert contract == (2, 3)
    sensitivity = max(float(np.linalg.norm(C[:, p].sum(axis=1))) for p in patterns(ROUNDS, 2, 3))
    sigma = dp_accounting.get_sigma_gaussian(EPSILON, DELTA) / math.sqrt(SHARE)
    white = C @ noise * COHORT / (math.sqrt(600) * sigma * sensitivity)

    def fits(values: np.ndarray) -> bool:
        level = FALSE_ALARM / (1 + ROUNDS * (ROUNDS - 1) // 2) / 2
        low, high = stats.chi2.ppf([level, 1 - level], values.size)
        products = values @ values.T
        off = np.abs(products[np.triu_indices(ROUNDS, 1)]) / math.sqrt(values.shape[1])
        return bool(low <= np.trace(products) <= high and (off < 1.05 * stats.norm.isf(level)).all())

    assert fits(white)
    assert not fits(1.1 * white)
    assert not fits(0.9 * white)
    assert not fits(np.stack([white[0], white[0], *white[2:]]))


def patterns(rounds: int, most: int, separation: int) -> list[list[int]]:
    """Every pattern that (n, k, b) allows."""
    return [
        list(chosen)
        for length in range(1, most + 1)
        for chosen in itertools.combinations(range(rounds), length)
        if all(j - i >= separation for i, j in itertools.pairwise(chosen))
    ]


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_joint_epsilon_is_that_of_the_worst_pair_of_patterns(adjacency: str, tmp_path: Path) -> None:
    """By the noise that the statement says is added, dense matrices, every pattern and every sign."""
    ranges = {f"m{index}": (0.0, 1.0) for index in range(3)}
    strategy = evaluated(tmp_path / "run", adjacency=adjacency, evaluation_metrics=ranges)
    metrics = carried_out(strategy, lambda _: dict.fromkeys(ranges, 1.0))
    statement = strategy.statement().to_dict()
    factor = {"zero-out": 1.0, "replace-one": 2.0}[adjacency]
    bars = metrics[ROUNDS]["m0_std"] * COHORT / 0.5  # of z, in units of a row's entries
    streams = [
        (
            dense_c(statement),
            patterns(ROUNDS, 2, 3),
            factor * statement["clip_norm"] / statement["noise_std"],
        ),
        (np.eye(ROUNDS), patterns(ROUNDS, 2, 3), factor * math.sqrt(len(ranges)) / bars),
    ]
    squared = sum(
        max(
            scale**2 * float(np.sum((C[:, p] @ np.array(signs)) ** 2))
            for p in allowed
            for signs in itertools.product((-1.0, 1.0), repeat=len(p))
        )
        for C, allowed, scale in streams
    )
    epsilon = dp_accounting.get_epsilon_gaussian(1 / math.sqrt(squared), DELTA)
    assert epsilon == pytest.approx(EPSILON, rel=1e-7)
    assert epsilon <= statement["epsilon_planned"] * (1 + 1e-9)
    assert statement["evaluation"]["evaluations_released"] == ROUNDS
    assert statement["epsilon_realised"] == pytest.approx(epsilon, rel=1e-7)


VICTIM = 5


def _raise(_: Message) -> Message:
    raise OSError("no disk")


def _metrics(**changes: Any) -> Callable[[Message], Message]:
    def change(reply: Message) -> Message:
        record = {**reply.content["metrics"], **changes}  # type: ignore[dict-item]
        kept = {name: value for name, value in record.items() if value is not None}
        reply.content["metrics"] = MetricRecord(kept)
        return reply

    return change


def _with(name: str, record: MetricRecord | ConfigRecord) -> Callable[[Message], Message]:
    def change(reply: Message) -> Message:
        reply.content[name] = record
        return reply

    return change


#: What a hostile client may answer, and the row it is worth.
EXTREME: dict[str, tuple[Callable[[Message], Message], tuple[float, float]]] = {
    "raises": (_raise, (0, 0)),
    "NaN": (_metrics(eval_acc=math.nan), (0, 0)),
    "infinity": (_metrics(eval_loss=math.inf), (0, 0)),
    "a list": (_metrics(eval_loss=[0.5, 0.5]), (0, 0)),
    "misses a metric": (_metrics(eval_loss=None), (0, 0)),
    "two records": (_with("more", MetricRecord({"eval_loss": 1.0, "eval_acc": 1.0})), (0, 0)),
    "no record": (lambda reply: _with("x", ConfigRecord({"a": 1}))(_without(reply)), (0, 0)),
    "huge": (_metrics(eval_loss=1e308, eval_acc=1e308), (1, 1)),
    "hugely negative": (_metrics(eval_loss=-1e308, eval_acc=-(2**62)), (-1, -1)),
    "opposite": (_metrics(eval_loss=-1.0, eval_acc=9), (-1, 1)),
    "claims all examples": (_metrics(**{"num-examples": 2**60, "eval_loss": 0.0, "eval_acc": 0.0}), (-1, -1)),
}


def _without(reply: Message) -> Message:
    del reply.content["metrics"]
    return reply


def sum_with(kind: str, path: Path) -> tuple[np.ndarray, CorrelatedNoise]:
    """The sum of rows, without noise, when one user answers so."""

    def tamper(message: Message, context: Context, call_next: Next) -> Message:
        reply = call_next(message, context)
        hostile = int(context.node_config["partition-id"]) == VICTIM
        if hostile and message.metadata.message_type == "evaluate":
            return EXTREME[kind][0](reply)
        return reply

    strategy = evaluated(path, PrivateEvaluation(every=ROUNDS, share=SHARE))
    (metrics,) = carried_out(strategy, mods=[tamper]).values()
    low, high = np.array(list(RANGES.values())).T
    means = np.array([metrics[name] for name in RANGES])
    return (means - (low + high) / 2) / ((high - low) / 2) * USERS, strategy


@pytest.mark.parametrize("kind", EXTREME)
def test_a_hostile_reply_changes_its_own_row_alone(kind: str, tmp_path: Path, silent_noise: None) -> None:
    """It is on record as present, the run goes to its end, and training is untouched."""
    total, strategy = sum_with(kind, tmp_path / "run")
    others = np.sum([row_of(reported(user)) for user in range(USERS) if user != VICTIM], axis=0)
    worth = np.array(EXTREME[kind][1], dtype=float)
    np.testing.assert_allclose(total - others, worth, atol=1e-7)  # the sum is exact to 2⁻³²
    statement = strategy.statement().to_dict()
    assert statement["evaluation_realised"]["users_participated"] == USERS
    lines = [json.loads(line) for line in (tmp_path / "run" / "failures.jsonl").read_text().splitlines()]
    expected = [] if worth.any() else [("user-05", "evaluation")]
    assert [(line["user"], line["stage"]) for line in lines] == expected


def test_one_user_moves_the_sum_by_the_joint_norm_at_most(tmp_path: Path, silent_noise: None) -> None:
    """√q against a zeroed reply, 2√q against another one, over all hostile replies; both are reached."""
    sums = [sum_with(kind, tmp_path / str(index))[0] for index, kind in enumerate(EXTREME)]
    zeroed = sums[list(EXTREME).index("raises")]
    one = max(float(np.linalg.norm(total - zeroed)) for total in sums)
    two = max(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(sums, 2))
    assert one == pytest.approx(math.sqrt(2), abs=1e-7)
    assert two == pytest.approx(2 * math.sqrt(2), abs=1e-7)
    grid = np.linspace(-7.0, 11.0, 19)  # numerical maximisation over what a client may say
    rows = np.array([row_of({"eval_loss": x, "eval_acc": y}) for x in grid for y in grid])
    assert np.linalg.norm(rows, axis=1).max() == pytest.approx(math.sqrt(2))


def test_a_user_whose_budget_forbids_it_is_never_asked(tmp_path: Path, silent_noise: None) -> None:
    """The denominator stays, or the estimate would tell how many were."""
    budgets = tmp_path / "budgets.csv"
    budgets.write_text("user,epsilon\nuser-03,0\n")
    asked = PrivateEvaluation(every=ROUNDS, share=SHARE)
    strategy = evaluated(tmp_path / "run", asked, user_budgets=str(budgets))
    (metrics,) = carried_out(strategy).values()
    total = np.sum([row_of(reported(user)) for user in range(USERS) if user != 3], axis=0)
    assert metrics["eval_acc"] == pytest.approx(0.5 + 0.5 * total[1] / USERS, abs=1e-7)
    assert strategy.statement().to_dict()["evaluation_realised"]["users_participated"] == USERS - 1
