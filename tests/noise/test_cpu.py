"""Every kernel does what the NumPy reference does; on CPUs to the last bit however the work is cut."""

from __future__ import annotations

import math
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from fedmf.noise.cpu import FEWEST_PER_THREAD, TILE, CpuKernels
from fedmf.noise.reference import ReferenceKernels
from fedmf.noise.row_pass import MAX_DIMENSION, RowPass

from fedmf.noise.key import Domain, NoiseKey

KEY = NoiseKey.from_seed(3)
SPANS = [(0, 40), (5, 1), (15, 2), (16 * 1000 + 3, 5000), (TILE - 9, TILE + 30), (MAX_DIMENSION - 100, 100)]

# Of sums of a few terms below 12 in float64.
ROUNDING = 1e-14
DIGITS = {torch.float64: 52, torch.float32: 23}


def vector(seed: int, *shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).to(dtype)


ONE, FOUR = RowPass((0,), (1.0,)), (0, 1, 2, 3)
PASSES = {
    "sum of rounds": RowPass((3, 9, 2**64 - 1), (0.7, -0.2, 1e-3)),
    "scaled sum": RowPass((3, 9), (0.7, -0.2), 0.3),
    "reads only": RowPass((4, 5), (0.5, 0.1), -0.3, (0, 3), (0.1, 0.3)),
    # The place that is written is read too, and one place twice.
    "ring": RowPass((4, 5), (0.5, 0.1), -0.3, (0, 2, 3, 0), (0.1, 0.2, 0.3, -0.4), (2,), (0.0,)),
    "sums": RowPass(
        (6,), (1.0,), 0.3, (0, 1, 2, 3), (0.1, -0.2, 0.3, 0.4), (0, 1, 2, 3), (0.5, 0.1, 0.0, 0.99)
    ),
}


def close(got: torch.Tensor, expected: torch.Tensor) -> bool:
    """Equal, but for one unit in the last place where two roundings of nearly equal numbers part."""
    a, b = got.double(), expected.double()
    size = torch.maximum(a.abs(), b.abs())
    parted = (a - b).abs() > ROUNDING
    unit = size * 2.0 ** -DIGITS[got.dtype] + ROUNDING
    return bool(((a - b).abs() <= unit).all()) and int(parted.sum()) <= 1 + got.numel() // 10_000


@pytest.mark.parametrize("dtype", DIGITS, ids=str)
@pytest.mark.parametrize("name", PASSES)
def test_passes_equal_the_reference(name, dtype):
    for start, length in SPANS:
        got = [vector(1, length, dtype=dtype), vector(2, 4, length, dtype=torch.float64)]
        expected = [part.clone() for part in got]
        CpuKernels(KEY, Domain.TRAINING).add_(PASSES[name], got[0], start, got[1])
        ReferenceKernels(KEY, Domain.TRAINING).add_(PASSES[name], expected[0], start, expected[1])
        assert all(close(a, b) for a, b in zip(got, expected, strict=True)), (start, length)


@pytest.mark.parametrize("name", PASSES)
def test_cuts_and_threads_do_not_change_a_bit(name):
    """Long enough for refined pairs in every pass, and for three threads."""
    start, length = 21, 3 * FEWEST_PER_THREAD + 777
    cuts = [0, 1, 16, 1003, TILE - 21, TILE, 2 * FEWEST_PER_THREAD + 5, length]
    out, rows = vector(1, length, dtype=torch.float32), vector(2, 4, length, dtype=torch.float64)
    whole = out.clone(), rows.clone()
    CpuKernels(KEY, Domain.TRAINING, threads=1).add_(PASSES[name], whole[0], start, whole[1])
    for threads in (2, 3):
        got = out.clone(), rows.clone()
        CpuKernels(KEY, Domain.TRAINING, threads).add_(PASSES[name], got[0], start, got[1])
        assert all(torch.equal(a, b) for a, b in zip(got, whole, strict=True)), threads
    for low, high in pairwise(cuts):
        got = out[low:high].clone(), rows[:, low:high].clone()
        CpuKernels(KEY, Domain.TRAINING).add_(PASSES[name], got[0], start + low, got[1])
        assert torch.equal(got[0], whole[0][low:high]), (low, high)
        assert torch.equal(got[1], whole[1][:, low:high]), (low, high)


def test_a_row_without_meaning_cannot_be_made():
    for fields in (
        {"weights": ()},
        {"weights": (math.nan,)},
        {"rounds": (), "weights": ()},
        {"rounds": (-1,)},
        {"scale": math.inf},
        {"reads": (0,)},
        {"reads": (-1,), "read_weights": (1.0,)},
        {"writes": (0,), "decays": (math.inf,)},
    ):
        with pytest.raises(ValueError, match=r"^row \(of noise\) must have .* No noise was added"):
            RowPass(**{"rounds": (0,), "weights": (1.0,), **fields})


def test_noise_is_imported_without_the_compiler():
    probe = "import sys, fedmf.noise; sys.exit('numba' in sys.modules or 'triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], timeout=600, check=False).returncode == 0
