"""The pair as implemented, from a client's message to what the optimizer is shown: sensitivity, hostile
workers, resuming, both kinds of message, refusals."""

from __future__ import annotations

import dataclasses
import itertools
import re
from pathlib import Path
from types import SimpleNamespace

import dp_accounting
import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MessageType
from numpy.typing import NDArray
from support.pair_runs import RecordedPair, optimizing_with
from support.small_runs import client_for, linear_task, run_small, small_config, tampering

from fedmf.accounting.release import PairRelease, SecondStream
from fedmf.errors import ConfigError
from fedmf.factorization.matrices.toeplitz import Toeplitz
from fedmf.factorization.sensitivity.stated import stated_sensitivity
from fedmf.flower.compat import claim_task_identity
from fedmf.flower.grid import InProcessGrid
from fedmf.flower.messages import read_slice_reply, request_content, slice_reply
from fedmf.flower.simulation import run_on_grid
from fedmf.flower.strategy import RoundReport
from fedmf.moments.second_moment import BlockEnergies, DiagonalMoment, FullMatrix, SecondMoment
from fedmf.noise.key import NoiseKey
from fedmf.records.ledger import Ledger
from fedmf.runs import second_release as second_moment_module
from fedmf.runs.plan import Plan, plan_run
from fedmf.runs.server import PrivateServer
from fedmf.runs.session import Session

Matrix = NDArray[np.float64]
N, ZETA = 5, 0.3
KEYS = {
    "rounds": N,
    "users": 24,
    "cohort_size": 8,
    "mechanism": "bsr",
    "bands": 2,
    "second_workload": "exponential:0.5",
}
FORMS = ("per-user", "squared-mean")


def plan_of(moment: SecondMoment, form: str, **keys: object) -> tuple[Plan, RecordedPair]:
    optimizer = RecordedPair(moment, form)  # type: ignore[arg-type]
    return plan_run(small_config(**{**KEYS, **keys}), optimizer), optimizer


def released(plan: Plan, optimizer: RecordedPair, rounds: list[Matrix]) -> tuple[Matrix, Matrix]:
    """What is released when the users of round t send the rows of rounds[t], unclipped; noise of one seed."""
    optimizer.seen.clear()
    claim_task_identity()
    directory = SimpleNamespace(
        key=NoiseKey.from_seed(1), restore=lambda: None, commit=lambda *_: None, keep_initial=lambda *_: None
    )
    d = rounds[0].shape[1]
    initial = torch.zeros(d, dtype=torch.float64)  # so that the release is not rounded to float32
    server = PrivateServer(plan, directory, initial, optimizer)  # type: ignore[arg-type]
    for t, rows in enumerate(rounds):
        names = [f"u{i}" for i in range(len(rows))]
        worker, total = server.sums.empty(), server.new_sum()
        worker.add_updates(torch.from_numpy(rows))
        request = Message(request_content(torch.zeros(d), t, names, True), 1, MessageType.TRAIN)
        reply = slice_reply(request, t, names, worker.parts)
        parts, users = read_slice_reply(reply, t=t, asked=names, lengths=total.lengths)
        total.add_parts(parts, len(users))
        server.release(total, list(users))
    return optimizer.means(), optimizer.seconds()


def spread(plan: Plan, one: tuple[Matrix, Matrix], other: tuple[Matrix, Matrix]) -> float:
    """√(‖C₁D‖² + λ‖C₂E‖²) of two runs with the same noise, which cancels, over the stated sensitivity."""
    m, second = plan.config.cohort_size, plan.second
    assert second is not None
    C_1, C_2 = plan.mechanism.factorization.materialize(), second.factorization.materialize()
    first = np.sum((C_1 @ (one[0] - other[0]) * m) ** 2)
    square = first + second.weight * np.sum((C_2 @ (one[1] - other[1]) * m) ** 2)
    return float(np.sqrt(square)) * plan.noise_multiplier / plan.noise_std


