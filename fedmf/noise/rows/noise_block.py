"""Many rounds at once: the rows that `RowRule.row_` gives, to the last bit, in one pass.

A row of a few hundred elements costs far less than the calls that make it, and a row of many finds the
vectors it needs in the fastest cache if its neighbours were made there just before. Here the keystreams of
a block of rounds go through Box–Muller together, some columns after the other, and the recurrence runs in
one compiled loop, with the operations of `passes.add_row` in the same order and with the same roundings.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch

from fedmf.compiled import compiled
from fedmf.mechanisms.streaming import Recurrence
from fedmf.noise.domain import Domain
from fedmf.noise.kernels import (
    FEWEST_PER_THREAD,
    NORMALS_PER_BLOCK,
    TILE,
    Worker,
    each_round,
    fma,
    scratch,
    side_by_side,
)
from fedmf.noise.rows.row_rules import CachedRows, FeedbackRows, RegeneratedRows, RowRule
from fedmf.noise.schedule import KeySchedule
from fedmf.noise.source import GaussianSource
from fedmf.typing import Array

MOST_NORMALS: Final = 1 << 22
"""z held at once, those of earlier rounds included: 32 MiB, and as much again on the way."""


_RULES: Final = (RegeneratedRows, CachedRows, FeedbackRows)
#: Columns whose rounds are drawn together, whole blocks; and those whose recurrence stays in a near cache.
_DRAWN: Final = 1 << 14
_NEAR: Final = 1 << 11


def suits(rule: RowRule, length: int) -> bool:
    """Whether `add_block` can make the rows of this rule for vectors of this length, a few at a time."""
    if not isinstance(rule, _RULES) or not isinstance(rule.inverse, Recurrence):
        return False
    if length >= 2 * FEWEST_PER_THREAD:  # one row after the other, by several threads
        return False
    return 2 * rule.inverse.feedforward.shape[-1] * min(length + NORMALS_PER_BLOCK, _DRAWN) <= MOST_NORMALS


def add_block(
    source: GaussianSource, rule: RowRule, out: Array, scale: float, start: int, t: int, stored: Array
) -> None:
    """out[i] ← out[i] + scale·[C⁻¹z]_{t+i}, and stored as after the last of these rounds.

    Args:
        source: z(t, i).
        rule: one that `suits`.
        out: float64, shape (count, length), contiguous.
        scale: standard deviation per unit of C⁻¹z.
        start: global index of element 0.
        t: the round of out[0].
        stored: as for `RowRule.row_`, float64.

    Guarantees:
        The bits of out and stored are those that `rule.row_` gives on the CPU round by round.
    """
    inverse, length = rule.inverse, out.shape[1]
    assert isinstance(inverse, Recurrence)
    outputs = stored if isinstance(rule, FeedbackRows) else stored[:0]
    scales = scale * inverse.row_scale[t : t + len(out)]
    forward, back = _of_rounds(inverse.feedforward, t, len(out)), np.zeros((1, 0))
    if isinstance(rule, FeedbackRows):
        back = _of_rounds(inverse.feedback, t, len(out))

    def run(low: int, stop: int) -> None:
        memory, worker, held = scratch(), Worker(source.keys, source.domain), np.empty(0)
        while low < stop:
            high = min(stop, low - (start + low) % NORMALS_PER_BLOCK + _DRAWN)
            columns = range(start + low, start + high)
            lags = forward.shape[1]
            room = max(1, MOST_NORMALS // (len(columns) + NORMALS_PER_BLOCK) - lags)
            for top in range(0, len(out), room):
                part, at = out[top : top + room], t + top
                first = max(0, at - lags + 1)
                rounds = range(first, at + len(part))
                if held.size < (most := len(rounds) * (len(columns) + 2 * NORMALS_PER_BLOCK)):
                    held = np.empty(most)  # again for other columns: fresh memory costs more than zeros
                z = _normals(worker, source.keys, rounds, columns, memory, held)
                rows = slice(top, top + room)
                weights = scales[rows], _some(forward, rows), _some(back, rows)
                _recur(z, low, at - first, at, *weights, outputs, part)
                if isinstance(rule, CachedRows):
                    for i in range(max(first, at + len(part) - rule.vectors), at + len(part)):
                        stored[i % rule.vectors, low:high] = z[i - first]
            low = high

    threads = min(torch.get_num_threads(), out.size // FEWEST_PER_THREAD) if length >= _DRAWN else 1
    side_by_side(run, [length * n // max(threads, 1) for n in range(max(threads, 1))] + [length])


def normals_of_rounds(keys: KeySchedule, domain: Domain, rounds: range, start: int, stop: int) -> Array:
    """z(t, start), …, z(t, stop − 1) for each of the rounds, shape (rounds, stop − start); a tile at most."""
    return _normals(Worker(keys, domain), keys, rounds, range(start, stop), scratch())


def _normals(
    worker: Worker, keys: KeySchedule, rounds: range, columns: range, memory: Any, held: Array | None = None
) -> Array:
    """z of some rounds and columns, in the memory that is held if any is."""
    first, last = columns.start // NORMALS_PER_BLOCK, -(-columns.stop // NORMALS_PER_BLOCK)
    count = (last - first) * NORMALS_PER_BLOCK
    z = (np.empty(len(rounds) * count) if held is None else held[: len(rounds) * count]).reshape(-1, count)
    z[:] = 0.0
    ones, eras = np.ones(len(rounds)), keys.eras(rounds)
    together = TILE // count
    for low in range(0, len(rounds), together):
        high = min(low + together, len(rounds))
        each_round(worker.rounds(rounds, eras, ones, low, high, first, count), z[low:high], memory)
    skip = columns.start - first * NORMALS_PER_BLOCK
    return z[:, skip : skip + len(columns)]


def _of_rounds(coefficients: Array, t: int, count: int) -> Array:
    """A row per round, or one row for all."""
    return coefficients[t : t + count] if coefficients.ndim == 2 else coefficients[None]


def _some(coefficients: Array, rows: slice) -> Array:
    """Those of some of the rounds."""
    return coefficients[rows] if len(coefficients) > 1 else coefficients


@compiled
def _subtract(y: Any, g: Any, lags: int, stored: Any, t: int, low: int, high: int) -> None:
    """y ← y − Σ_{lag < lags} g[lag]·y_{t−1−lag}, one after the other, each rounded once.

    Four at a time where no weight is 0, so that y is read and written a quarter as often.
    """
    ring = stored.shape[0]
    lag, place = 0, (t - 1) % ring if ring else 0
    while lag < lags:
        if lag + 4 <= lags and np.all(g[lag : lag + 4] != 0.0):
            a, place = stored[place, low:high], place - 1 if place else ring - 1
            b, place = stored[place, low:high], place - 1 if place else ring - 1
            c, place = stored[place, low:high], place - 1 if place else ring - 1
            d, place = stored[place, low:high], place - 1 if place else ring - 1
            g_a, g_b, g_c, g_d = -g[lag], -g[lag + 1], -g[lag + 2], -g[lag + 3]
            for j in range(y.size):
                y[j] = fma(g_d, d[j], fma(g_c, c[j], fma(g_b, b[j], fma(g_a, a[j], y[j]))))
            lag += 4
        else:
            a, place = stored[place, low:high], place - 1 if place else ring - 1
            if g[lag] != 0.0:
                g_a = -g[lag]
                for j in range(y.size):
                    y[j] = fma(g_a, a[j], y[j])
            lag += 1


@compiled
def _recur(
    z: Any, column: int, origin: int, t: int, scales: Any, forward: Any, back: Any, stored: Any, out: Any
) -> None:
    """Rounds t, t + 1, … of the columns of z, of which the first is `column` of out and stored.

    z[origin] belongs to round t, stored[i mod r] holds y_i.
    """
    memory, ring = np.empty(min(_NEAR, z.shape[1])), back.shape[1]
    for low in range(0, z.shape[1], _NEAR):
        high = min(low + _NEAR, z.shape[1])
        y, here, there = memory[: high - low], column + low, column + high
        for i in range(out.shape[0]):
            f = forward[min(i, forward.shape[0] - 1)]
            g = back[min(i, back.shape[0] - 1)]
            y[:] = 0.0
            for lag in range(min(f.size, t + i + 1)):
                if f[lag] != 0.0:
                    row, weight = z[origin + i - lag, low:high], f[lag]
                    for j in range(y.size):
                        y[j] = fma(weight, row[j], y[j])
            values, scale = out[i, here:there], scales[i]
            if ring == 0 and f.size == 1 and f[0] == 1.0:
                # One pass without a multiplication of its own: the scaled z is rounded before it is added.
                for j in range(y.size):
                    values[j] = values[j] + fma(scale, y[j], 0.0)
                continue
            _subtract(y, g, min(ring, t + i), stored, t + i, here, there)
            if ring > 0:
                stored[(t + i) % ring, here:there] = y
            for j in range(y.size):
                values[j] = fma(scale, y[j], values[j])
