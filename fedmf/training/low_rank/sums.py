"""The update of a user whose weights never exist as one row, clipped into the sum."""

from __future__ import annotations

import numpy as np

from fedmf.compiled import compiled
from fedmf.training.blocks import COUNTED, NO_CLASS, set_product
from fedmf.training.clipping import clip_row, partial_sums
from fedmf.training.low_rank.steps import begin_user, set_changes, step


@compiled
def train_and_sum(chain, rule, examples, work, clip_norm, scale, into, outcome):
    """Train the users of a group one after another and add their clipped updates to integer sums.

    Args:
        chain: the received model.
        rule: the local rule.
        examples: of the group.
        work: memory.
        clip_norm: ζ.
        scale: what an update of norm ζ is scaled to.
        into: changed by `clip_row` alone.
        outcome: shape (users,); set to `COUNTED`, or to why a user added nothing.
    """
    partial = partial_sums()
    for u in range(outcome.size):
        outcome[u] = COUNTED
        if examples.absent[u]:
            continue
        lowest, count = begin_user(chain, examples, work, u)
        done, s = np.int64(0), np.int64(0)
        while s < examples.active.size and examples.active[s] > u:
            rows = step(chain, rule, examples, work, u, s, lowest, count, done)
            if rows < 0:
                outcome[u] = NO_CLASS
                break
            done += rows
            s += 1
        if outcome[u] == COUNTED:
            set_changes(chain, work, s, count)
            _set_row(chain, work, count, done)
            outcome[u] = clip_row(work.row, None, clip_norm, scale, into, partial)


@compiled
def _set_row(chain, work, count, done):
    """row = Σ_r A_r ⊗ (H_r, 1) of all layers, every entry one chain of float32 sums."""
    zero, one = np.int64(0), np.int64(1)
    for layer in range(chain.sizes.size - 1):
        rows = count if layer == 0 else done
        a, start = (work.first, zero) if layer == 0 else (work.changes, work.begin[layer + 1])
        h, begin = (work.x, zero) if layer == 0 else (work.inputs, work.begin[layer])
        inputs, outputs = chain.sizes[layer], chain.sizes[layer + 1]
        wide = chain.wide[layer + 1]
        set_product(
            a, start, one, wide, outputs, rows, h, begin, chain.wide[layer],
            work.row, chain.flat_weights[layer], inputs, work.shift,
        )  # fmt: skip
        _set_bias(work.row, chain.flat_biases[layer], outputs, a, start, wide, rows)


@compiled
def _set_bias(row, place, outputs, a, start, wide, rows):
    if place < 0:
        return
    for o in range(outputs):
        change = np.float32(0)
        for r in range(rows):
            change += a[start + r * wide + o]
        row[place + o] = change
