"""Compiled loops: machine code is kept where it can be, and made again whatever happens to it."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba.core.caching import CacheImpl

from fedmf.loops import compiled, fma, summing

MODULE = """
import sys
import numpy as np
from fedmf.loops import compiled

@compiled("float64(float32[::1])", "float64(float64[::1])")
def total(x):
    sum = 0.0
    for i in range(x.size):
        sum += x[i]
    return sum

assert total(np.full(3, 0.5, np.float32)) == total(np.full(3, 0.5)) == 1.5
print(sum(total.stats.cache_hits.values()))
"""


def hits(folder: Path) -> int:
    """How many of both kinds of arguments a new process finds machine code for."""
    (folder / "module.py").write_text(MODULE)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "kept")}
    command = [sys.executable, str(folder / "module.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=300)
    return int(done.stdout)


def test_machine_code_is_found_again_and_made_again_where_it_is_damaged(tmp_path: Path) -> None:
    assert [hits(tmp_path), hits(tmp_path)] == [0, 2]
    for damage in (b"", b"something else"):
        for path in (tmp_path / "kept").rglob("*.nb?"):
            path.write_bytes(damage)
        assert hits(tmp_path) == 0


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
