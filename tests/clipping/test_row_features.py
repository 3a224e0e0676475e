"""Second moments as integers: near the exact ones, each of its own row, and paid for."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations_with_replacement

import numpy as np
import pytest
import torch
from clipping.exact import block_squares

from fedmf.clipping.clipped_rows import clip_to_fixed_point
from fedmf.clipping.row_features import NEAR, integer_features
from fedmf.matrices.joint_sensitivity import UserRange
from fedmf.matrices.second_moment import BlockEnergies, DiagonalMoment, FullMatrix, SecondMoment
from fedmf.matrices.sensitivity import sensitivity_of
from fedmf.mechanisms.closed_forms import bisr, cgd, identity
from fedmf.mechanisms.workload import prefix
from fedmf.moments.methods import METHODS, jme
from fedmf.moments.moment_stream import MomentStream
from fedmf.noise.key import NoiseKey
from fedmf.participation import Participation

D = 5
MOMENTS: list[SecondMoment] = [FullMatrix(D), DiagonalMoment(D), BlockEnergies([1, 4])]
#: √2 to 60 digits, and more than enough.
ROOT = Fraction(math.isqrt(2 * 10**120), 10**60)


def integers(bits: int) -> torch.Tensor:
    x = np.random.default_rng(bits).normal(size=(400, D))
    x[:20] = np.eye(D)[np.arange(20) % D] * np.where(np.arange(20) < 10, 1, -1)[:, None]
    x[20:40] = [0.7071067811865475, -0.7071067811865475, 0, 0, 0]
    rows, _ = clip_to_fixed_point(torch.from_numpy(x), 1.0, bits)
    return rows


def exact(row: list[int], moment: SecondMoment, unit: Fraction) -> list[Fraction]:
    """The features of a row of integers in their own units, in exact arithmetic."""
    if isinstance(moment, FullMatrix):
        products = []
        for i, j in combinations_with_replacement(range(D), 2):
            product = row[i] * row[j] * unit
            if i != j:
                product *= ROOT
            products.append(product)
        return products
    sizes = [1] * D if isinstance(moment, DiagonalMoment) else [1, 4]
    return [square * unit for square in block_squares(row, sizes)]


@pytest.mark.parametrize(("bits", "feature_bits"), [(31, 31), (20, 31), (31, 12), (9, 18)])
@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: type(moment).__name__)
def test_features_are_near_the_exact_ones(
    moment: SecondMoment, bits: int, feature_bits: int
) -> None:
    """Between rows, and from zero, errors differ by less than the units that are paid for."""
    rows = integers(bits)
    unit = Fraction(2) ** (feature_bits - 2 * bits)
    features = integer_features(rows, moment, len(rows), bits, feature_bits).numpy().astype(object)
    expected = np.array([exact(row, moment, unit) for row in rows.tolist()])
    errors = (features - expected).astype(np.float64)
    assert np.abs(errors).max() < NEAR
    assert (errors.max(axis=0) - errors.min(axis=0)).max() < NEAR
    squares = np.square(features).sum(axis=1)
    assert max(squares) <= (2**feature_bits + 1 + math.sqrt(moment.size)) ** 2


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: type(moment).__name__)
def test_a_sum_is_that_of_its_rows(moment: SecondMoment) -> None:
    rows = integers(31)
    each = integer_features(rows, moment, len(rows), 31, 31)
    for steps in (1, 2, 5, 100):
        expected = each.view(steps, -1, moment.size).sum(dim=1)
        assert torch.equal(integer_features(rows, moment, steps, 31, 31), expected)
    assert torch.equal(integer_features(rows[7:8], moment, 1, 31, 31)[0], each[7])
    assert not integer_features(rows[:0], moment, 1, 31, 31).any()


PART = Participation(24, 3, 8)


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize("name", METHODS)
def test_integers_cost_no_privacy(name: str, adjacency: str) -> None:
    """μ of the ideal levels, and what the theorem adds for each moment, are 1/σ together."""
    users = UserRange(0.5, 2, adjacency)  # type: ignore[arg-type]
    C = bisr(3, 24)
    moment = FullMatrix(30)
    sigma = 0.7
    ideal = METHODS[name].mechanism([C], PART, users, sigma)
    mechanism = ideal.of_integers(moment)
    noises = mechanism.rounding.parts
    norm = np.linalg.norm(C.materialize(), 2)
    moved = [norm * math.sqrt(30 * 24), norm * math.sqrt(moment.size * 24)]
    cut = math.sqrt(moment.size) * sensitivity_of(C, PART).value
    sizes = [moved[0] / noises[0].std]
    if name != "pp":
        sizes.append((moved[1] + cut) / noises[1].std)
        assert math.hypot(moved[0] / noises[0].std, moved[1] / noises[1].std) < math.hypot(*sizes)
    mu = ideal.first_std / mechanism.first_std / sigma
    assert mu < mu + math.hypot(*sizes) <= 1 / sigma
    assert mechanism.multiplier_under(PART) == pytest.approx(sigma, rel=1e-11)
    assert mechanism.multiplier_under(PART) >= sigma
    units = mechanism.rows(moment).units
    np.testing.assert_allclose(noises[0].std * units[0], mechanism.first_std, rtol=1e-14)
    if name == "pp":
        assert len(noises) == 1
    else:
        assert mechanism.second_std is not None
        np.testing.assert_allclose(noises[1].std * units[1], mechanism.second_std, rtol=1e-14)


def test_units_follow_from_public_numbers_and_what_has_none_is_refused() -> None:
    once = Participation(24, 1, 24)
    users = UserRange(1e-3, 2)
    C = cgd(0.9, 24)
    for sigma, bits in ((1e-6, 31), (1.0, 31), (1e3, 24), (1e6, 14)):
        mechanism = jme(C, C, once, users, sigma).of_integers(FullMatrix(2))
        assert mechanism.rounding.bits == (bits, bits)
    with pytest.raises(ValueError, match="No unit of integers suits it"):
        jme(identity(24), identity(24), once, users, 1e9).of_integers(FullMatrix(2))
    with pytest.raises(ValueError, match="so little of the second"):
        jme(identity(24), identity(24), once, users, 32.0, 2e16).of_integers(FullMatrix(2))


@pytest.mark.parametrize("name", METHODS)
def test_a_state_fits_one_noise_alone(name: str) -> None:
    def stream_of(sigma: float) -> MomentStream:
        mechanism = METHODS[name].mechanism([bisr(3, 24)], PART, UserRange(1.0, D), sigma)
        return MomentStream(mechanism, FullMatrix(D), prefix(24), key=NoiseKey.from_seed(1))

    stream = stream_of(1.0)
    stream.extend(torch.zeros(3, D))
    with pytest.raises(ValueError, match="saved noise"):
        stream_of(0.9).load_state_dict(stream.state_dict())
    stream.extend(torch.zeros(0, D))
    assert stream.t == 3
