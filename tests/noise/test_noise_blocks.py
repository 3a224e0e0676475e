"""Noise added block by block: the bits of one stream for the whole vector, at any position."""

import pytest
import torch

from fedmf.errors import HorizonExceededError
from fedmf.mechanisms.banded_toeplitz import banded_toeplitz
from fedmf.mechanisms.blt import blt
from fedmf.mechanisms.closed_forms import bisr, identity
from fedmf.mechanisms.matrix import Factorization
from fedmf.mechanisms.trees import tree
from fedmf.noise.key import NoiseKey
from fedmf.noise.rows.blocked_noise import BlockedNoise
from fedmf.noise.rows.noise_stream import NoiseStream
from fedmf.noise.source import GaussianSource
from fedmf.participation import Participation

ROUNDS, DIMENSION, BLOCK = 6, 1001, 64
PARTICIPATION = Participation(ROUNDS, 2, 3)
KEY = NoiseKey.from_seed(5)
STRATEGIES = [
    identity(ROUNDS),
    bisr(3, ROUNDS),
    banded_toeplitz(3, PARTICIPATION),
    blt(2, PARTICIPATION),
    tree(ROUNDS),
]


def row(noise: BlockedNoise) -> torch.Tensor:
    out = torch.zeros(DIMENSION, dtype=torch.float64)
    for part, stream in noise.blocks():
        stream.add_(out[part], 2.0)
    return out


@pytest.mark.parametrize("C", STRATEGIES, ids=lambda C: type(C).__name__)
def test_blocks_together_are_the_whole_vector(C: Factorization) -> None:
    source = GaussianSource(KEY, DIMENSION)
    whole = NoiseStream(source, C.recurrence(), ROUNDS)
    blocked = BlockedNoise(source, C.recurrence(), ROUNDS, block=BLOCK)
    rows = []
    for t in range(ROUNDS):
        expected = torch.zeros(DIMENSION, dtype=torch.float64)
        whole.add_(expected, 2.0)
        assert blocked.t == t
        rows.append(row(blocked))
        assert torch.equal(rows[-1], expected)
    with pytest.raises(HorizonExceededError):
        blocked.skip()
    blocked.seek(2)
    assert torch.equal(row(blocked), rows[2])
    blocked.skip()
    assert torch.equal(row(blocked), rows[4])


def test_a_saved_position_is_that_of_any_division_into_blocks() -> None:
    source = GaussianSource(KEY, DIMENSION)
    first = BlockedNoise(source, bisr(3, ROUNDS).recurrence(), ROUNDS, block=BLOCK)
    row(first)
    other = BlockedNoise(source, bisr(3, ROUNDS).recurrence(), ROUNDS, block=999)
    other.load_state(first.state_dict())
    assert other.t == 1
    assert torch.equal(row(other), row(first))
    another = GaussianSource(NoiseKey.from_seed(6), DIMENSION)
    strange = BlockedNoise(another, bisr(3, ROUNDS).recurrence(), ROUNDS)
    with pytest.raises(ValueError, match="key"):
        strange.load_state(first.state_dict())
