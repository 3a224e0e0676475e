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
    above, long = work.begin[s + 1], plan.size[s + 1]
    if plan.kind[s] == UP:
        _add_outputs(plan, work, s, rows)
    elif plan.kind[s] == FROZEN:
        _set_frozen(plan, work, s, s + 1, rows)
    else:
        _set_outputs(plan, work, s, rows)
    if plan.kind[s] == DOWN:
        for i in range(above, above + rows * long):
            work.inputs[i] *= plan.scale[s]
        _set_frozen(plan, work, s, s + 2, rows)
    if plan.rectified[s]:
        for i in range(above, above + rows * long):
            if work.inputs[i] < 0:  # NaN stays
                work.inputs[i] = 0


@compiled
def _set_frozen(plan, work, s, into, rows):
    """The same with weights that nobody trains, into the inputs of a later stage."""
    one, lanes, n, outputs = np.int64(1), np.int64(LANES), plan.inputs[s], plan.outputs[into - 1]
    above, long, weights = work.begin[into], plan.size[into], plan.constants_at[s]
    for r in range(rows):
        for o in range(long):
            work.inputs[above + r * long + o] = plan.constants[weights + n * long + o]
    add_product(
        work.inputs, work.begin[s], plan.wide[s], one, rows, n, plan.constants, weights, lanes, n * lanes,
        work.inputs, above, long, long,
    )  # fmt: skip
    for r in range(rows):
        for o in range(outputs, long):  # infinity times no weight
            work.inputs[above + r * long + o] = 0


@compiled
def _add_outputs(plan, work, s, rows):
    """z += h·Wᵀ, for matrices of few columns."""
    wide, long, outputs = plan.wide[s], plan.size[s + 1], plan.outputs[s]
    for r in range(rows):
        x, o = at(work.inputs, work.begin[s] + r * wide), np.int64(0)
        while o < outputs:
            w = at(work.parameters, plan.weights_at[s] + o * wide)
            y = at(work.inputs, work.begin[s + 1] + r * long + o)
            if WHOLE and o + 4 <= outputs:
                _1x4(x, wide, w, wide, wide, y, y, long)
                o += 4
            else:
                _1x1(x, wide, w, wide, wide, y, y, long)
                o += 1


@compiled
def _set_outputs(plan, work, s, rows):
    """z = h·Wᵀ + b."""
    wide, long, outputs = plan.wide[s], plan.size[s + 1], plan.outputs[s]
    o = np.int64(0)
    while o < outputs:
        four = WHOLE and o + 4 <= outputs
        w, start = (
            at(work.parameters, plan.weights_at[s] + o * wide),
            at(work.parameters, plan.biases_at[s] + o),
        )
        r = np.int64(0)
        while r < rows:
            x, y = (
                at(work.inputs, work.begin[s] + r * wide),
                at(work.inputs, work.begin[s + 1] + r * long + o),
            )
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
    if plan.kind[s] == DOWN:
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
            later = s + 1 if plan.kind[s] == FROZEN else s + 2
            weights = plan.constants_at[s] + (plan.inputs[s] + 1) * plan.size[later]
            add_product(
                work.slopes, work.begin[later], plan.size[later], one, rows, plan.outputs[later - 1],
                plan.constants, weights, wide, apart, work.slopes, here, wide, wide,
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
