"""Every kernel does what the NumPy reference does; on CPUs to the last bit however the work is cut."""

from __future__ import annotations

import math
import subprocess
import sys
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch

from fedmf.noise.domain import Domain
from fedmf.noise.kernels.cpu import FEWEST_PER_THREAD, TILE, CpuKernels
from fedmf.noise.kernels.layout import MAX_DIMENSION
from fedmf.noise.kernels.reference import ReferenceKernels, normals, round_to
from fedmf.noise.kernels.row_pass import DTYPES, RowPass
from fedmf.noise.key import NoiseKey

KEY = NoiseKey.from_seed(3)
SPANS = [(0, 40), (5, 1), (15, 2), (16 * 1000 + 3, 5000), (TILE - 9, TILE + 30), (MAX_DIMENSION - 100, 100)]

# Of sums of a few terms below 12 in float64.
ROUNDING = 1e-14
DIGITS = {torch.float64: 52, torch.float32: 23, torch.bfloat16: 7}


def vector(seed: int, *shape: int, dtype: torch.dtype) -> torch.Tensor:
    return round_to(np.random.default_rng(seed).standard_normal(shape), dtype)


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


@pytest.fixture(params=[CpuKernels, ReferenceKernels])
def kernels(request: pytest.FixtureRequest):
    return request.param(KEY, Domain.TRAINING)


def close(got: torch.Tensor, expected: torch.Tensor) -> bool:
    """Equal, but for one unit in the last place where two roundings of nearly equal numbers part."""
    a, b = got.double(), expected.double()
    size = torch.maximum(a.abs(), b.abs())
    parted = (a - b).abs() > ROUNDING
    unit = size * 2.0 ** -DIGITS[got.dtype] + ROUNDING
    return bool(((a - b).abs() <= unit).all()) and int(parted.sum()) <= 1 + got.numel() // 10_000


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", PASSES)
def test_passes_equal_the_reference(name, dtype):
    for start, length in SPANS:
        got = [vector(1, length, dtype=dtype), vector(2, 4, length, dtype=torch.float64)]
        expected = [part.clone() for part in got]
        CpuKernels(KEY, Domain.TRAINING).add_(PASSES[name], got[0], start, got[1])
        ReferenceKernels(KEY, Domain.TRAINING).add_(PASSES[name], expected[0], start, expected[1])
        assert all(close(a, b) for a, b in zip(got, expected, strict=True)), (start, length)


@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cuts_and_threads_do_not_change_a_bit(name, dtype):
    """Long enough for refined pairs in every pass, and for three threads."""
    start, length = 21, 3 * FEWEST_PER_THREAD + 777
    cuts = [0, 1, 16, 1003, TILE - 21, TILE, 2 * FEWEST_PER_THREAD + 5, length]
    out, rows = vector(1, length, dtype=dtype), vector(2, 4, length, dtype=torch.float64)
    whole = out.clone(), rows.clone()
    CpuKernels(KEY, Domain.TRAINING, threads=1).add_(PASSES[name], whole[0], start, whole[1])
    for threads in (2, 3, 7):
        got = out.clone(), rows.clone()
        CpuKernels(KEY, Domain.TRAINING, threads).add_(PASSES[name], got[0], start, got[1])
        assert all(torch.equal(a, b) for a, b in zip(got, whole, strict=True)), threads
    for low, high in pairwise(cuts):
        got = out[low:high].clone(), rows[:, low:high].clone()
        CpuKernels(KEY, Domain.TRAINING).add_(PASSES[name], got[0], start + low, got[1])
        assert torch.equal(got[0], whole[0][low:high]), (low, high)
        assert torch.equal(got[1], whole[1][:, low:high]), (low, high)


def nearest(value: float, dtype: torch.dtype) -> Fraction:
    """Round to nearest, ties to even, in rational arithmetic."""
    digits, least = (8, -133) if dtype == torch.bfloat16 else (24, -149)
    exponent = max(math.frexp(value)[1] - digits, least)
    scaled = Fraction(value) / Fraction(2) ** exponent
    whole = math.floor(scaled)
    rest = scaled - whole
    up = rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2 == 1)
    return (whole + up) * Fraction(2) ** exponent


AWKWARD = [1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8, 1.0 + 2.0**-8 + 2.0**-40, 1.0 + 2.0**-8 - 2.0**-40, -1.00390625]
AWKWARD += [1.0 + 2.0**-24, 1.0 + 2.0**-24 + 2.0**-50, 2.0**-126, 2.0**-127 * 1.01, 2.0**-133, 2.0**-134, 0.0]
AWKWARD += [1.5 * 2.0**-133, 2.0**-134 * 1.0001, -(2.0**-130) * 1.3, 2.0**-149 * 1.5, 3.999, 255.5, 3e38]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_narrow_outputs_are_float64_rounded_once(dtype):
    """A row that writes one of two float64 vectors stores any number we like: zero noise, −(−1)·row."""
    rng = np.random.default_rng(4)
    values = np.array([*AWKWARD, *(rng.standard_normal(500) * 2.0 ** rng.integers(-140, 100, 500))])
    expected = [float(nearest(value, dtype)) for value in values.tolist()]
    assert round_to(values, dtype).double().tolist() == expected
    out = torch.zeros(values.size, dtype=dtype)
    wide = torch.from_numpy(np.stack([values, values]))
    kernels = CpuKernels(KEY, Domain.TRAINING)
    kernels.add_(RowPass((0,), (0.0,), 1.0, (0,), (-1.0,), (1,), (0.0,)), out, 0, wide)
    assert wide[1].tolist() == values.tolist()
    assert out.double().tolist() == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_narrow_noise_is_the_wide_noise_rounded_once(dtype):
    wide, narrow = torch.zeros(200_000, dtype=torch.float64), torch.zeros(200_000, dtype=dtype)
    for out in (wide, narrow):
        CpuKernels(KEY, Domain.FIRST_MOMENT).add_(RowPass((8, 7), (1.0, 0.25)), out, 3)
    assert torch.equal(narrow, round_to(wide.numpy(), dtype))
    z = [normals(KEY, Domain.FIRST_MOMENT, t, 3, 200_003) for t in (8, 7)]
    np.testing.assert_allclose(wide.numpy(), z[0] + 0.25 * z[1], rtol=0, atol=ROUNDING)


