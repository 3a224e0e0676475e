"""The norm of an update from Gram matrices, and the update's integers into the sum."""

from __future__ import annotations

import numpy as np

from fedmf.compiled import compiled
from fedmf.training.blocks import COUNTED, NO_CLASS, NOT_FINITE, count_product, products_with, sign
from fedmf.training.low_rank.steps import begin_user, set_changes, step

__all__ = ["train_and_sum"]

_U32, _U64 = 2.0**-24, 2.0**-53


@compiled
def train_and_sum(chain, rule, examples, work, clip_norm, scale, total, signs, outcome):
    """Train the users of a group one after another and add their clipped updates to an integer sum.

    Args:
        chain: the received model.
        rule: the local rule.
        examples: of the group.
        work: memory.
        clip_norm: ζ.
        scale: what an update of norm ζ is scaled to.
        total: shape (d,), int64; changed.
        signs: shape (1,), int64; the `sign` of each user that adds something is added.
        outcome: shape (users,); set to `COUNTED`, `NOT_FINITE` or `NO_CLASS`. Only users that count add.
    """
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
        if outcome[u] != COUNTED:
            continue
        set_changes(chain, work, s, count)
        norm = _norm(chain, work, count, done, total.size)
        if not np.isfinite(norm):
            outcome[u] = NOT_FINITE
            continue
        signs[0] += sign(norm, clip_norm)
        _add(chain, work, count, done, scale / max(norm, clip_norm), total)


@compiled
def _norm(chain, work, count, done, dimension):
    """At least ‖c‖, where c is what `_add` computes of the update Σ_r A_r ⊗ (H_r, 1) of all layers.

    With q = Σ_{r,r'} (A_r·A_r')(H_r·H_r' + 1) the squared norm in exact arithmetic, S = Σ_r ‖A_r‖·‖(H_r, 1)‖
    and γ_n = n·u/(1 − n·u): a chain of n fused multiply-adds is wrong by at most γ_n·Σ_r |A_r||H_r|, so
    ‖c‖ ≤ √q + γ_n·S.
    """
    square = 0.0
    zero = np.int64(0)
    for layer in range(chain.sizes.size - 1):
        rows = count if layer == 0 else done
        a, start = (work.first, zero) if layer == 0 else (work.changes, work.begin[layer + 1])
        one = 1.0 if chain.flat_biases[layer] >= 0 else 0.0
        inputs, outputs = chain.wide[layer], chain.wide[layer + 1]
        q, size = 0.0, 0.0
        for r in range(rows):
            products_with(work.products, a, start, r, outputs)
            if layer > 0:
                products_with(work.input_products, work.inputs, work.begin[layer], r, inputs)
            for other in range(r + 1):
                h = work.gram[r, other] if layer == 0 else work.input_products[other]
                product = work.products[other]
                if other < r:
                    q += 2.0 * product * (h + one)
                else:
                    q += product * (h + one)
                    size += np.sqrt(product * (h + one))
        size *= 1.0 + 1e-9
        rounded = rows * _U32 / (1.0 - rows * _U32)
        q = max(q, 0.0) + (inputs + outputs + rows * rows + 64) * 2.0 * _U64 * size * size
        square += (np.sqrt(q) + rounded * size + rows * 2.0**-148 * np.sqrt(float(dimension))) ** 2
    return np.sqrt(square) * (1.0 + 1e-14)


@compiled
def _add(chain, work, count, done, factor, total):
    """total += trunc(factor·c)."""
    zero, one = np.int64(0), np.int64(1)
    for layer in range(chain.sizes.size - 1):
        rows = count if layer == 0 else done
        a, start = (work.first, zero) if layer == 0 else (work.changes, work.begin[layer + 1])
        h, begin = (work.x, zero) if layer == 0 else (work.inputs, work.begin[layer])
        inputs, outputs = chain.sizes[layer], chain.sizes[layer + 1]
        wide = chain.wide[layer + 1]
        count_product(
            a, start, one, wide, outputs, rows, h, begin, chain.wide[layer],
            total, chain.flat_weights[layer], inputs,
            factor, work.shift,
        )  # fmt: skip
        _add_bias(total, chain.flat_biases[layer], outputs, a, start, wide, rows, factor)


@compiled
def _add_bias(total, place, outputs, a, start, wide, rows, factor):
    if place < 0:
        return
    for o in range(outputs):
        change = np.float32(0)
        for r in range(rows):
            change += a[start + r * wide + o]
        total[place + o] += np.int64(np.float64(change) * factor)
