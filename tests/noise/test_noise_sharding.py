"""Any shard made alone is the slice of the whole, bit for bit: by property."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmf.mechanisms.blt import BufferedToeplitz
from fedmf.mechanisms.toeplitz import InverseToeplitz, Toeplitz
from fedmf.mechanisms.trees import kary_tree, tree
from fedmf.noise.key import NoiseKey
from fedmf.noise.rows.noise_stream import NoiseStream
from fedmf.noise.source import GaussianSource

ROUNDS, DIMENSION = 6, 1 << 12

FORMS = {
    "bands": Toeplitz([1.0, 0.5, 0.25], ROUNDS),
    "inverse": InverseToeplitz([1.0, -0.5, -0.25], ROUNDS),
    "blt": BufferedToeplitz([0.9, 0.5], [0.3, 0.2], ROUNDS),
    "tree": tree(ROUNDS),
    "kary": kary_tree(2, ROUNDS),
}


def made(form, start, stop) -> torch.Tensor:
    source = GaussianSource(NoiseKey.from_seed(8), DIMENSION)
    noise = NoiseStream(source, FORMS[form].recurrence(), ROUNDS, start, stop)
    rows = torch.zeros(ROUNDS, stop - start)
    for row in rows:
        noise.add_(row, 0.7)
    return rows


@lru_cache(maxsize=64)
def whole(form) -> torch.Tensor:
    return made(form, 0, DIMENSION)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.tuples(st.integers(0, DIMENSION), st.integers(0, DIMENSION)).filter(lambda cut: cut[0] != cut[1]))
def test_every_shard_is_the_slice_of_the_whole(form, cut):
    start, stop = sorted(cut)
    assert torch.equal(made(form, start, stop), whole(form)[:, start:stop])
