"""Compiled parts of training without weights: products of rows."""

from __future__ import annotations

import numpy as np
import pytest

from fedmf.training.blocks import add_product, padded, products_with, set_product


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


def test_products_of_any_number_of_columns_are_set() -> None:
    draw = np.random.default_rng(4)
    for rows, n, columns in ((1, 3, 5), (6, 9, 16), (5, 2, 83), (9, 20, 144)):
        x, wide = draw.normal(size=(n, rows)).astype(np.float32), padded(columns)
        w = np.zeros((n, wide), np.float32)
        w[:, :columns] = draw.normal(size=(n, columns))
        sums, found = np.zeros((rows, wide), np.float32), np.full(rows * columns + 2, np.nan, np.float32)
        add_product(x.ravel(), 0, 1, rows, rows, n, w.ravel(), 0, wide, sums.reshape(-1), 0, wide, wide)
        assert np.allclose(sums[:, :columns], x.T @ w[:, :columns], atol=1e-5)
        set_product(x.ravel(), 0, 1, rows, rows, n, w.ravel(), 0, wide, found, 1, columns, np.zeros(16, "f4"))
        assert np.array_equal(found[1:-1].reshape(rows, columns), sums[:, :columns])
        assert np.isnan(found[[0, -1]]).all()
