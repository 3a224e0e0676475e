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
from numba.core import caching

from fedmf.compiled import compiled
from fedmf.noise.kernels.cpu import FEWEST_PER_THREAD, TILE, CpuKernels
from fedmf.noise.kernels.layout import MAX_DIMENSION, Domain
from fedmf.noise.kernels.protocol import DTYPES, KEPT_DTYPES
from fedmf.noise.kernels.reference import ReferenceKernels, normals, round_to
from fedmf.noise.key import NoiseKey

KEY = NoiseKey.from_seed(3)
SPANS = [(0, 40), (5, 1), (15, 2), (16 * 1000 + 3, 5000), (TILE - 9, TILE + 30), (MAX_DIMENSION - 100, 100)]

# Of sums of a few terms below 12 in float64.
ROUNDING = 1e-14
DIGITS = {torch.float64: 52, torch.float32: 23, torch.bfloat16: 7}


def vector(seed: int, *shape: int, dtype: torch.dtype) -> torch.Tensor:
    return round_to(np.random.default_rng(seed).standard_normal(shape), dtype)


def accumulate(kernels, out, rows, start) -> None:
    kernels.accumulate_(out, start, [3, 9, 2**64 - 1], [0.7, -0.2, 1e-3])


def feed_back(kernels, out, rows, start) -> None:
    """The written slot is read too, and one slot twice."""
    kernels.feedback_(out, -0.3, start, [4, 5], [0.5, 0.1], rows, [0, 2, 3, 0], [0.1, 0.2, 0.3, -0.4], 2)


def step(kernels, out, rows, start) -> None:
    kernels.state_space_(out, 0.3, start, 6, rows, [0.5, 0.1, 0.0, 0.99], [0.1, -0.2, 0.3, 0.4])


PASSES = [accumulate, feed_back, step]


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
@pytest.mark.parametrize("rows_dtype", KEPT_DTYPES, ids=str)
@pytest.mark.parametrize("apply", PASSES)
def test_passes_equal_the_reference(apply, dtype, rows_dtype):
    for start, length in SPANS:
        got = [vector(1, length, dtype=dtype), vector(2, 4, length, dtype=rows_dtype)]
        expected = [part.clone() for part in got]
        apply(CpuKernels(KEY, Domain.TRAINING), *got, start)
        apply(ReferenceKernels(KEY, Domain.TRAINING), *expected, start)
        assert all(close(a, b) for a, b in zip(got, expected, strict=True)), (start, length)


