"""Compiled loops: machine code is kept where it can be, and made again whatever happens to it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numba.core.caching import CacheImpl

from fedmf.loops import compiled, fma, summing


def test_a_function_is_compiled_where_nothing_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CacheImpl, "_locator_classes", [])

    @compiled("float64(float64, float64, float64)")
    def fused(a: float, b: float, c: float) -> float:
        return fma(a, b, c)

    tiny = 2.0**-30
    assert fused(1.0 + tiny, 1.0 - tiny, -1.0) == -(tiny**2), "rounded once"
    with pytest.raises(TypeError, match="No matching definition"):
        fused("1", 1.0, 1.0)


def test_sums_in_any_order_keep_what_is_not_a_number() -> None:
    @summing
    def total(x: np.ndarray) -> float:
        sum = 0.0
        for i in range(x.size):
            sum += x[i]
        return sum

    x = np.ones(100)
    assert total(x) == 100.0
    for value in (math.nan, math.inf):
        x[17] = value
        assert math.isnan(total(x)) if math.isnan(value) else total(x) == math.inf
    x[18] = -math.inf
    assert math.isnan(total(x))
