"""Dense stages, frozen and low-rank ones too: all examples of a step at once, forward and back."""

from __future__ import annotations

import numpy as np

from fedmf.compiled import compiled
from fedmf.training.blocks import LANES, WHOLE, add_product, at, dot_block
from fedmf.training.fused.values import DOWN, FROZEN, UP

_5x4, _4x4, _1x4 = (dot_block[r, 4] for r in (5, 4, 1))
_5x1, _4x1, _1x1 = (dot_block[r, 1] for r in (5, 4, 1))


@compiled
def multiply(plan, work, s, rows):
    """z = h·Wᵀ + b, rectified; see `Plan.kind` for low-rank layers."""
    kind, wide, outputs, here = plan.kind[s], plan.wide[s], plan.outputs[s], work.begin[s]
    above, long = work.begin[s + 1], plan.size[s + 1]
    if kind == UP:
        _add_outputs(work, plan.weights_at[s], wide, outputs, here, above, long, rows)
    elif kind == FROZEN:
        place = plan.constants_at[s]
        _set_outputs(
            work, plan.constants, place, place + outputs * wide, wide, outputs, here, above, long, rows
        )
    else:
        weights, biases = plan.weights_at[s], plan.biases_at[s]
        _set_outputs(work, work.parameters, weights, biases, wide, outputs, here, above, long, rows)
    if kind == DOWN:
        if plan.scale[s] != 1:
            for i in range(above, above + rows * long):
                work.inputs[i] *= plan.scale[s]
        place, frozen = plan.constants_at[s], plan.outputs[s + 1]
        _set_outputs(
            work, plan.constants, place, place + frozen * wide, wide, frozen, here,
            work.begin[s + 2], plan.size[s + 2], rows,
        )  # fmt: skip
    if plan.rectified[s]:
        for i in range(above, above + rows * long):
            if work.inputs[i] < 0:  # NaN stays
                work.inputs[i] = 0


@compiled
def _add_outputs(work, weights, wide, outputs, here, above, long, rows):
    """z += h·Wᵀ, for matrices of few columns."""
    for r in range(rows):
        x, o = at(work.inputs, here + r * wide), np.int64(0)
        while o < outputs:
            w, y = at(work.parameters, weights + o * wide), at(work.inputs, above + r * long + o)
            if WHOLE and o + 4 <= outputs:
                _1x4(x, wide, w, wide, wide, y, y, long)
                o += 4
            else:
                _1x1(x, wide, w, wide, wide, y, y, long)
                o += 1


@compiled
def _set_outputs(work, held, weights, biases, wide, outputs, here, above, long, rows):
    """z = h·Wᵀ + b, with W and b among the numbers that are held."""
    o = np.int64(0)
    while o < outputs:
        four = WHOLE and o + 4 <= outputs
        w, start = at(held, weights + o * wide), at(held, biases + o)
        r = np.int64(0)
        while r < rows:
            x, y = at(work.inputs, here + r * wide), at(work.inputs, above + r * long + o)
            if r + 5 <= rows:
                if four:
                    _5x4(x, wide, w, wide, wide, start, y, long)
                else:
                    _5x1(x, wide, w, wide, wide, start, y, long)
                r += 5
            elif r + 4 <= rows:
                if four:
                    _4x4(x, wide, w, wide, wide, start, y, long)
                else:
                    _4x1(x, wide, w, wide, wide, start, y, long)
                r += 4
            else:
                if four:
                    _1x4(x, wide, w, wide, wide, start, y, long)
                else:
                    _1x1(x, wide, w, wide, wide, start, y, long)
                r += 1
        o += 4 if four else 1


@compiled
def pass_back_dense(plan, work, s, rows, into):
    """Gradients of a dense stage: of its inputs, then of its weights, which are added to ``into``."""
    one, apart = np.int64(1), np.int64(LANES)
    wide, long, outputs = plan.wide[s], plan.size[s + 1], plan.outputs[s]
    above, here = work.begin[s + 1], work.begin[s]
    if plan.rectified[s]:
        for i in range(above, above + rows * long):
            if not work.inputs[i] > 0:
                work.slopes[i] = 0
    if plan.scale[s] != 1:
        for i in range(above, above + rows * long):
            work.slopes[i] *= plan.scale[s]
    if s > plan.lowest:
        work.slopes[here : here + rows * wide] = 0
        if plan.kind[s] != FROZEN:
            add_product(
                work.slopes, above, long, one, rows, outputs, work.parameters, plan.weights_at[s], wide,
                apart, work.slopes, here, wide, wide,
            )  # fmt: skip
        if plan.kind[s] == FROZEN or plan.kind[s] == DOWN:
            beside = s + 1 if plan.kind[s] == FROZEN else s + 2
            add_product(
                work.slopes, work.begin[beside], plan.size[beside], one, rows, plan.outputs[beside - 1],
                plan.constants, plan.constants_at[s], wide, apart, work.slopes, here, wide, wide,
            )  # fmt: skip
    if plan.kind[s] == FROZEN:
        return
    add_product(
        work.slopes,
        above,
        one,
        long,
        outputs,
        rows,
        work.inputs,
        here,
        wide,
        apart,
        into,
        plan.weights_at[s],
        wide,
        wide,
    )
    for r in range(rows):
        for o in range(outputs):
            work.moved[plan.biases_at[s] + o] += work.slopes[above + r * long + o]
