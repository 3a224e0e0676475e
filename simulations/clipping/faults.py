"""Faults that `fuzz.py` puts in on purpose, before anything is compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from fedmf.training.blocks import COUNTED, NO_CLASS, NOT_FINITE, UNBOUNDED, sign
from fedmf.training.clipping import kernel
from fedmf.training.clipping.merge import _add_features
from fedmf.training.low_rank import program
from fedmf.training.low_rank.steps import begin_user, set_changes, step

__all__ = ["put_in"]


def put_in(blind_norm: bool, gram_norm: bool, without_check: bool) -> None:
    """Exchange functions of fedmf for those that have the faults."""
    if without_check:
        kernel.merge = unchecked
    if blind_norm:
        kernel._squared_norm = finite_entries
    if gram_norm:
        program.train_and_sum = training_with_gram_norms()


@njit(error_model="numpy")
def unchecked(row: Any, origin: Any, factor: Any, sign: Any, into: Any) -> bool:
    """A merge that adds whatever it is given."""
    for i in range(row.size):
        x = row[i] if origin is None else row[i] - origin[i]
        into.total[i] += np.int64(np.float64(x) * factor)
    into.signs[into.stayed[0]] = sign
    into.stayed[0] += 1
    if into.second.size > 0:
        _add_features(row, origin, factor, into)
    return True


@njit(error_model="numpy")
def finite_entries(row: Any, origin: Any, partial: Any) -> Any:
    """A squared norm that leaves out entries beyond float32: finite where the update is not."""
    total = 0.0
    for i in range(row.size):
        x = np.float64(row[i]) if origin is None else np.float64(row[i] - origin[i])
        if np.isfinite(x):
            total += x * x
    return total


@njit(error_model="numpy")
def products_with(products: Any, rows: Any, begin: Any, r: Any, wide: Any) -> None:
    """products[i] = the product of row r with row i ≤ r, in float64."""
    for other in range(r + 1):
        total = 0.0
        for k in range(wide):
            total += np.float64(rows[begin + r * wide + k]) * np.float64(rows[begin + other * wide + k])
        products[other] = total


def training_with_gram_norms() -> Any:
    """Training without weights whose norm is √q + γ_R·S of November 2026: docs/theory/low-rank.md."""
    merge, set_row = kernel.merge, program._set_row

    @njit(error_model="numpy")
    def gram_norm(chain: Any, work: Any, count: Any, done: Any) -> Any:
        changes, inputs = np.zeros(max(count, done)), np.zeros(max(count, done))
        square, zero = 0.0, np.int64(0)
        for layer in range(chain.sizes.size - 1):
            rows = count if layer == 0 else done
            a, start = (work.first, zero) if layer == 0 else (work.changes, work.begin[layer + 1])
            one = 1.0 if chain.flat_biases[layer] >= 0 else 0.0
            q, size = 0.0, 0.0
            for r in range(rows):
                products_with(changes, a, start, r, chain.wide[layer + 1])
                if layer > 0:
                    products_with(inputs, work.inputs, work.begin[layer], r, chain.wide[layer])
                for other in range(r + 1):
                    h = work.close[r * work.near[0] + other] if layer == 0 else inputs[other]
                    product = changes[other] * (h + one)
                    q += product if other == r else 2.0 * product
                size += np.sqrt(product)
            square += (np.sqrt(max(q, 0.0)) + (rows + 1) * 2.0**-24 * size) ** 2
        return np.sqrt(square)

    @njit(error_model="numpy", nogil=True)
    def train_and_sum(
        chain: Any, rule: Any, examples: Any, work: Any, clip_norm: Any, scale: Any, into: Any, outcome: Any
    ) -> None:
        for u in range(outcome.size):
            outcome[u] = COUNTED
            lowest, count = begin_user(chain, examples, work, u)
            done, s = np.int64(0), np.int64(0)
            while s < examples.active.size and examples.active[s] > u:
                rows = step(chain, rule, examples, work, u, s, lowest, count, done)
                if rows < 0:
                    outcome[u] = NO_CLASS
                    break
                done += rows
                s += 1
            set_changes(chain, work, s, count)
            norm = gram_norm(chain, work, count, done)
            if not np.isfinite(norm):
                outcome[u] = NOT_FINITE
                continue
            set_row(chain, work, count, done)
            factor = scale / max(norm, clip_norm)
            if not merge(work.row, None, factor, sign(norm, clip_norm), into):
                outcome[u] = UNBOUNDED

    return train_and_sum
