"""The pair as implemented, from a client's message to what the optimizer is shown.

Sensitivity, weight, the variance of its noise, refusals.
"""

from __future__ import annotations

import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Message, MessageType
from numpy.typing import NDArray
from support.pair_runs import RecordedPair, pair_run

from fedmf.accounting.gaussian import adjacency_factor
from fedmf.accounting.queries import PairQuery, SecondStream
from fedmf.clipping.clipped_sum import ClippedSum
from fedmf.clipping.features import fixed_point_energies
from fedmf.flower.compat import claim_task_identity
from fedmf.flower.messages import answer_reply, read_reply, request_content
from fedmf.ledger.lock import ReleaseGuard
from fedmf.matrices.second_moment import BlockEnergies, DiagonalMoment, SecondMoment
from fedmf.mechanisms.closed_forms import identity
from fedmf.noise.key import NoiseKey
from fedmf.participation import Adjacency, Participation
from fedmf.release.noisy_sum import NoisySecondMoment
from fedmf.release.plan import Plan
from fedmf.release.private_server import PrivateServer
from fedmf.runs.loop import Reply
from fedmf.runs.run_plan import plan_of
from fedmf.runs.simulation import Request

Matrix = NDArray[np.float64]
N = 5
ZETA = 0.3
KEYS = {
    "rounds": N,
    "users": 24,
    "cohort_size": 8,
    "mechanism": "bsr",
    "bands": 2,
}


def pair_plan(moment: SecondMoment, form: str, **keys: object) -> tuple[Plan, RecordedPair]:
    optimizer = RecordedPair(moment, form)  # type: ignore[arg-type]
    return plan_of(pair_run(optimizer, **{**KEYS, **keys}), optimizer, moment.dimension), optimizer


def released(plan: Plan, optimizer: RecordedPair, rounds: list[Matrix]) -> tuple[Matrix, Matrix]:
    """What is released when the users of round t send the rows of rounds[t], unclipped; noise of
    one seed.
    """
    optimizer.seen.clear()
    claim_task_identity()
    ledger = SimpleNamespace(
        openings=list,
        guard=ReleaseGuard(),
        opening=lambda: SimpleNamespace(first_round=0, salt=bytes(32)),
        released=0,
        commit_round=lambda *_: None,
        check_round=lambda *_: (
            None
        ),  # as the commit: who may take part is not what is measured here
    )
    d = rounds[0].shape[1]
    initial = torch.zeros(d, dtype=torch.float64)  # so that the release is not rounded to float32
    key = NoiseKey.from_seed(1)
    server = PrivateServer(plan, ledger, key, initial, optimizer)  # type: ignore[arg-type]
    for t, rows in enumerate(rounds):
        names = [f"u{i}" for i in range(len(rows))]
        worker = server.sums.empty()
        total = server.new_sum()
        worker.add_updates(torch.from_numpy(rows))
        request = Message(
            request_content(ArrayRecord(), Request(torch.zeros(d), t, tuple(names), True)),
            1,
            MessageType.TRAIN,
        )
        reply = answer_reply(request, t, Reply(tuple(names), worker.parts))
        shapes = {name: (length,) for name, length in total.lengths.items()}
        parts = read_reply(reply, t, names, shapes, "int64")
        total.add_parts(parts, len(names))
        server.release(total, names)
    return optimizer.means(), optimizer.seconds()


def spread(plan: Plan, one: tuple[Matrix, Matrix], other: tuple[Matrix, Matrix]) -> float:
    """√(‖C₁D‖² + λ‖C₂E‖²) of two runs with the same noise, which cancels, over the stated
    sensitivity.
    """
    m = plan.users_per_round
    second = plan.second
    assert second is not None
    C_1 = plan.mechanism.factorization.materialize()
    C_2 = second.factorization.materialize()
    first = np.sum((C_1 @ (one[0] - other[0]) * m) ** 2)
    square = first + second.weight * np.sum((C_2 @ (one[1] - other[1]) * m) ** 2)
    return float(np.sqrt(square)) * plan.noise_multiplier / plan.noise_std


