"""Compiled parts of training without weights: products of rows, the bound of the norm, truncated integers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedmf.training.blocks import add_product, count_product, padded, products_with
from fedmf.training.low_rank.sums import _norm
from fedmf.training.low_rank.values import Chain, Work


def factors(rows: int, inputs: int, outputs: int, seed: int, cancelling: float) -> tuple[Chain, Work, int]:
    """One layer whose rows nearly cancel each other: A_{2i+1} = −(1 + ε)·A_{2i} with the same input."""
    draw = np.random.default_rng(seed)
    wide = np.array([padded(inputs), padded(outputs)])
    x, first = np.zeros((rows, wide[0]), np.float32), np.zeros((rows, wide[1]), np.float32)
    x[:, :inputs] = draw.normal(size=(rows, inputs))
    first[:, :outputs] = draw.normal(size=(rows, outputs))
    x[1::2] = x[0::2][: rows // 2]
    first[1::2] = -first[0::2][: rows // 2] * np.float32(1 + cancelling)
    none, numbers = np.zeros(0, np.float32), np.zeros(1, np.int64)
    floats = dict.fromkeys(("weights", "transposed", "biases"), none)
    chain = Chain(
        **floats,
        **dict.fromkeys(("weights_at", "transposed_at", "biases_at", "flat_weights", "activations"), numbers),
        flat_biases=np.array([inputs * outputs]),
        sizes=np.array([inputs, outputs]),
        wide=wide,
    )
    exact = x.astype(np.float64)
    kinds = {"gram": exact @ exact.T, "x": x.ravel(), "first": first.ravel(), "begin": np.zeros(3, np.int64)}
    integral = dict.fromkeys(("example", "taken", "labels"), numbers)
    real = dict.fromkeys(("velocity", "moved"), np.zeros(1))
    real |= dict.fromkeys(("products", "input_products"), np.zeros(rows))
    work = Work(**dict.fromkeys(Work._fields, none) | kinds | integral | real)  # type: ignore[arg-type]
    return chain, work, rows


def test_products_of_a_row_with_several_have_the_bits_of_each_alone() -> None:
    """Each is a float64 sum of exact products: sixteen chains, added one after the other."""
    wide, rows = 48, np.random.default_rng(2).normal(size=(11, 48)).astype(np.float32)
    for r in range(len(rows)):
        products = np.full(len(rows), np.nan)
        products_with(products, rows.reshape(-1), 0, r, wide)
        for other in range(r + 1):
            lanes = np.zeros(16)
            for k in range(0, wide, 16):
                lanes += rows[r, k : k + 16].astype(np.float64) * rows[other, k : k + 16]
            assert products[other] == pytest.approx(sum(lanes.tolist()), rel=1e-12, abs=1e-13)
            alone = np.zeros(2)
            products_with(alone, np.stack([rows[other], rows[r]]).reshape(-1), 0, 1, wide)
            assert alone[0] == products[other]
        assert np.isnan(products[r + 1 :]).all()


@pytest.mark.parametrize("cancelling", [0.0, 1e-7, 1e-4, 1.0])
def test_the_norm_is_at_least_that_of_the_float32_sums(cancelling: float) -> None:
    """Where rows cancel, what is left are rounding errors: exactly they are what the sum would add."""
    for seed in range(20):
        rows, inputs, outputs = 2 + seed, 1 + 7 * seed, 1 + 5 * seed
        chain, work, count = factors(rows, inputs, outputs, seed, cancelling)
        bound = _norm(chain, work, count, 0, inputs * outputs + outputs)
        sums = np.zeros((outputs, int(chain.wide[0])), np.float32)
        wide = int(chain.wide[1])
        columns, flat = sums.shape[1], sums.reshape(-1)
        add_product(work.first, 0, 1, wide, outputs, rows, work.x, 0, columns, flat, 0, columns, columns)
        bias = np.zeros(outputs, np.float32)
        for row in work.first.reshape(rows, wide)[:, :outputs]:
            bias += row
        parts = [*sums.astype(np.float64).ravel(), *bias.astype(np.float64)]
        norm = math.sqrt(math.fsum(part * part for part in parts))
        assert norm <= bound
        if cancelling == 1.0:
            assert bound < norm * (1 + 1e-4)


def test_integers_are_the_truncated_products() -> None:
    draw = np.random.default_rng(4)
    for rows, n, columns in ((1, 3, 5), (6, 9, 16), (5, 2, 83), (9, 20, 144)):
        x, wide = draw.normal(size=(n, rows)).astype(np.float32), padded(columns)
        w = np.zeros((n, wide), np.float32)
        w[:, :columns] = draw.normal(size=(n, columns))
        sums, counted = np.zeros((rows, wide), np.float32), np.zeros(rows * columns, np.int64)
        add_product(x.ravel(), 0, 1, rows, rows, n, w.ravel(), 0, wide, sums.reshape(-1), 0, wide, wide)
        assert np.allclose(sums[:, :columns], x.T @ w[:, :columns], atol=1e-5)
        count_product(
            x.ravel(), 0, 1, rows, rows, n, w.ravel(), 0, wide, counted, 0, columns, 1e9, np.zeros(16, "f4")
        )
        expected = np.trunc(sums[:, :columns].astype(np.float64) * 1e9).astype(np.int64)
        assert np.array_equal(counted.reshape(rows, columns), expected)
