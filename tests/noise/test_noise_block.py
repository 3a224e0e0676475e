"""Many rounds at once give the bits of one round after the other."""

from __future__ import annotations

import math

import pytest
import torch

from fedmf.errors import HorizonExceededError
from fedmf.mechanisms.registry import build
from fedmf.noise.domain import Domain
from fedmf.noise.key import NoiseKey
from fedmf.noise.rows.noise_block import normals_of_rounds, suits
from fedmf.noise.rows.noise_stream import NoiseStream
from fedmf.noise.schedule import KeySchedule
from fedmf.noise.source import GaussianSource
from fedmf.participation import Participation

KEY = NoiseKey.from_seed(3)
ROUNDS = 40
MECHANISMS = {
    "identity": {},
    "bisr": {"bands": 4},
    "banded-toeplitz": {"bands": 5},
    "banded": {"bands": 4},
    "square-root": {},
    "normalized-cgd": {"params": {"lambda": 0.9}},
    "nu-ftrl": {},
    "blt": {},
    "tree": {},
}


def noise(name: str, start: int, length: int) -> NoiseStream:
    C = build(name, Participation(ROUNDS, 2, 8), **MECHANISMS[name]).factorization
    source = GaussianSource(KEY, start + length + 2, Domain.FIRST_MOMENT)
    return NoiseStream(source, C.recurrence(), ROUNDS, start, start + length)


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize(("start", "length"), [(3, 50), (16380, 16500)])
def test_rows_are_those_of_single_steps(name: str, start: int, length: int) -> None:
    x = torch.randn(ROUNDS, length, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    single, together = noise(name, start, length), noise(name, start, length)
    expected, got = x.clone(), x.clone()
    for row in expected:
        single.add_(row, 0.7)
    assert not torch.equal(expected, x)
    for low, high in ((0, 0), (0, 1), (1, 12)):
        together.add_rows_(got[low:high], 0.7)
    # Kept vectors are as single steps leave them, and single steps go on from them.
    together.add_(got[12], 0.7)
    again = noise(name, start, length)
    again.load_state(together.state_dict(kept_vectors=True))
    again.add_rows_(got[13:], 0.7)
    assert torch.equal(got, expected)
    assert again.t == ROUNDS


def test_short_rows_are_made_together() -> None:
    """Otherwise the test above compares the slow way with itself."""
    quick = [name for name in MECHANISMS if suits(noise(name, 0, 50)._rule, 50)]
    assert set(MECHANISMS) - set(quick) == {"blt", "tree"}


def test_tails_are_refined_as_elsewhere() -> None:
    """A pair of radius above √(2·16·ln 2) needs the refinement stream; some are among these."""
    source = GaussianSource(KEY, 50, Domain.SECOND_MOMENT)
    rounds = range(5, 6005)
    z = normals_of_rounds(KeySchedule.constant(KEY), Domain.SECOND_MOMENT, rounds, 2, 50)
    expected = torch.stack([source.block(t, 2, 50) for t in rounds])
    assert torch.equal(torch.from_numpy(z.copy()), expected)
    squares = expected[:, 14:22] ** 2 + expected[:, 22:30] ** 2  # elements 16c + k and 16c + 8 + k, c = 1
    assert float(squares.max()) > 2 * 16 * math.log(2)


def test_nothing_changes_where_rows_are_refused() -> None:
    stream = noise("bisr", 0, 4)
    out = torch.zeros(ROUNDS + 1, 4, dtype=torch.float64)
    with pytest.raises(HorizonExceededError, match="horizon"):
        stream.add_rows_(out, 1.0)
    for bad in (out[:, :3], out[0], out.float(), out[:4].T):
        with pytest.raises(ValueError, match="contiguous float64"):
            stream.add_rows_(bad, 1.0)
    with pytest.raises(ValueError, match="finite"):
        stream.add_rows_(out[:2], float("inf"))
    assert stream.t == 0
    assert not out.any()
