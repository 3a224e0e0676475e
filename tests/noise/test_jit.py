"""Compiled loops: machine code is kept where it can be, and made again whatever happens to it."""

from __future__ import annotations

import gc
import math
from pathlib import Path

import numpy as np
import pytest
from numba.core import config
from numba.core.caching import CacheImpl

from fedmf.noise.jit import compiled, compiled_for, jit_contract, jit_inline, jit_reassoc


def test_a_function_is_compiled_where_nothing_can_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CacheImpl, "_locator_classes", [])

    @compiled("float64(float64, float64, float64)")
    def combined(a: float, b: float, c: float) -> float:
        return a * b + c

    assert combined(2.0, 3.0, 1.0) == 7.0
    with pytest.raises(TypeError, match="No matching definition"):
        combined("1", 1.0, 1.0)


def test_products_and_sums_are_rounded_one_by_one_unless_they_may_be_fused() -> None:
    def combined(a: float, b: float, c: float) -> float:
        return a * b + c

    one_by_one = jit_inline(combined)
    perhaps_fused = jit_contract(combined)

    @compiled("UniTuple(float64, 2)(float64, float64, float64)")
    def both(a: float, b: float, c: float) -> tuple[float, float]:
        return one_by_one(a, b, c), perhaps_fused(a, b, c)

    tiny = 2.0**-30
    exact = -(tiny**2)
    first, second = both(1.0 + tiny, 1.0 - tiny, -1.0)
    assert first == 0.0
    assert second in (0.0, exact)


def test_sums_in_any_order_keep_what_is_not_a_number() -> None:
    @jit_reassoc
    def total(x: np.ndarray) -> float:
        sum = 0.0
        for i in range(x.size):
            sum += x[i]
        return sum

    @compiled("float64(float64[::1])")
    def total_of(x: np.ndarray) -> float:
        return total(x)

    x = np.ones(100)
    assert total_of(x) == 100.0
    for value in (math.nan, math.inf):
        x[17] = value
        assert math.isnan(total_of(x)) if math.isnan(value) else total_of(x) == math.inf
    x[18] = -math.inf
    assert math.isnan(total_of(x))


def test_each_type_is_compiled_when_it_first_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))

    @compiled_for(("float32", "float64"), "{0}({0}[::1], int64)")
    def entry(x: np.ndarray, i: int) -> float:
        return x[i]

    def cached() -> list[str]:
        """The types whose machine code is on disk."""
        names = [path.name for path in tmp_path.rglob("*.nbi")]
        return [dtype for dtype in ("float32", "float64") if any(dtype in name for name in names)]

    third = np.full(2, 1 / 3)
    assert entry(third.astype(np.float32), 1) == np.float32(1 / 3)
    assert cached() == ["float32"]
    assert entry(third, 1) == 1 / 3
    assert cached() == ["float32", "float64"]


def test_the_garbage_collector_pauses_while_a_function_is_compiled() -> None:
    collecting = list[bool]()

    def signature() -> str:
        collecting.append(gc.isenabled())
        return "int64(int64)"

    @compiled(signature)
    def same(x: int) -> int:
        return x

    assert same(3) == 3
    assert collecting == [False]
    assert gc.isenabled()
