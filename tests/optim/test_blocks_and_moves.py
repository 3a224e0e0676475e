"""Blocks against a membership matrix; moves against their formula."""

from __future__ import annotations

import pytest
import torch
from support.dense_rules import membership

from fedmf.matrices.second_moment import BlockEnergies, DiagonalMoment
from fedmf.mechanisms.workload import LearningRateSchedule
from fedmf.optim import Blocks, Move

SHAPES = [(4, 3), (4,), (2, 2, 3), (1,), ()]
SIZES = {
    "coordinate": [1] * 30,
    "channel": [3] * 4 + [4] + [6] * 2 + [1, 1],
    "tensor": [12, 4, 12, 1, 1],
    "model": [30],
}


@pytest.mark.parametrize("which", SIZES)
def test_blocks_are_sums_over_their_coordinates(which: str) -> None:
    blocks = Blocks.of(SHAPES, which)
    sizes = SIZES[which]
    assert (blocks.sizes, blocks.dimension, blocks.count) == (sizes, 30, len(sizes))
    inside = torch.from_numpy(membership(sizes))
    x = torch.randn(30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(blocks.energies(x), inside @ x**2)
    torch.testing.assert_close(blocks.second_moment().features(x[None]), inside @ x**2)
    values = torch.arange(1.0, len(sizes) + 1, dtype=torch.float64)
    torch.testing.assert_close(blocks.spread(values), inside.T @ values)
    torch.testing.assert_close(blocks.means(values), values / inside.sum(1))
    torch.testing.assert_close(blocks.weighted_mean(values), (inside.T @ values).mean())
    if which == "coordinate":
        assert isinstance(blocks.second_moment(), DiagonalMoment)
    else:
        assert isinstance(blocks.second_moment(), BlockEnergies)


def test_wrong_blocks_are_rejected() -> None:
    with pytest.raises(
        ValueError, match="must be one of coordinate, channel, tensor, model; got 'row'"
    ):
        Blocks.of(SHAPES, "row")
    for runs in ((), ((1, 2), (1, 0)), ((1, -1),)):
        with pytest.raises(ValueError, match="must be pairs of positive integers"):
            Blocks(runs)


def constant(rate: float) -> LearningRateSchedule:
    return LearningRateSchedule("constant", rate, 10)


def test_decay_is_decoupled_from_the_direction() -> None:
    parameters = torch.full((4,), 10.0)
    direction = torch.full((4,), 8.0)
    moved = Move(constant(0.5), weight_decay=0.2)(0, parameters, direction)
    torch.testing.assert_close(moved, torch.full((4,), 10.0 * (1 - 0.5 * 0.2) + 4.0))
    assert torch.equal(parameters, torch.full((4,), 10.0))
