"""Rows longer than the clip norm: which are counted as clipped, and their vectors and counts."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from support.streams import BUDGET, run_once

from fedmf.clipping.clipped_rows import clip_to_fixed_point
from fedmf.data import Schema
from fedmf.streaming import Settings


def samples(d: int) -> np.ndarray:
    rng = np.random.default_rng(d)
    x = rng.normal(size=(60, d))
    x[:20] /= np.linalg.norm(
        x[:20], axis=1, keepdims=True
    )  # as near to the bound as rounding allows
    x[20:30] *= 0.01
    x[30] = 0.0
    x[31] = 1e300
    x[32] = 1e-310
    x[33] = 0.0
    x[33, 0] = np.nextafter(1.0, 2.0)
    x[34] = np.finfo(np.float64).max
    return x


@pytest.mark.parametrize("bits", [8, 31])
@pytest.mark.parametrize("d", [1, 7, 200])
def test_integers_are_within_the_bound_and_are_those_of_the_row(d: int, bits: int) -> None:
    """In exact arithmetic: Σ n² ≤ 2²ᴮ, every n within a unit of the clipped row."""
    x = samples(d)
    rows, counted = clip_to_fixed_point(torch.from_numpy(x), 1.0, bits)
    assert counted.all()
    for row, before in zip(rows.tolist(), x.tolist(), strict=True):
        assert sum(n * n for n in row) <= 4**bits
        largest = max(Fraction(max(map(abs, before))), Fraction(1, 2**1074))
        root = math.sqrt(sum((Fraction(v) / largest) ** 2 for v in before))
        scale = 2**bits / max(largest * Fraction(root), 1)
        slack = 1 + Fraction(2**bits * (d + 99), 2**51)
        assert all(abs(n - Fraction(v) * scale) <= slack for n, v in zip(row, before, strict=True))


@pytest.mark.parametrize("d", [9, 70_000])
def test_a_row_has_the_same_integers_alone_and_for_any_number_of_threads(d: int) -> None:
    x = torch.from_numpy(samples(9) if d == 9 else np.random.default_rng(0).normal(size=(5, d)))
    together, _ = clip_to_fixed_point(x, 0.37)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    for i in range(len(x)):
        assert torch.equal(clip_to_fixed_point(x[i : i + 1], 0.37)[0][0], together[i])
    torch.set_num_threads(threads)


def test_a_long_row_counts_as_one_row(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """Next to a coordinate that counts rows the numbers alone are clipped."""
    number = {"kind": "number", "lower": -1, "upper": 1, "nullable": True}
    schema = Schema.from_dict({"a": number, "b": number})
    settings = Settings(
        **{**BUDGET, "clip_norm": 0.5, "epsilon": 1e6}, rounds=40, schema=schema, release_every=40
    )
    source = tmp_path / "rows.csv"
    source.write_text("a,b\n" + 20 * "0.6,0.8\n" + 20 * "0.3,0.4\n")
    told = run_once(tmp_path, settings, source, "out.csv")
    assert told["counts"]["clipped"] == 20
    header, line = (text.split(",") for text in (tmp_path / "out.csv").read_text().splitlines())
    found = dict(zip(header, line, strict=True))
    assert float(found["valid_share"]) == pytest.approx(1.0, abs=1e-3)
    assert float(found["mean:a"]) == pytest.approx(0.3, abs=1e-3)
