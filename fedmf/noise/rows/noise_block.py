"""Many rounds of a short vector at once: the rows that `RowRule.row_` gives, to the last bit, in one pass.

A row of a few hundred elements costs far less than the calls that make it. Here the keystreams of a block of
rounds go through Box–Muller together and the recurrence runs in one compiled loop, with the operations of
`passes.add_row` in the same order and with the same roundings.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from fedmf.compiled import compiled
from fedmf.factorization import Recurrence
from fedmf.noise.domain import Domain
from fedmf.noise.kernels import (
    NORMALS_PER_BLOCK,
    TILE,
    Worker,
    each_round,
    fma,
    scratch,
)
from fedmf.noise.rows.row_rules import FeedbackRows, RegeneratedRows, RowRule
from fedmf.noise.schedule import KeySchedule
from fedmf.noise.source import GaussianSource
from fedmf.typing import Array

MOST_NORMALS: Final = 1 << 22
"""z held at once, those of earlier rounds included: 32 MiB, and as much again on the way."""


def suits(rule: RowRule, length: int) -> bool:
    """Whether `add_block` can make the rows of this rule for vectors of this length, a few at a time."""
    if not isinstance(rule, RegeneratedRows | FeedbackRows) or not isinstance(rule.inverse, Recurrence):
        return False
    if length + 2 * NORMALS_PER_BLOCK > TILE:
        return False
    return 2 * rule.inverse.feedforward.shape[-1] * (length + NORMALS_PER_BLOCK) <= MOST_NORMALS


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
    inverse = rule.inverse
    assert isinstance(inverse, Recurrence)
    lags, length = inverse.feedforward.shape[-1], out.shape[1]
    room = max(1, MOST_NORMALS // (length + NORMALS_PER_BLOCK) - lags)
    for low in range(0, len(out), room):
        part, at = out[low : low + room], t + low
        first = max(0, at - lags + 1)
        z = normals_of_rounds(source.keys, source.domain, range(first, at + len(part)), start, start + length)
        scales = np.array([scale * float(inverse.row_scale[i]) for i in range(at, at + len(part))])
        forward, back = _of_rounds(inverse.feedforward, at, len(part)), np.zeros((1, 0))
        if isinstance(rule, FeedbackRows):
            back = _of_rounds(inverse.feedback, at, len(part))
        _recur(z, at - first, at, scales, forward, back, stored, part)


def normals_of_rounds(keys: KeySchedule, domain: Domain, rounds: range, start: int, stop: int) -> Array:
    """z(t, start), …, z(t, stop − 1) for each of the rounds, shape (rounds, stop − start); a tile at most."""
    first, last = start // NORMALS_PER_BLOCK, -(-stop // NORMALS_PER_BLOCK)
    count = (last - first) * NORMALS_PER_BLOCK
    z, ones, eras = np.zeros((len(rounds), count)), np.ones(len(rounds)), keys.eras(rounds)
    memory, worker = scratch(), Worker(keys, domain)
    together = TILE // count
    for low in range(0, len(rounds), together):
        high = min(low + together, len(rounds))
        each_round(worker.rounds(rounds, eras, ones, low, high, first, count), z[low:high], memory)
    skip = start - first * NORMALS_PER_BLOCK
    return z[:, skip : skip + stop - start]


def _of_rounds(coefficients: Array, t: int, count: int) -> Array:
    """A row per round, or one row for all."""
    return coefficients[t : t + count] if coefficients.ndim == 2 else coefficients[None]


@compiled
def _recur(z: Any, origin: int, t: int, scales: Any, forward: Any, back: Any, stored: Any, out: Any) -> None:
    """Rounds t, t + 1, …; z[origin] belongs to round t, stored[i mod r] holds y_i."""
    y = np.empty(out.shape[1])
    ring = back.shape[1]
    for i in range(out.shape[0]):
        f = forward[min(i, forward.shape[0] - 1)]
        g = back[min(i, back.shape[0] - 1)]
        y[:] = 0.0
        for lag in range(min(f.size, t + i + 1)):
            if f[lag] != 0.0:
                row, weight = z[origin + i - lag], f[lag]
                for j in range(y.size):
                    y[j] = fma(weight, row[j], y[j])
        values, scale = out[i], scales[i]
        if ring == 0 and f.size == 1 and f[0] == 1.0:
            # One pass without a multiplication of its own: the scaled z is rounded before it is added.
            for j in range(y.size):
                values[j] = values[j] + fma(scale, y[j], 0.0)
            continue
        for lag in range(min(ring, t + i)):
            if g[lag] != 0.0:
                row, weight = stored[(t + i - 1 - lag) % ring], -g[lag]
                for j in range(y.size):
                    y[j] = fma(weight, row[j], y[j])
        if ring > 0:
            stored[(t + i) % ring][:] = y
        for j in range(y.size):
            values[j] = fma(scale, y[j], values[j])