def patterns(plan: Plan) -> list[tuple[int, ...]]:
    part = plan.participation
    return [
        pattern
        for size in range(1, part.max_participations + 1)
        for pattern in itertools.combinations(range(N), size)
        if all(later - earlier >= part.min_separation for earlier, later in itertools.pairwise(pattern))
    ]


def worst_found(moment: SecondMoment, form: str, adjacency: str, **keys: object) -> tuple[float, Plan]:
    """The largest spread over one user's contributions, all of it computed by the code that runs use.

    Starts are users that send (x, y) on a grid in every round of every pattern; the best goes on by random
    search in all its rounds. Other users make the mean as long as it can be.
    """
    plan, optimizer = plan_of(moment, form, adjacency=adjacency, **keys)
    d, m = moment.dimension, plan.config.cohort_size
    rng = np.random.default_rng(0)
    others = (
        np.tile(np.eye(d)[0] * 9.0, (m - 1, 1)) if form == "squared-mean" else rng.normal(size=(m - 1, d))
    )

    def value(pattern: tuple[int, ...], x: Matrix, y: Matrix) -> float:
        runs = []
        for own in (x, y):
            rounds = [others.copy() for _ in range(N)]
            for row, t in zip(own, pattern, strict=True):
                rounds[t] = np.vstack([others, row])
            runs.append(released(plan, optimizer, rounds))
        return spread(plan, *runs)

    def neighbour(y: Matrix) -> Matrix:
        return y if adjacency == "replace-one" else np.zeros_like(y)

    longest = [*patterns(plan)[-1:], tuple(range(0, N, plan.participation.min_separation))]
    best, state = 0.0, None
    angles = np.linspace(0, np.pi / 4, 7)
    for pattern in dict.fromkeys(longest):
        for angle in angles:
            x = np.zeros((len(pattern), d))
            x[:, 0], x[:, 1] = np.cos(angle), np.sin(angle)
            y = np.zeros_like(x)
            y[:, 0], y[:, 1] = -np.sin(angle), -np.cos(angle)
            if angle == 0:
                y = -x
            found = value(pattern, 5 * x, neighbour(5 * y))
            if found > best:
                best, state = found, (pattern, x, y)
    assert state is not None
    pattern, x, y = state
    for step in np.geomspace(0.5, 0.01, 25):
        u, v = (z + step * rng.normal(size=z.shape) for z in (x, y))
        found = value(pattern, 5 * u, neighbour(5 * v))
        if found > best:
            best, x, y = found, u, v
    return best, plan


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize("importance", [0.05, 20.0])
@pytest.mark.parametrize("moment", [DiagonalMoment(2), BlockEnergies([1, 2])], ids=["squares", "blocks"])
def test_no_user_moves_the_pair_further_than_stated(
    moment: SecondMoment, importance: float, adjacency: str
) -> None:
    """And the stated value is close to the worst user found: C₁ and C₂ are correlated and differ."""
    found, plan = worst_found(moment, "per-user", adjacency, second_moment_importance=importance)
    assert plan.second is not None
    assert plan.mechanism.factorization.bands == plan.second.factorization.bands == 2
    assert 0.97 <= found <= 1 + 1e-9


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_no_user_moves_the_square_of_the_mean_further_than_stated(adjacency: str) -> None:
    """Near the bound for large cohorts: ‖x̄ + ȳ‖ is within 2ζ/m of the 2ζ that it uses."""
    keys = {"users": 240, "cohort_size": 80}
    found, _ = worst_found(BlockEnergies([2]), "squared-mean", adjacency, **keys)
    assert 0.9 <= found <= 1 + 1e-9


def test_more_users_than_planned_cannot_lengthen_the_squared_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """A random cohort may be three times the planned: the mean is projected before it is squared."""
    plan, optimizer = plan_of(BlockEnergies([2]), "squared-mean", second_moment_importance=20.0)
    crowd = np.tile([[1.0, 0.0]], (24, 1))

    def moved() -> float:
        full, short = (released(plan, optimizer, [rows] * N) for rows in (crowd, crowd[:-1]))
        # One participation: round 0 alone differs.
        short = tuple(np.vstack([s[:1], f[1:]]) for s, f in zip(short, full, strict=True))  # type: ignore[assignment]
        return spread(plan, full, short)

    assert moved() <= 1.0
    exact = second_moment_module.clip_to_fixed_point
    monkeypatch.setattr(
        second_moment_module, "clip_to_fixed_point", lambda rows, zeta: (exact(rows / 8, zeta)[0] * 8, None)
    )
    assert moved() > 1.0


