"""The core's own check of a stream's noise: enough for every method, and no less than σ needs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedmf.matrices.factorization import Dense, Factorization
from fedmf.matrices.joint_sensitivity import UserRange
from fedmf.matrices.second_moment import FullMatrix
from fedmf.matrices.toeplitz import Toeplitz
from fedmf.moments.methods import METHODS
from fedmf.noise.key import NoiseKey
from fedmf.participation import Adjacency, Participation
from fedmf.release.plan import certified_multiplier
from fedmf.release.private_stream import PrivateRows
from fedmf.release.row_plan import RowPlan, StreamGuarantee, step_contract

SIGMA = 1.7
MOMENT = FullMatrix(3)
CONTRACT = Participation(12, 3, 2)


def random_dense(seed: int) -> Dense:
    rng = np.random.default_rng(seed)
    C = np.tril(rng.normal(size=(12, 12)))
    np.fill_diagonal(C, 1 + np.abs(np.diag(C)))
    return Dense(C.tolist())


MATRICES: dict[str, tuple[Factorization, Factorization]] = {
    "falling": (Toeplitz([1.0, 0.5, 0.25], 12), Toeplitz([1.0, 0.75], 12)),
    "signed": (Toeplitz([1.0, -0.5, 0.25, -0.3], 12), Toeplitz([1.0, 0.4, -0.4], 12)),
    "dense": (random_dense(0), random_dense(1)),
}


def row_plan(name: str, matrices: str, adjacency: Adjacency) -> RowPlan:
    method = METHODS[name]
    strategies = MATRICES[matrices][: method.matrices]
    users = UserRange(2.5, 2, adjacency)
    mechanism = method.mechanism(strategies, CONTRACT, users, SIGMA)
    return mechanism.of_integers(MOMENT).rows(MOMENT)


def with_less_noise(plan: RowPlan, index: int, factor: float) -> RowPlan:
    parts = list(plan.rounding.parts)
    parts[index] = replace(parts[index], std=factor * parts[index].std)
    return replace(plan, rounding=replace(plan.rounding, parts=tuple(parts)))


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize("matrices", MATRICES)
@pytest.mark.parametrize("name", METHODS)
def test_the_noise_of_every_method_is_enough(
    name: str, matrices: str, adjacency: Adjacency
) -> None:
    plan = row_plan(name, matrices, adjacency)
    plan.check_noise()
    half = with_less_noise(plan, 0, 0.5)
    with pytest.raises(ValueError, match="noise is too small for the stated guarantee"):
        half.check_noise()


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize("index", [0, 1])
def test_a_joint_level_is_needed_to_the_last_digits(index: int, adjacency: Adjacency) -> None:
    plan = row_plan("jme", "falling", adjacency)
    with_less_noise(plan, index, 1 - 1e-10).check_noise()
    with pytest.raises(ValueError, match="must be at least"):
        with_less_noise(plan, index, 1 - 1e-6).check_noise()


def test_a_plan_of_unfit_parts_is_rejected() -> None:
    plan = row_plan("jme", "falling", "zero-out")
    alone = replace(plan.rounding, parts=plan.rounding.parts[:1])
    understated = replace(plan.rounding, movement=0.999 * plan.rounding.movement)
    finer = replace(plan.rounding.parts[1], bits=plan.rounding.parts[1].bits + 40)
    for changes, match in (
        ({"rounding": alone}, "must have 2 parts; got 1"),
        ({"rounding": understated}, "noise is too small"),
        ({"rounding": replace(alone, parts=(*alone.parts, finer))}, "below 2\\^20 zeta"),
        ({"noise_multiplier": float("nan")}, "must be positive and finite"),
        ({"participation": Participation(11, 3, 2)}, "must be 11 as in the contract"),
        ({"users": UserRange(2.5, 1)}, "sensitivity dimension"),
    ):
        with pytest.raises(ValueError, match=match):
            replace(plan, **changes).check_noise()


def test_a_guarantee_counts_the_rows_of_a_user_in_a_release() -> None:
    """Of 30 rows, a user has 6 at least 2 apart: with R = 4, two of them in one release."""
    rows = Participation(30, 6, 2)
    steps, rows_of_user = step_contract(rows, 4)
    assert (steps, rows_of_user) == (Participation(8, 3, 1), 2)
    sigma = rows_of_user * certified_multiplier(2.0, 1e-6)
    C = Toeplitz([1.0, 0.5], 8)
    users = UserRange(1.0, 2)
    plan = METHODS["jme"].mechanism([C], steps, users, sigma).of_integers(MOMENT).rows(MOMENT)
    StreamGuarantee(2.0, 1e-6, "zero-out", 4).check(plan, rows)
    for guarantee, match in (
        (StreamGuarantee(1.99, 1e-6, "zero-out", 4), "2 rows of a user in a release"),
        (StreamGuarantee(2.0, 1e-7, "zero-out", 4), "noise is too small"),
        (StreamGuarantee(2.0, 1e-6, "replace-one", 4), "must be for .* 'replace-one'; got"),
        (StreamGuarantee(2.0, 1e-6, "zero-out", 5), "must be for Participation.rounds=6"),
    ):
        with pytest.raises(ValueError, match=match):
            guarantee.check(plan, rows)


def test_means_within_their_bounds_are_not_cut() -> None:
    """A row of norm ζ has a second moment of norm ζ²."""
    plan = row_plan("jme", "falling", "zero-out")
    means = (torch.tensor([[1.4, -2.0, 0.1]]), torch.full((1, 6), 2.5))
    sums, _ = PrivateRows(plan, NoiseKey.from_seed(0)).clip_and_add_means([means])
    for total, unit, mean in zip(sums, plan.units, means, strict=True):
        np.testing.assert_allclose(total.double() * unit, mean, atol=1e-5)
