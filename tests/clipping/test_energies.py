"""Second moments in integers against Python's own, and what a worker may not send."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from clipping.exact import block_features

from fedmf.clipping.clipped_rows import clip_to_fixed_point
from fedmf.clipping.clipped_sum import SumSpec
from fedmf.clipping.features import fixed_point_energies
from fedmf.matrices.second_moment import BlockEnergies, DiagonalMoment

UNIT = 2**31


@pytest.mark.parametrize("sizes", [[1] * 7, [7], [3, 1, 3], [2, 5]])
@pytest.mark.parametrize("feature_bits", [8, 31, 62])
def test_energies_are_exact(sizes: list[int], feature_bits: int) -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(-(2**29), 2**29, size=(200, 7))
    rows[:6] = [
        [UNIT, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, -UNIT],
        [1] * 7,
        [2**16 - 1, 2**16, 2**16 + 1, -(2**16), 0, 1, -1],
        [UNIT - 1, 0, 0, 0, 0, 0, 0],
        [0] * 7,
    ]
    moment = DiagonalMoment(7) if max(sizes) == 1 else BlockEnergies(sizes)
    energies = fixed_point_energies(torch.from_numpy(rows), moment, 31, feature_bits)
    for row, features in zip(rows.tolist(), energies.tolist(), strict=True):
        assert features == block_features(row, sizes, 62 - feature_bits)


def test_a_long_block_at_the_bound_fits_an_int64() -> None:
    """2²² equal entries with Σ n² = 2⁶², the largest that a clipped update has."""
    count = 2**22
    energy = fixed_point_energies(torch.full((1, count), 2**20), BlockEnergies([count]))
    assert int(energy) == UNIT


@pytest.mark.parametrize(
    "moment", [DiagonalMoment(40), BlockEnergies([1, 9, 30]), BlockEnergies([40])]
)
def test_the_pair_is_that_of_the_clipped_updates(moment) -> None:  # type: ignore[no-untyped-def]
    """Features of what the first sum holds; never more than the square of the clip norm in all."""
    zeta = 0.7
    updates = (
        torch.randn(30, 40, generator=torch.Generator().manual_seed(1))
        * torch.logspace(-3, 2, 30)[:, None]
    )
    updates[4, 7] = torch.nan
    pair = SumSpec(moment.dimension, zeta, moment).empty()
    assert pair.add_updates(updates).sum() == 29
    rows, _ = clip_to_fixed_point(updates, zeta)
    clipped = rows.double() * zeta / UNIT
    torch.testing.assert_close(pair.total(), clipped.sum(0), rtol=1e-12, atol=1e-12)
    expected = moment.features(clipped)
    assert (pair.second_total() <= expected * (1 + 1e-12)).all()
    assert (pair.second_total() >= expected - 30 * zeta**2 / UNIT * (1 + 1e-6)).all()
    assert int(pair.parts["second"].sum()) <= 29 * UNIT


BAD_SECONDS = {
    "negative": torch.tensor([-1, UNIT]),
    "too large": torch.tensor([2 * UNIT, UNIT + 4]),
    "overflowing": torch.tensor([2**63 - 1, 2**63 - 1]),
    "floats": torch.tensor([1.0, 1.0]),
    "short": torch.tensor([1]),
}


@pytest.mark.parametrize("kind", BAD_SECONDS)
def test_impossible_seconds_are_refused_and_add_nothing(kind: str) -> None:
    pair = SumSpec(BlockEnergies([1, 2]).dimension, 1.0, BlockEnergies([1, 2])).empty()
    with pytest.raises(ValueError, match=r"^slice second must") as caught:
        pair.add_parts({"sum": torch.zeros(3, dtype=torch.int64), "second": BAD_SECONDS[kind]}, 3)
    assert "\n" not in str(caught.value)
    assert pair.users == 0
    assert not torch.cat(list(pair.parts.values())).any()