@pytest.mark.parametrize("apply", PASSES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cuts_and_threads_do_not_change_a_bit(apply, dtype):
    """Long enough for refined pairs in every pass, and for three threads."""
    start, length = 21, 3 * FEWEST_PER_THREAD + 777
    cuts = [0, 1, 16, 1003, TILE - 21, TILE, 2 * FEWEST_PER_THREAD + 5, length]
    out, rows = vector(1, length, dtype=dtype), vector(2, 4, length, dtype=torch.float32)
    whole = out.clone(), rows.clone()
    apply(CpuKernels(KEY, Domain.TRAINING, threads=1), *whole, start)
    for threads in (2, 3, 7):
        got = out.clone(), rows.clone()
        apply(CpuKernels(KEY, Domain.TRAINING, threads), *got, start)
        assert all(torch.equal(a, b) for a, b in zip(got, whole, strict=True)), threads
    for low, high in pairwise(cuts):
        got = out[low:high].clone(), rows[:, low:high].clone()
        apply(CpuKernels(KEY, Domain.TRAINING), *got, start + low)
        assert torch.equal(got[0], whole[0][low:high]), (low, high)
        assert torch.equal(got[1], whole[1][:, low:high]), (low, high)


def test_feedback_adds_what_it_has_not_rounded_and_stores_it_rounded(kernels):
    out, ring = torch.zeros(3000, dtype=torch.float64), torch.zeros(2, 3000)
    kernels.feedback_(out, 1.0, 7, [0], [1.0], ring, [], [], 1)
    expected = torch.zeros_like(out)
    kernels.accumulate_(expected, 7, [0], [1.0])
    assert torch.equal(out, expected)
    assert torch.equal(ring[1], out.float())
    assert not torch.equal(ring[1].double(), out)
    assert not ring[0].any()


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
    """`feedback_` of two float64 rows stores any number we like: zero noise, −(−1)·row."""
    rng = np.random.default_rng(4)
    values = np.array([*AWKWARD, *(rng.standard_normal(500) * 2.0 ** rng.integers(-140, 100, 500))])
    expected = [float(nearest(value, dtype)) for value in values.tolist()]
    assert round_to(values, dtype).double().tolist() == expected
    out = torch.zeros(values.size, dtype=dtype)
    wide = torch.from_numpy(np.stack([values, values]))
    kernels = CpuKernels(KEY, Domain.TRAINING)
    kernels.feedback_(out, 1.0, 0, [0], [0.0], wide, [0], [-1.0], 1)
    assert wide[1].tolist() == values.tolist()
    assert out.double().tolist() == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_narrow_noise_is_the_wide_noise_rounded_once(dtype):
    wide, narrow = torch.zeros(200_000, dtype=torch.float64), torch.zeros(200_000, dtype=dtype)
    for out in (wide, narrow):
        CpuKernels(KEY, Domain.FIRST_MOMENT).accumulate_(out, 3, [8, 7], [1.0, 0.25])
    assert torch.equal(narrow, round_to(wide.numpy(), dtype))
    z = [normals(KEY, Domain.FIRST_MOMENT, t, 3, 200_003) for t in (8, 7)]
    np.testing.assert_allclose(wide.numpy(), z[0] + 0.25 * z[1], rtol=0, atol=ROUNDING)


def test_infinite_and_missing_numbers_stay_what_they_are():
    out = torch.tensor([math.inf, -math.inf, math.nan, 1.0], dtype=torch.bfloat16)
    CpuKernels(KEY, Domain.TRAINING).accumulate_(out, 0, [0], [1.0])
    assert out[:3].isinf().tolist() == [True, True, False]
    assert bool(out[2].isnan())


def test_a_failing_thread_fails_the_call(monkeypatch):
    def fail(*arguments):
        raise RuntimeError("injected")

    monkeypatch.setattr("fedmf.noise.kernels.cpu.find_coarse", fail)
    with pytest.raises(RuntimeError, match="injected"):
        CpuKernels(KEY, Domain.TRAINING, 2).accumulate_(torch.zeros(2 * FEWEST_PER_THREAD), 0, [0], [1.0])


OUT = torch.zeros(8)
RING = torch.zeros(2, 8)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("accumulate_", (torch.zeros(8, dtype=torch.float16), 0, [0], [1.0]), r"^out \(vector\) must be"),
        ("accumulate_", (torch.zeros(16)[::2], 0, [0], [1.0]), r"^out \(vector\) must be"),
        ("accumulate_", (OUT, -1, [0], [1.0]), r"^start, stop"),
        ("accumulate_", (OUT, MAX_DIMENSION - 7, [0], [1.0]), r"^start, stop"),
        ("accumulate_", (OUT, 0, [0, 1], [1.0]), "^weights must be 2 finite"),
        ("accumulate_", (OUT, 0, [0], [math.nan]), "^weights must be 1 finite"),
        ("accumulate_", (OUT, 0, [], []), "^rounds must name at least one"),
        ("accumulate_", (OUT, 0, [2**64], [1.0]), r"^t \(round\) must satisfy"),
        ("feedback_", (OUT, 1.0, 0, [0], [1.0], torch.zeros(2, 7), [0], [1.0], 1), "^ring"),
        ("feedback_", (OUT, 1.0, 0, [0], [1.0], torch.zeros(8, 2).T, [0], [1.0], 1), "^ring"),
        ("feedback_", (OUT, 1.0, 0, [0], [1.0], RING.half(), [0], [1.0], 1), "^ring"),
        ("feedback_", (OUT, 1.0, 0, [0], [1.0], RING.bfloat16(), [0], [1.0], 1), "^ring"),
        ("state_space_", (OUT, 1.0, 0, 0, RING.bfloat16(), [0.1] * 2, [0.1] * 2), "^state"),
        ("feedback_", (OUT, 1.0, 0, [0], [1.0], RING, [2], [1.0], 1), "^slot"),
        ("feedback_", (OUT, 1.0, 0, [0], [1.0], RING, [0], [1.0], -1), "^slot"),
        ("feedback_", (OUT, 1.0, 0, [0], [1.0], RING, [0], [1.0, 2.0], 1), "^ring_weights"),
        ("feedback_", (OUT, math.inf, 0, [0], [1.0], RING, [0], [1.0], 1), "^scale"),
        ("state_space_", (OUT, 1.0, 0, 0, torch.zeros(2, 9), [0.1] * 2, [0.1] * 2), "^state"),
        ("state_space_", (OUT, 1.0, 0, 0, RING, [0.1], [0.1] * 2), "^decays"),
        ("state_space_", (OUT, 1.0, 0, 0, RING, [0.1] * 2, [math.inf] * 2), "^output_weights"),
        ("state_space_", (OUT, math.nan, 0, 0, RING, [0.1] * 2, [0.1] * 2), "^scale"),
    ],
)
def test_unfit_arguments_are_refused_before_anything_is_written(kernels, name, arguments, message):
    with pytest.raises(ValueError, match=message):
        getattr(kernels, name)(*arguments)
    assert not OUT.any()
    assert not RING.any()


def test_a_vector_elsewhere_is_refused():
    with pytest.raises(ValueError, match=r"^out \(vector\) must be on the CPU; got meta"):
        CpuKernels(KEY, Domain.TRAINING).accumulate_(torch.zeros(4, device="meta"), 0, [0], [1.0])


def test_an_empty_vector_is_no_work(kernels):
    kernels.accumulate_(torch.zeros(0), 5, [0], [1.0])


def test_noise_is_imported_without_the_compiler():
    probe = "import sys, fedmf.noise; sys.exit('numba' in sys.modules or 'triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], timeout=300, check=False).returncode == 0


def test_no_folder_for_machine_code_is_no_error(monkeypatch):
    for implementation in (caching.CacheImpl, caching.CodeLibraryCacheImpl):
        monkeypatch.setattr(implementation, "_locator_classes", [])
    assert compiled(lambda x: x + 1)(1) == 2
