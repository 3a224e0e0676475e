"""The core refuses what breaks its assumptions, whoever brings it, and what is refused costs
nothing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedmf
from fedmf.clipping.clipped_sum import ClippedSum, SumSpec
from fedmf.errors import LedgerError, ParticipationViolation
from fedmf.matrices.factorization import Dense, factorization_from_dict
from fedmf.matrices.toeplitz import Toeplitz
from fedmf.mechanisms.choice import GivenFactorization
from fedmf.moments import MomentMechanism
from fedmf.noise.key import Domain, NoiseKey
from fedmf.noise.noise_stream import NoiseStream
from fedmf.release.plan import Plan
from fedmf.release.private_stream import PrivateRows
from fedmf.runs.session import Session
from fedmf.streaming.stream_plan import StreamPlan
from guarantees.small import CLIP, NAMES, ROUNDS, random_rows, run_of
from guarantees.small import stream as pushed

DIMENSION = 4
#: Who takes part in round 0; nobody of them may in rounds 1 to 3.
FIRST = NAMES[:6]


@pytest.fixture
def session(tmp_path: Path) -> Session:
    run = run_of(
        random_rows(DIMENSION), privacy=fedmf.UserLevel(epsilon=8.0, delta=1e-5, clip_norm=CLIP)
    )
    return fedmf.start(run, tmp_path / "run")


def summed(session: Session, rows: Any, users: int = 6) -> ClippedSum:
    """The sum of one row and zeros, made as a worker makes it."""
    updates = torch.zeros(users, DIMENSION)
    updates[0] = torch.as_tensor(rows)
    total = session.server.new_sum()
    total.add_updates(updates)
    return total


def refused(
    session: Session, total: ClippedSum, users: Any, error: type[Exception], match: str
) -> None:
    """Nothing is drawn or committed, and the round is still there for an honest sum."""
    t = session.server.t
    before = session.server.parameters.clone()
    with pytest.raises(error, match=match):
        session.server.release(total, users)
    assert (session.server.t, session.directory.ledger.released) == (t, t)
    assert torch.equal(session.server.parameters, before)


def test_a_sum_of_other_users_than_listed(session: Session) -> None:
    with session:
        for users in (5, 7):
            total = summed(session, 0.1, users)
            refused(
                session,
                total,
                FIRST,
                ValueError,
                f"exactly the listed users; got {users} updates for 6",
            )
        session.server.release(summed(session, 0.1), FIRST)


def test_a_sum_in_other_units_than_the_plan(session: Session) -> None:
    """In a finer unit the noise would be too small, with another clip norm a user could move too
    much.
    """
    with session:
        units = session.server.sums.units
        for total in (
            ClippedSum(DIMENSION, CLIP, bits=units[1] - 1),
            ClippedSum(DIMENSION, 2 * CLIP, bits=units[1], feature_bits=units[2]),
        ):
            total.add_updates(torch.full((6, DIMENSION), 0.1))
            refused(session, total, FIRST, ValueError, "units of this round")
            with pytest.raises(TypeError, match="in units"):
                session.server.new_sum().merge(total)
        session.server.release(summed(session, 0.1), FIRST)


def test_a_user_within_b_or_twice(session: Session) -> None:
    with session:
        twice = [*FIRST[:5], FIRST[0]]
        refused(session, summed(session, 0.1), twice, ParticipationViolation, "twice in round 0")
        session.server.release(summed(session, 0.1), FIRST)
        again = [FIRST[0], *NAMES[6:11]]
        refused(
            session,
            summed(session, 0.1),
            again,
            ParticipationViolation,
            r"b \(min_separation\) is 4",
        )
        session.server.release(summed(session, 0.1), NAMES[6:12])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30, 3e38, 1e-45])
def test_whatever_a_row_holds_it_moves_the_sum_by_the_clip_norm_at_most(
    session: Session, value: float
) -> None:
    """Not finite is nothing; all else is clipped. Others are in the sum as they would be
    without.
    """
    with session:
        row = torch.full((DIMENSION,), 0.1)
        row[1] = value
        total = session.server.new_sum()
        total.add_updates(torch.stack([row, torch.full((DIMENSION,), 0.01)]))
        alone = session.server.new_sum()
        alone.add_updates(torch.full((1, DIMENSION), 0.01))
        moved = (total.fixed_point - alone.fixed_point).double() * total.unit
        assert float(torch.linalg.vector_norm(moved)) <= CLIP
        assert bool(moved.any()) == math.isfinite(value)


@pytest.mark.parametrize("wide", [2**31 + 1, 2**40, 2**62, -(2**63)])
def test_an_integer_beyond_its_bound(wide: int) -> None:
    """What a worker sends of m users may have the norm of m users, to the last unit."""
    sums = SumSpec(DIMENSION, CLIP)
    total = sums.empty("cpu")
    before = torch.arange(DIMENSION) - 2
    total.fixed_point.copy_(before)
    sent = torch.zeros(DIMENSION, dtype=torch.int64)
    sent[2] = wide
    with pytest.raises(ValueError, match="must have norm at most 1 clip norms"):
        total.add_clipped_sum(sent, 1)
    assert torch.equal(total.fixed_point, before)
    assert total.users == 0


def test_more_users_than_an_int64_holds() -> None:
    total = SumSpec(DIMENSION, CLIP).empty("cpu")
    with pytest.raises(ValueError, match="must be at most 1073741824 users"):
        total.add_clipped_sum(torch.zeros(DIMENSION, dtype=torch.int64), 2**30 + 1)


MATRICES: dict[str, tuple[Callable[[], object], str]] = {
    "not triangular": (
        lambda: Dense([[1.0, 1e-300], [0.0, 1.0]]),
        "must be lower triangular; got 1e-300",
    ),
    "not invertible": (lambda: Dense([[1.0, 0.0], [1.0, 0.0]]), "must be positive; got 0.0 at j=1"),
    "negative diagonal": (lambda: Dense([[-1.0, 0.0], [1.0, 1.0]]), "must be positive"),
    "NaN": (lambda: Dense([[1.0, 0.0], [math.nan, 1.0]]), "must be finite"),
    "recorded rows": (
        lambda: factorization_from_dict({"type": "dense", "rows": [[1.0, 2.0], [1.0, 1.0]]}),
        "must have 1 entries; got 2",
    ),
    "recorded band": (
        lambda: factorization_from_dict({"type": "banded", "band": [[1.0, 0.5], [1.0, 0.5]]}),
        "must end at row n=2",
    ),
    "recorded zero": (
        lambda: factorization_from_dict(
            {"type": "toeplitz", "coefficients": [0.0, 1.0], "rounds": 2}
        ),
        "must be positive",
    ),
}


@pytest.mark.parametrize("what", MATRICES)
def test_a_matrix_that_is_no_strategy(what: str) -> None:
    make, match = MATRICES[what]
    with pytest.raises(ValueError, match=match):
        make()


class Boastful(Toeplitz):
    """A user's own C with less sensitivity than its coefficients have."""

    def gram_diagonal(self, gap: int) -> np.ndarray:
        """A tenth of it."""
        return super().gram_diagonal(gap) / 10

    def toeplitz_bound(self) -> tuple[np.ndarray, np.ndarray]:
        """A tenth of it."""
        coefficients, scales = super().toeplitz_bound()
        return coefficients / 10, scales