def patterns(plan: Plan) -> list[tuple[int, ...]]:
    part = plan.participation
    return [
        pattern
        for size in range(1, part.max_participations + 1)
        for pattern in itertools.combinations(range(N), size)
        if all(
            later - earlier >= part.min_separation for earlier, later in itertools.pairwise(pattern)
        )
    ]


def worst_found(
    moment: SecondMoment, form: str, adjacency: str, **keys: object
) -> tuple[float, Plan]:
    """The largest spread over one user's contributions, all of it computed by the code that runs
    use.

    Starts are users that send (x, y) on a grid in every round of every pattern; the best goes on by
    random search in all its rounds. Other users make the mean as long as it can be.
    """
    plan, optimizer = pair_plan(moment, form, adjacency=adjacency, **keys)
    d = moment.dimension
    m = plan.users_per_round
    rng = np.random.default_rng(0)
    others = (
        np.tile(np.eye(d)[0] * 9.0, (m - 1, 1))
        if form == "squared-mean"
        else rng.normal(size=(m - 1, d))
    )

    def value(pattern: tuple[int, ...], x: Matrix, y: Matrix) -> float:
        runs = []
        for own in (x, y):
            rounds = [others.copy() for _ in range(N)]
            for row, t in zip(own, pattern, strict=True):
                rounds[t] = np.vstack([others, row])
            runs.append(released(plan, optimizer, rounds))
        return spread(plan, *runs)

    def neighbor(y: Matrix) -> Matrix:
        return y if adjacency == "replace-one" else np.zeros_like(y)

    longest = [*patterns(plan)[-1:], tuple(range(0, N, plan.participation.min_separation))]
    best = 0.0
    state = None
    angles = np.linspace(0, np.pi / 4, 7)
    for pattern in dict.fromkeys(longest):
        for angle in angles:
            x = np.zeros((len(pattern), d))
            x[:, 0] = np.cos(angle)
            x[:, 1] = np.sin(angle)
            y = np.zeros_like(x)
            y[:, 0] = -np.sin(angle)
            y[:, 1] = -np.cos(angle)
            if angle == 0:
                y = -x
            found = value(pattern, 5 * x, neighbor(5 * y))
            if found > best:
                best = found
                state = (pattern, x, y)
    assert state is not None
    pattern, x, y = state
    for step in np.geomspace(0.5, 0.01, 25):
        u, v = (z + step * rng.normal(size=z.shape) for z in (x, y))
        found = value(pattern, 5 * u, neighbor(5 * v))
        if found > best:
            best = found
            x = u
            y = v
    return best, plan


@pytest.mark.parametrize(
    ("moment", "importance", "adjacency"),
    [(DiagonalMoment(2), 20.0, "replace-one"), (BlockEnergies([1, 2]), 0.05, "zero-out")],
    ids=["squares", "blocks"],
)
def test_no_user_moves_the_pair_further_than_stated(
    moment: SecondMoment, importance: float, adjacency: str
) -> None:
    """And the stated value is close to the worst user found: C₁ and C₂ are correlated and
    differ.
    """
    found, plan = worst_found(moment, "per-user", adjacency, second_moment_weight=importance)
    assert plan.second is not None
    assert plan.mechanism.factorization.bands == plan.second.factorization.bands == 2
    assert 0.97 <= found <= 1 + 1e-9


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_no_user_moves_the_square_of_the_mean_further_than_stated(adjacency: str) -> None:
    """Near the bound for large cohorts: ‖x̄ + ȳ‖ is within 2ζ/m of the 2ζ that it uses."""
    keys = {"users": 240, "cohort_size": 80}
    found, _ = worst_found(BlockEnergies([2]), "squared-mean", adjacency, **keys)
    assert 0.9 <= found <= 1 + 1e-9


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_features_that_are_cut_move_no_further_than_stated(adjacency: Adjacency) -> None:
    """All users on a coarse grid: only a difference of two can be longer than that of squares."""
    bits = 4
    feature_bits = 3
    axis = torch.arange(-(2**bits), 2**bits + 1)
    grid = torch.cartesian_prod(axis, axis)
    rows = grid[grid.square().sum(dim=1) <= 4**bits]
    features = fixed_point_energies(rows, DiagonalMoment(2), bits, feature_bits)
    points = torch.cat([rows.double() * 2.0**-bits, features.double() * 2.0**-feature_bits], dim=1)
    others = points if adjacency == "replace-one" else torch.zeros(1, 4, dtype=torch.float64)
    exactly = "donot_use_mm_for_euclid_dist"
    distance = float(torch.cdist(points, others, compute_mode=exactly).max())
    moved = distance / adjacency_factor(adjacency)
    C = identity(1)
    second = SecondStream("per-user", "diagonal", 2, 2, 1.0, "identity", {}, C)

    def stated(*units: int) -> float:
        query = PairQuery(C, second, 1.0, adjacency, 8, units)  # type: ignore[arg-type]
        return query.stated(Participation(1, 1, 1)).value

    assert moved <= stated(bits, feature_bits) * (1 + 1e-12)
    assert (moved > stated(31, 31) * (1 + 1e-9)) == (adjacency == "replace-one")