def test_with_equal_matrices_the_second_moment_is_free_under_replacement() -> None:
    """λ = 1/(2ζ²): the pair has the sensitivity of the sums alone, up to the rounding of features."""
    C = Toeplitz([1.0, 0.5, 0.25], N)
    plan, _ = plan_of(DiagonalMoment(2), "per-user")
    second = SecondStream("per-user", "squares", 2, 2, 0.5 / ZETA**2, "toeplitz", {}, C)
    pair = PairRelease(C, second, ZETA, "replace-one", 8)
    alone = stated_sensitivity(C, plan.participation).value
    assert pair.stated(plan.participation).value == pytest.approx(alone, rel=1e-10)
    assert pair.stated(plan.participation).value > alone
    assert pair.stated(plan.participation).kind == "upper_bound"


DIMENSION = 30
TASK = linear_task(24, DIMENSION)
BLOCKS = BlockEnergies([10, 20])
UNIT = 2**40


def with_parts(request: Message, reply: Message, **parts: NDArray[np.generic]) -> Message:
    arrays = {name: array.numpy() for name, array in reply.content.array_records["arrays"].items()}
    sent = {name: value for name, value in {**arrays, **parts}.items() if value is not None}
    reply.content["arrays"] = ArrayRecord({name: Array(value) for name, value in sent.items()})
    return Message(reply.content, reply_to=request)


BAD_SLICES = {
    "no second": ({"second": None}, "no array 'second'"),
    "negative": ({"second": np.array([-1, UNIT])}, "sums of squares; got -1"),
    "too much energy": ({"second": np.array([4 * UNIT, 3 * UNIT])}, "add up to at most"),
    "overflow": ({"second": np.array([2**63 - 1, 2**63 - 1])}, "add up to at most"),
    "short": ({"second": np.array([1])}, r"shape \(2,\)"),
    "floats": ({"second": np.array([0.5, 0.5])}, "must be int64"),
    "inflated sum": ({"sum": np.full(DIMENSION, 2**45)}, "norm at most"),
}


@pytest.mark.parametrize("kind", BAD_SLICES)
def test_a_hostile_slice_is_refused_whole_and_uses_up_both_rows_of_noise(kind: str, tmp_path: Path) -> None:
    config = small_config(workers=2, second_workload="exponential:0.5")
    spoilt: list[set[str]] = []
    reports: list[RoundReport] = []

    def tamper(request: Message, reply: Message) -> Message:
        users = set(request.content.config_records["config"]["users"])  # type: ignore[arg-type]
        if request.content.config_records["config"]["round"] != 3 or spoilt:
            return reply
        spoilt.append(users)
        return with_parts(request, reply, **BAD_SLICES[kind][0])  # type: ignore[arg-type]

    with optimizing_with(RecordedPair(BLOCKS)) as bad:
        run_small(tmp_path / "bad", config, TASK, lambda s: tampering(client_for(s), tamper), reports.append)
    (refused,) = [line for report in reports for line in report.rejected]
    assert re.search(BAD_SLICES[kind][1], refused)
    with optimizing_with(RecordedPair(BLOCKS)) as good:
        run_small(tmp_path / "good", config, TASK)
    with Ledger.open(tmp_path / "bad" / "ledger.sqlite", read_only=True) as ledger:
        assert not spoilt[0] & set(ledger.participants(3))
    x = TASK.dataset.features.double().numpy()
    x = 0.3 * x / np.linalg.norm(x, axis=1, keepdims=True)
    gone = x[[int(user[1:]) for user in spoilt[0]]]
    missing = np.array([np.sum(gone[:, :10] ** 2), np.sum(gone[:, 10:] ** 2)]) / 6
    difference = good.seconds() - bad.seconds()
    np.testing.assert_allclose(difference[3], missing, atol=1e-7)
    # The same noise all the time; updates lose bits of float32 to the size of the model.
    np.testing.assert_allclose(np.delete(difference, 3, axis=0), 0.0, atol=1e-8)