def test_infinite_and_missing_numbers_stay_what_they_are():
    out = torch.tensor([math.inf, -math.inf, math.nan, 1.0], dtype=torch.bfloat16)
    CpuKernels(KEY, Domain.TRAINING).add_(ONE, out, 0)
    assert out[:3].isinf().tolist() == [True, True, False]
    assert bool(out[2].isnan())


def test_a_failing_thread_fails_the_call(monkeypatch):
    def fail(*arguments):
        raise RuntimeError("injected")

    monkeypatch.setattr("fedmf.noise.kernels.cpu.find_coarse", fail)
    with pytest.raises(RuntimeError, match="injected"):
        CpuKernels(KEY, Domain.TRAINING, 2).add_(ONE, torch.zeros(2 * FEWEST_PER_THREAD), 0)


OUT = torch.zeros(8)
STORED = torch.zeros(2, 8, dtype=torch.float64)
RING = RowPass((0,), (1.0,), 1.0, (0,), (1.0,), (1,), (0.0,))


def test_a_row_without_meaning_cannot_be_made():
    for fields, message in [
        ({"weights": ()}, "^weights must be 1 finite"),
        ({"weights": (1.0, 2.0)}, "^weights must be 1 finite"),
        ({"weights": (math.nan,)}, "^weights must be 1 finite"),
        ({"rounds": (), "weights": ()}, "^rounds must name at least one"),
        ({"rounds": (2**64,)}, r"^t \(round\) must satisfy"),
        ({"rounds": (-1,)}, r"^t \(round\) must satisfy"),
        ({"rounds": (True,)}, r"^t \(round\) must satisfy"),
        ({"rounds": (1.0,)}, r"^t \(round\) must satisfy"),
        ({"scale": math.inf}, "^scale"),
        ({"scale": math.nan}, "^scale"),
        ({"reads": (0,)}, "^read_weights must be 1 finite"),
        ({"reads": (0,), "read_weights": (1.0, 2.0)}, "^read_weights must be 1 finite"),
        ({"reads": (-1,), "read_weights": (1.0,)}, "^reads, writes .* at least 0"),
        ({"writes": (0,)}, "^decays must be 1 finite"),
        ({"writes": (0,), "decays": (math.inf,)}, "^decays must be 1 finite"),
        ({"writes": (-1,), "decays": (0.0,)}, "^reads, writes .* at least 0"),
    ]:
        with pytest.raises(ValueError, match=message + ".* No noise was added"):
            RowPass(**{"rounds": (0,), "weights": (1.0,), **fields})


def test_unfit_tensors_are_refused_before_anything_is_written(kernels):
    for row, arguments, message in [
        (ONE, (torch.zeros(8, dtype=torch.float16), 0), r"^out \(vector\) must be"),
        (ONE, (torch.zeros(16)[::2], 0), r"^out \(vector\) must be"),
        (ONE, (OUT, -1), r"^start, stop"),
        (ONE, (OUT, MAX_DIMENSION - 7), r"^start, stop"),
        (RING, (OUT, 0), "^stored .* must be at least 2; got None"),
        (RING, (OUT, 0, torch.zeros(2, 7)), "^stored"),
        (RING, (OUT, 0, torch.zeros(2, 9)), "^stored"),
        (RING, (OUT, 0, torch.zeros(16)), "^stored"),
        (RING, (OUT, 0, torch.zeros(8, 2).T), "^stored"),
        (RING, (OUT, 0, STORED.float()), "^stored"),
        (RING, (OUT, 0, torch.zeros(2, 8, device="meta")), "^stored"),
        (RING, (OUT, 0, STORED[:1]), "^reads, writes .* must be below 1; got 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            kernels.add_(row, *arguments)
        assert not OUT.any()
        assert not STORED.any()


def test_a_vector_elsewhere_is_refused():
    with pytest.raises(ValueError, match=r"^out \(vector\) must be on the CPU; got meta"):
        CpuKernels(KEY, Domain.TRAINING).add_(ONE, torch.zeros(4, device="meta"), 0)


def test_an_empty_vector_is_no_work(kernels):
    kernels.add_(ONE, torch.zeros(0), 5)


def test_noise_is_imported_without_the_compiler():
    probe = "import sys, fedmf.noise; sys.exit('numba' in sys.modules or 'triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], timeout=600, check=False).returncode == 0
