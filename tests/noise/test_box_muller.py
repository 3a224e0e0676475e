"""Box–Muller beyond the words a keystream will ever show: accuracy, tails, and the very bits documented."""

from __future__ import annotations

import math
import struct
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from fedmf.noise.reference import box_muller, uniforms
from support import noise_oracle

from fedmf.noise import box_muller as p

M32, M64 = 2**32 - 1, 2**64 - 1
RADIUS_WORDS = [0, 1, 2, 2**15, 2**16 - 1, 2**16, 2**16 + 1, 2**31, 3037000499, 3037000500, M32 - 1, M32]
REFINEMENTS = [0, 1, 2**53 + 1, 2**63, M64]
ANGLE_WORDS = [0, 1, 2**29 - 1, 2**29, 2**30 - 1, 2**30, 2**31 - 1, 2**31, 3 * 2**30, 7 * 2**29, M32]


def transformed(radius_words, refinements, angle_words, weight: float = 1.0) -> np.ndarray:
    """Compiled pairs, shape (n, 2); n words of each kind, through whole blocks as kernels do it."""
    n = len(radius_words)
    blocks = -(-n // 8)
    words = np.full((blocks, 16), 2**31, np.uint32)
    for j, (w, a) in enumerate(zip(radius_words, angle_words, strict=True)):
        words[j // 8, j % 8], words[j // 8, 8 + j % 8] = w, a
    positions = np.empty(8 * blocks, np.int64)
    count = p.find_coarse(words.reshape(-1), positions)
    positions = positions[:count]
    assert positions.tolist() == [j for j, w in enumerate(radius_words) if w < 2**16]
    extra = np.array([refinements[j] for j in positions], np.uint64)
    z = np.zeros((1, 16 * blocks))
    p.add_normals(words.reshape(1, -1), positions, extra, np.array([weight]), z)
    return z.reshape(blocks, 2, 8).swapaxes(1, 2).reshape(-1, 2)[:n]


def crossed() -> tuple[list[int], list[int], list[int]]:
    every = [(w, x, a) for w in RADIUS_WORDS for x in REFINEMENTS for a in ANGLE_WORDS]
    return tuple(list(column) for column in zip(*every, strict=True))


def test_extreme_words_agree_with_forty_digits():
    words = crossed()
    got = transformed(*words)
    expected = np.array([[float(v) for v in noise_oracle.pair(*each)] for each in zip(*words, strict=True)])
    np.testing.assert_allclose(got, expected, rtol=1e-15, atol=0)
    assert np.isfinite(got).all()
    assert (got != 0).all()
    assert abs(np.hypot(*got.T).max() - math.sqrt(2 * 97 * math.log(2))) < 1e-14


def test_the_reference_agrees_with_forty_digits():
    w, x, a = crossed()
    u = uniforms(np.array(w, np.uint32), np.array(x, np.uint64))
    got = np.stack(box_muller(u, np.array(a, np.uint32)), axis=1)
    expected = [[float(v) for v in noise_oracle.pair(*each)] for each in zip(w, x, a, strict=True)]
    np.testing.assert_allclose(got, expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("level", [7.0, 9.0, 11.5])
def test_quantiles_of_the_refined_tail_are_exact(level):
    """P(r > level) = exp(−level²/2) is the number of 2⁻⁹⁶-steps of u below it, to half a step."""
    with mpmath.workdps(40):
        steps = int(mpmath.nint(mpmath.exp(-(mpmath.mpf(level) ** 2) / 2) * 2**96))
    below, above = steps - 1 - (steps >> 40), steps + (steps >> 40)
    assert above >> 64 < 2**16
    words = [value >> 64 for value in (below, above)], [value & M64 for value in (below, above)]
    inside, outside = np.hypot(*transformed(*words, [12345] * 2).T)
    step = 1 / (steps * level)
    assert inside > level - 1e-14 * level
    assert outside < level + 1e-14 * level
    assert inside - outside < 2.2 * step + level * 2.0**-38


def fma(a: float, b: float, c: float) -> float:
    return float(Fraction(a) * Fraction(b) + Fraction(c))


def horner(coefficients: tuple[float, ...], t: float) -> float:
    total = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        total = fma(total, t, coefficient)
    return total


def bits(value: float) -> int:
    return struct.unpack("<Q", struct.pack("<d", value))[0]


def from_bits(value: int) -> float:
    return struct.unpack("<d", struct.pack("<Q", value))[0]


def documented(w: int, x: int, a: int, weight: float) -> tuple[float, float]:
    """The operations in the docstring of `box_muller`, with fma in rational arithmetic."""
    v = fma(float(x) + 0.5, 2.0**-64, float(w)) if w < 2**16 else w + 0.5
    b = (bits(v) + p.EXPONENT_SHIFT) & M64
    e = float(b >> 52) - p.EXPONENT_BIAS
    f = from_bits((b & (2**52 - 1)) + p.ROOT_HALF) - 1.0
    s = f / (f + 2.0)
    t = s * s
    r = math.sqrt(fma(e, p.LN2_HIGH, fma(e, p.LN2_LOW, s * fma(t, horner(p.LOG, t), -4.0))))
    q = ((a + 2**29) & M32) >> 30
    rest = (a - (q << 30)) & M32
    x = ((rest - 2**32 if rest >= 2**31 else rest) + 0.5) * 2.0**-30
    t = x * x
    sin, cos = x * fma(t, horner(p.SIN, t), p.HALF_PI), fma(t, horner(p.COS, t), 1.0)
    c, s = [(cos, sin), (-sin, cos), (-cos, -sin), (sin, -cos)][q]
    return fma(weight, r * c, 0.0), fma(weight, r * s, 0.0)


@pytest.mark.parametrize("weight", [1.0, -0.7310585786300049])
def test_compiled_bits_are_the_documented_ones(weight):
    """So they are the same on every processor and in every vector width. Also finds stale machine code."""
    rng = np.random.default_rng(2)
    w, x, a = crossed()
    w += rng.integers(0, 2**32, 600).tolist() + rng.integers(0, 2**16, 100).tolist()
    x += rng.integers(0, 2**64, 700, dtype=np.uint64).tolist()
    a += rng.integers(0, 2**32, 700).tolist()
    got = transformed(w, x, a, weight)
    expected = np.array([documented(*each, weight) for each in zip(w, x, a, strict=True)])
    assert got.tobytes() == expected.tobytes()