def test_more_users_than_planned_cannot_lengthen_the_squared_mean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A random cohort may be three times the planned: the mean is projected before it is
    squared.
    """
    plan, optimizer = pair_plan(BlockEnergies([2]), "squared-mean", second_moment_weight=20.0)
    crowd = np.tile([[1.0, 0.0]], (24, 1))

    def moved() -> float:
        full, short = (released(plan, optimizer, [rows] * N) for rows in (crowd, crowd[:-1]))
        # One participation: round 0 alone differs.
        pairs = zip(short, full, strict=True)
        short = tuple(np.vstack([s[:1], f[1:]]) for s, f in pairs)  # type: ignore[assignment]
        return spread(plan, full, short)

    assert moved() <= 1.0

    def unprojected(self: NoisySecondMoment, total: ClippedSum) -> torch.Tensor:
        assert plan.second is not None
        bits, feature_bits = plan.rounding.bits
        mean = total.fixed_point.to(torch.float64) * (2.0**-bits / self._size)
        return (mean.square().sum()[None] * 2.0**feature_bits).to(torch.int64) * self._size

    monkeypatch.setattr(NoisySecondMoment, "_squared_mean", unprojected)
    assert moved() > 1.0


@pytest.mark.parametrize(
    ("form", "adjacency"), [("per-user", "zero-out"), ("squared-mean", "replace-one")]
)
def test_the_chosen_weight_has_the_least_predicted_error(form: str, adjacency: str) -> None:
    """d·τ₁²‖A₁C₁⁻¹‖²/ζ² + m·τ₂²‖A₂C₂⁻¹‖²/ζ⁴ with dense matrices, for other weights of the same
    matrices.
    """
    plan, _ = pair_plan(BlockEnergies([3, 4]), form, adjacency=adjacency, second_moment_weight=1.0)
    assert plan.second is not None
    A_1 = np.tril(np.ones((N, N)))
    A_2 = np.tril(0.5 ** np.abs(np.subtract.outer(np.arange(N), np.arange(N))))
    C_1 = plan.mechanism.factorization.materialize()
    C_2 = plan.second.factorization.materialize()
    costs = [np.sum((A @ np.linalg.inv(C)) ** 2) for A, C in ((A_1, C_1), (A_2, C_2))]

    def error(scale: float) -> float:
        weight = plan.second.weight * scale  # type: ignore[union-attr]
        second = dataclasses.replace(plan.second, weight=weight)  # type: ignore[arg-type, type-var]
        other = dataclasses.replace(plan, second=second)
        tau = other.release.stated(plan.participation).value
        return 7 * tau**2 * costs[0] + 2 * tau**2 / (second.weight * ZETA**2) * costs[1]

    assert all(error(1.0) <= error(scale) * (1 + 1e-9) for scale in np.geomspace(0.1, 10, 41))