def test_a_matrix_that_lies_about_its_sensitivity() -> None:
    """Only the coefficients of an untrusted C are kept; what moves is computed from these."""
    C = Boastful([1.0, 0.9, 0.8], ROUNDS)
    run = run_of(random_rows(DIMENSION), mechanism=GivenFactorization(C))
    honest = run_of(
        random_rows(DIMENSION), mechanism=GivenFactorization(Toeplitz([1.0, 0.9, 0.8], ROUNDS))
    )
    plans = [fedmf.plan(each) for each in (run, honest)]
    assert type(plans[0].mechanism.factorization) is Toeplitz
    assert plans[0].sensitivity == plans[1].sensitivity
    assert plans[0].noise_std == plans[1].noise_std


def altered(plan: Plan, name: str, factor: float) -> Plan:
    if name == "sensitivity":
        stated = dataclasses.replace(plan.sensitivity, value=factor * plan.sensitivity.value)
        return dataclasses.replace(plan, sensitivity=stated)
    if name in ("movement", "std"):
        rounding = plan.rounding
        parts = tuple(dataclasses.replace(part, std=factor * part.std) for part in rounding.parts)
        changes = (
            {"movement": factor * rounding.movement} if name == "movement" else {"parts": parts}
        )
        return dataclasses.replace(plan, rounding=dataclasses.replace(rounding, **changes))
    return dataclasses.replace(plan, **{name: factor * getattr(plan, name)})


@pytest.mark.parametrize("name", ["sensitivity", "relative_noise_std", "movement", "std"])
def test_a_plan_that_states_too_little(name: str) -> None:
    plan = fedmf.plan(run_of(random_rows(DIMENSION)))
    plan.allowed(ROUNDS)
    with pytest.raises(LedgerError, match="The noise was too small"):
        altered(plan, name, 0.999).allowed(ROUNDS)