@pytest.mark.parametrize("form", FORMS)
def test_both_kinds_of_message_release_the_same_pair(form: str, tmp_path: Path) -> None:
    found = []
    for messages in ("slice", "per-user"):
        with optimizing_with(RecordedPair(BLOCKS, form)) as optimizer:  # type: ignore[arg-type]
            config = small_config(messages=messages, workers=2, second_workload="exponential:0.5")
            run_small(tmp_path / messages, config, TASK)
        found.append((optimizer.means(), optimizer.seconds()))
    for by_slice, by_user in zip(*found, strict=True):
        np.testing.assert_allclose(by_slice, by_user, atol=1e-7)  # single updates are float32


@pytest.mark.parametrize("form", FORMS)
def test_a_resumed_run_releases_the_same_bits(form: str, tmp_path: Path) -> None:
    config = small_config(mechanism="banded-toeplitz", bands=4, second_workload="exponential:0.5")
    with optimizing_with(RecordedPair(BLOCKS, form)) as whole:  # type: ignore[arg-type]
        final = run_small(tmp_path / "whole", config, TASK)
    with optimizing_with(RecordedPair(BLOCKS, form)) as halves:  # type: ignore[arg-type]
        with Session.start(tmp_path / "halves", config, TASK) as session:
            session.plan.__dict__["allowed_rounds"] = 5
            run_on_grid(session, InProcessGrid(client_for(session)))
        with Session.resume(tmp_path / "halves", config, TASK) as session:
            assert session.server.t == 5
            run_on_grid(session, InProcessGrid(client_for(session)))
            again = session.server.parameters.numpy()
    assert np.array_equal(final, again)
    assert np.array_equal(whole.seconds(), halves.seconds())
    assert np.array_equal(whole.means(), halves.means())
    with (
        optimizing_with(RecordedPair(BlockEnergies([15, 15]), form)),  # type: ignore[arg-type]
        Session.resume(tmp_path / "halves", config, TASK) as session,
    ):
        assert session.server.t == 12


def test_other_features_or_noise_than_planned_are_refused(tmp_path: Path) -> None:
    config = small_config(second_workload="exponential:0.5")
    with optimizing_with(RecordedPair(BLOCKS)):
        run_small(tmp_path / "run", config, TASK)
    with (
        optimizing_with(RecordedPair(BLOCKS, "squared-mean")),
        pytest.raises(ValueError, match=r"second moment \(of the optimizer\) must be the planned one"),
    ):
        Session.resume(tmp_path / "run", config, TASK)
    plan, optimizer = plan_of(DiagonalMoment(2), "per-user")
    alone = plan_run(plan.config)
    with pytest.raises(ValueError, match=r"planned one \(none\)"):
        released(alone, optimizer, [np.zeros((1, 2))])


