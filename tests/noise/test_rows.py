"""The operator a stream really applies, read off with unit impulses for z, for every mechanism and storage.

With z(t, i) = 1 where i = t and 0 elsewhere, row t of the stream is row t of C⁻¹, without any randomness.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fedmf.noise.source import GaussianSource
from support.oracles import scalar_sensitivity

from fedmf.mechanisms.blt import BufferedToeplitz
from fedmf.mechanisms.matrix import Stamped, normalized
from fedmf.mechanisms.registry import build, names
from fedmf.mechanisms.sensitivity import stated_sensitivity
from fedmf.mechanisms.toeplitz import Toeplitz
from fedmf.mechanisms.trees import kary_tree, tree
from fedmf.noise.key import NoiseKey
from fedmf.noise.stream import NoiseStream
from fedmf.participation import Participation

ROUNDS, TAKEN, APART = 13, 3, 4

# Matrices of this size with condition below 1e4, and sums of at most 13 terms.
ROUNDING = 1e-11


class ImpulseKernels:
    """The pass written out once more in plain torch, for z(t, i) = [i = t]."""

    def add_(self, row, out, start, stored=None):
        y = torch.zeros(out.numel(), dtype=torch.float64)
        for t, weight in zip(row.rounds, row.weights, strict=True):
            if start <= t < start + out.numel():
                y[t - start] += weight
        for place, weight in zip(row.reads, row.read_weights, strict=True):
            y = y - weight * stored[place].double()
        for place, decay in zip(row.writes, row.decays, strict=True):
            stored[place] = decay * stored[place].double() + y
        out += row.scale * y


class ImpulseSource(GaussianSource):
    def kernels(self, device):
        return ImpulseKernels()


def operator(inverse, rounds) -> np.ndarray:
    """The matrix that a stream applies to z, one row a round."""
    source = ImpulseSource(NoiseKey.from_seed(0), rounds)
    noise = NoiseStream(source, inverse, rounds)
    rows = torch.zeros(rounds, rounds, dtype=torch.float64)
    for row in rows:
        noise.add_(row, 1.0)
    return rows.numpy()


OTHERS = {
    "online tree": tree(ROUNDS, full=False),
    "normalised online tree": normalized(tree(ROUNDS, full=False)),
    "normalised full tree": normalized(tree(ROUNDS)),
    "ternary tree": kary_tree(3, ROUNDS),
    "normalised ternary tree": normalized(kary_tree(3, ROUNDS)),
    "stamped tree": Stamped(tree(4), ROUNDS),
    "stamped online tree": Stamped(tree(5, full=False), ROUNDS),
    "stamped blt": Stamped(BufferedToeplitz([0.9, 0.5], [0.3, 0.2], 5), ROUNDS),
    "stamped bands": Stamped(Toeplitz([1.0, 0.5, 0.25], 5), ROUNDS),
    "crowded blt": BufferedToeplitz([1 - 1e-6, 1 - 2e-6, 1 - 3e-6, 1 - 4e-6], [0.2] * 4, ROUNDS),
}


@pytest.fixture(params=[*names(), *OTHERS])
def factorization(request):
    """Every mechanism of the catalogue with its free parameters optimised, and forms it does not choose."""
    if request.param in OTHERS:
        return OTHERS[request.param]
    return build(request.param, Participation(ROUNDS, TAKEN, APART)).factorization


def test_the_stream_applies_the_inverse_of_c(factorization):
    """And the worst pattern of what was measured has the stated sensitivity."""
    expected = np.linalg.inv(factorization.materialize())
    measured = operator(factorization.recurrence(), ROUNDS)
    np.testing.assert_allclose(measured, expected, rtol=0, atol=ROUNDING * np.abs(expected).max())
    stated = stated_sensitivity(factorization, Participation(ROUNDS, TAKEN, APART))
    worst = scalar_sensitivity(np.linalg.inv(measured), TAKEN, APART)
    assert worst <= stated.value * (1 + ROUNDING)
    if stated.kind == "exact":
        assert worst == pytest.approx(stated.value, rel=1e-9)
