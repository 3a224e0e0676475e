"""Clipped rows are within the bound in exact arithmetic and do not depend on each other."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from fedmf.streaming.rows import clip_rows


def samples(d: int) -> np.ndarray:
    rng = np.random.default_rng(d)
    x = rng.normal(size=(60, d))
    x[:20] /= np.linalg.norm(x[:20], axis=1, keepdims=True)  # as near to the bound as rounding allows
    x[20:30] *= 0.01
    x[30] = 0.0
    x[31], x[32] = 1e300, 1e-310
    x[33] = 0.0
    x[33, 0] = np.nextafter(1.0, 2.0)
    x[34] = np.finfo(np.float64).max
    return x


@pytest.mark.parametrize("d", [1, 7, 200])
def test_norms_in_exact_arithmetic(d: int) -> None:
    x = samples(d)
    clipped, long = clip_rows(x, 1.0)
    for row, before, over in zip(clipped, x, long, strict=True):
        square = sum(Fraction(float(v)) ** 2 for v in row)
        whole = sum(Fraction(float(v)) ** 2 for v in before)
        assert square <= 1
        if whole > 1 + Fraction(1, 10**8):
            assert over
            assert square > 1 - Fraction(1, 10**8)
            k = int(np.argmax(np.abs(before)))
            np.testing.assert_allclose(row / row[k], before / before[k], rtol=1e-12)
        elif whole < 1 - Fraction(1, 10**8):
            assert not over
            assert (row == before).all()


def test_a_row_is_the_same_alone() -> None:
    x = samples(9)
    together, long = clip_rows(x, 0.37)
    for i in range(len(x)):
        alone, over = clip_rows(x[i : i + 1], 0.37)
        assert (alone[0] == together[i]).all()
        assert over[0] == long[i]