@pytest.mark.parametrize(
    ("keys", "moment", "form", "message"),
    [
        (
            {"schedule": "balls-in-bins", "accountant": "balls-in-bins"},
            DiagonalMoment(2),
            "per-user",
            "No theorem",
        ),
        ({}, DiagonalMoment(2), "joint-clip", "'per-user' or 'squared-mean'"),
    ],
)
def test_what_no_theorem_covers_is_refused(keys: dict, moment: SecondMoment, form: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        plan_of(moment, form, **keys)
    assert "\n" not in str(caught.value)


def test_other_second_moments_are_refused_before_anything_is_released() -> None:
    plan, optimizer = plan_of(FullMatrix(1), "per-user")
    with pytest.raises(ValueError, match="squares or block energies"):
        released(plan, optimizer, [np.ones((1, 1))])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_the_chosen_weight_has_the_least_predicted_error(form: str, adjacency: str) -> None:
    """d·τ₁²‖A₁C₁⁻¹‖²/ζ² + m·τ₂²‖A₂C₂⁻¹‖²/ζ⁴ with dense matrices, for other weights of the same matrices."""
    plan, _ = plan_of(BlockEnergies([3, 4]), form, adjacency=adjacency, second_moment_importance=1.0)
    assert plan.second is not None
    A_1 = np.tril(np.ones((N, N)))
    A_2 = np.tril(0.5 ** np.abs(np.subtract.outer(np.arange(N), np.arange(N))))
    C_1, C_2 = plan.mechanism.factorization.materialize(), plan.second.factorization.materialize()
    costs = [np.sum((A @ np.linalg.inv(C)) ** 2) for A, C in ((A_1, C_1), (A_2, C_2))]

    def error(scale: float) -> float:
        second = dataclasses.replace(plan.second, weight=plan.second.weight * scale)  # type: ignore[arg-type, type-var, union-attr]
        other = dataclasses.replace(plan, second=second)
        tau = other.release.stated(plan.participation).value
        return 7 * tau**2 * costs[0] + 2 * tau**2 / (second.weight * ZETA**2) * costs[1]

    assert all(error(1.0) <= error(scale) * (1 + 1e-9) for scale in np.geomspace(0.1, 10, 41))


def test_budgets_of_single_users_and_of_the_run_count_both_streams(tmp_path: Path) -> None:
    """ε so far of the pair exceeds what the sums alone would show; a budget between stops a user earlier."""
    table = tmp_path / "budgets.csv"
    table.write_text("user,epsilon\nu000,5.0\n", encoding="utf-8")
    config = small_config(
        second_workload="exponential:0.5", user_budgets=str(table), second_moment_importance=5.0
    )
    with optimizing_with(RecordedPair(BLOCKS)) as optimizer:
        run_small(tmp_path / "run", config, TASK)
        plan = plan_run(config, optimizer)
    with Ledger.open(tmp_path / "run" / "ledger.sqlite", read_only=True) as ledger:
        joined = [t for t, user in ledger.participations() if user == "u000"]
        others = [t for t, user in ledger.participations() if user == "u001"]
    assert plan.second is not None
    C_1, C_2 = plan.mechanism.factorization.materialize(), plan.second.factorization.materialize()

    def epsilon(rounds: list[int]) -> float:
        p = np.sum(C_1[:, rounds].sum(axis=1) ** 2) * (0.3 / plan.noise_std) ** 2
        q = np.sum(C_2[:, rounds].sum(axis=1) ** 2) * (0.09 / plan.second_noise_std) ** 2
        return dp_accounting.get_epsilon_gaussian(1 / np.sqrt(p + q), config.delta)

    assert len(others) == 3
    assert 0 < len(joined) < 3
    assert epsilon(joined) <= 5.0 < epsilon(sorted([*joined, max(joined) + 4]))
    assert plan.epsilon_after(12) == pytest.approx(8.0, rel=1e-6)
    spent = [plan.epsilon_after(t) for t in range(13)]
    assert spent == sorted(spent)


@pytest.mark.parametrize("form", FORMS)
def test_the_variance_of_both_noises_is_stated_for_each_round(form: str) -> None:
    """(τ₁/m)²[C₁⁻¹C₁⁻ᵀ]_tt and (τ₂/m)²[C₂⁻¹C₂⁻ᵀ]_tt with dense inverses."""
    plan, optimizer = plan_of(BlockEnergies([1, 2]), form)
    released(plan, optimizer, [np.zeros((1, 3))] * N)
    assert plan.second is not None
    streams = (
        (plan.mechanism.factorization, plan.noise_std),
        (plan.second.factorization, plan.second_noise_std),
    )
    expected = [(std / 8) ** 2 * np.sum(np.linalg.inv(C.materialize()) ** 2, axis=1) for C, std in streams]
    assert [release.mean_variance for release in optimizer.seen] == pytest.approx(expected[0], rel=1e-10)
    assert [release.second_variance for release in optimizer.seen] == pytest.approx(expected[1], rel=1e-10)
