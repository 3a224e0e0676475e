"""Compiled parts of training without weights: products of rows."""

from __future__ import annotations

import numpy as np
import pytest

from fedmf.training.blocks import add_product, padded, row_products, set_product


def test_products_of_rows_have_the_bits_of_each_pair_alone_and_are_as_near_as_said() -> None:
    draw, zeros = np.random.default_rng(2), np.zeros(1, np.float32)
    for count, wide in ((1, 16), (7, 48), (11, 784), (20, 4096)):
        rows, long = draw.normal(size=(count, wide)).astype(np.float32), count + 2
        products = np.full((count, long), np.nan, np.float32)
        row_products(rows.reshape(-1), 0, wide, count, products.reshape(-1), long, zeros)
        exact = rows.astype(np.float64) @ rows.T.astype(np.float64)
        unit = (wide / 16 + 4) * 2.0**-24
        bound = unit / (1 - unit) * (np.abs(rows).astype(np.float64) @ np.abs(rows).T.astype(np.float64))
        assert (np.abs(products[:, :count] - exact) <= bound).all()
        assert np.array_equal(products[:, :count], products[:, :count].T)
        assert np.isnan(products[:, count:]).all()
        pair, alone = rows[[count - 1, 0]], np.zeros(4, np.float32)
        row_products(pair.reshape(-1), 0, wide, 2, alone, 2, zeros)
        assert alone[1] == products[0, count - 1]


@pytest.mark.parametrize("columns", [5, 16, 83, 144])
def test_a_product_has_the_same_bits_however_the_matrix_lies(columns: int) -> None:
    draw, n, wide = np.random.default_rng(3), 600, padded(columns)
    w = np.zeros((n, wide), np.float32)
    w[:, :columns] = draw.normal(size=(n, columns))
    below = np.ascontiguousarray(w.reshape(n, wide // 16, 16).transpose(1, 0, 2))
    for rows in (1, 4, 5, 7, 11):
        x = draw.normal(size=(rows, n)).astype(np.float32)
        one, other = np.zeros((2, rows, wide), np.float32)
        add_product(
            x.ravel(), 0, n, 1, rows, n, w.ravel(), 0, wide, 16, one.reshape(-1), 0, wide, wide
        )  # fmt: skip
        add_product(
            x.ravel(), 0, n, 1, rows, n, below.ravel(), 0, 16, 16 * n, other.reshape(-1), 0, wide, wide
        )  # fmt: skip
        assert np.array_equal(one, other)
        assert np.allclose(one, x.astype(np.float64) @ w, atol=1e-3)
        for r in range(rows):
            alone = np.zeros(wide, np.float32)
            add_product(x[r], 0, n, 1, 1, n, w.ravel(), 0, wide, 16, alone, 0, wide, wide)
            assert np.array_equal(alone, one[r])


def test_products_of_any_number_of_columns_are_set() -> None:
    draw = np.random.default_rng(4)
    for rows, n, columns in ((1, 3, 5), (6, 9, 16), (5, 2, 83), (9, 20, 144)):
        x, wide = draw.normal(size=(n, rows)).astype(np.float32), padded(columns)
        w = np.zeros((n, wide), np.float32)
        w[:, :columns] = draw.normal(size=(n, columns))
        sums, found = np.zeros((rows, wide), np.float32), np.full(rows * columns + 2, np.nan, np.float32)
        add_product(x.ravel(), 0, 1, rows, rows, n, w.ravel(), 0, wide, 16, sums.reshape(-1), 0, wide, wide)
        assert np.allclose(sums[:, :columns], x.T @ w[:, :columns], atol=1e-5)
        set_product(x.ravel(), 0, 1, rows, rows, n, w.ravel(), 0, wide, found, 1, columns, np.zeros(16, "f4"))
        assert np.array_equal(found[1:-1].reshape(rows, columns), sums[:, :columns])
        assert np.isnan(found[[0, -1]]).all()