@pytest.mark.parametrize(
    "name", ["sensitivity", "first_std", "second_std", "noise_multiplier", "rounding"]
)
def test_a_stream_that_states_too_little(name: str, tmp_path: Path) -> None:
    with pushed(tmp_path / "stream", 8, dimension=3) as stream:
        description = stream._run.plan.to_dict()
    StreamPlan.from_dict(description)
    recorded = description["mechanism"]
    if name == "sensitivity":
        recorded[name]["value"] *= 0.999
    elif name == "rounding":
        recorded[name]["movement"] *= 0.999
    else:
        recorded[name] *= 0.999
    with pytest.raises(LedgerError, match=f"{name} of the stream's plan is"):
        StreamPlan.from_dict(description)


def too_quiet(mechanism: MomentMechanism, name: str) -> MomentMechanism:
    """A mechanism whose recorded figures agree with one another, with a tenth less of one."""
    if name == "noise_multiplier":
        return dataclasses.replace(mechanism, noise_multiplier=0.9 * mechanism.noise_multiplier)
    rounding = mechanism.rounding
    parts = list(rounding.parts)
    i = ("first level", "second level").index(name)
    parts[i] = dataclasses.replace(parts[i], std=0.9 * parts[i].std)
    rounding = dataclasses.replace(rounding, parts=tuple(parts))
    return dataclasses.replace(mechanism, rounding=rounding)


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("first level", "tau .noise of the stream. must be at least"),
        ("second level", "tau .noise of the stream. must be at least"),
        ("noise_multiplier", "sigma .noise multiplier of the stream. must be at least"),
    ],
)
def test_a_stream_with_less_noise_than_its_guarantee_needs(
    name: str, match: str, tmp_path: Path
) -> None:
    """The core computes sensitivity and noise itself, whoever chose the matrices and levels."""
    with pushed(tmp_path / "stream", 8, dimension=3) as stream:
        state = stream._run.state
        state.plan.mechanism.rows(state.plan.second_moment).check_noise()
        mechanism = too_quiet(state.plan.mechanism, name)
        state.plan = dataclasses.replace(state.plan, mechanism=mechanism)
        with pytest.raises(LedgerError, match=match) as caught:
            state.server()
        assert "\n" not in str(caught.value)


def test_releases_of_a_stream_of_other_rows_than_planned(tmp_path: Path) -> None:
    """The contract of releases follows from R rows in each, so the core insists on them."""
    with pushed(tmp_path / "stream", 8, dimension=3) as stream:
        server = stream._run.state.server()
        assert server.admit(["a", "b"], 0, 2).rows == [0, 1]
        with pytest.raises(ValueError, match="must be 1 each"):
            server.release(torch.zeros(2, 3, dtype=torch.float64), 1)
        assert server.waiting == 2


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.int32])
def test_a_sum_that_is_not_int64(kind: torch.dtype) -> None:
    inverse = Toeplitz([1.0, 0.5], 3).streaming_inverse()
    noise = NoiseStream(NoiseKey.from_seed(0), Domain.TRAINING, inverse, 3, DIMENSION, 1e6)
    with pytest.raises(ValueError, match="must be int64"):
        noise.release(torch.zeros(DIMENSION, dtype=kind))
    assert noise.t == 0


@pytest.mark.parametrize(("value", "counts_as"), [(math.nan, 0.0), (-math.inf, 0.0), (1e30, 1.0)])
def test_rows_of_a_stream(value: float, counts_as: float, tmp_path: Path) -> None:
    """A row that is not finite takes its step as zeros, a long one is cut to ζ; both to the bit."""
    said = []
    for x in (value, counts_as):
        with pushed(tmp_path / f"{x}", 8, dimension=3) as stream:
            said.append(stream.push([x, 0.0, 0.0], user="a").to_dict())
            with pytest.raises(ParticipationViolation):
                stream.push([0.5, 0.0, 0.0], user="a")
            assert stream.t == 1
    assert said[0] == said[1]


def test_rows_of_a_stream_that_come_together(tmp_path: Path) -> None:
    """Each becomes integers by itself: one that is not finite is zeros, whatever the others are."""
    with pushed(tmp_path / "stream", 8, dimension=3) as stream:
        plan = stream._run.state.plan
    rows = PrivateRows(plan.mechanism.rows(plan.second_moment), NoiseKey.from_seed(0))
    given = torch.tensor(
        [[0.3, -0.2, 0.1], [math.nan, 0.5, 0.0], [0.0, -math.inf, 0.2], [7.0, 4.0, 0.2]],
        dtype=torch.float64,
    )
    alone = [rows.clip_and_add(row[None], 1) for row in given]
    for part, together in enumerate(rows.clip_and_add(given, 1)):
        integers = torch.cat([sums[part] for sums in alone])
        assert integers.any(dim=1).tolist() == [True, False, False, True]
        assert torch.equal(together[0], integers.sum(dim=0))
