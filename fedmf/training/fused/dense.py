"""Dense stages of all examples of a step, and the loss."""

from __future__ import annotations

import numpy as np

from fedmf.compiled import compiled
from fedmf.training.blocks import add_product, at, dot_block
from fedmf.training.losses import PADDING

_5x4, _4x4, _1x4 = (dot_block[r, 4] for r in (5, 4, 1))
_5x1, _4x1, _1x1 = (dot_block[r, 1] for r in (5, 4, 1))


@compiled
def multiply(plan, work, s, rows):
    """z = h·Wᵀ + b, rectified."""
    wide, long, outputs = plan.wide[s], plan.size[s + 1], plan.outputs[s]
    o = np.int64(0)
    while o < outputs:
        four = o + 4 <= outputs
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
    if plan.rectified[s]:
        for i in range(work.begin[s + 1], work.begin[s + 1] + rows * long):
            if work.inputs[i] < 0:  # NaN stays
                work.inputs[i] = 0


@compiled
def pass_back_dense(plan, work, s, rows, into):
    """Gradients of a dense stage: of its inputs, then of its weights, which are added to ``into``."""
    one = np.int64(1)
    wide, long, outputs = plan.wide[s], plan.size[s + 1], plan.outputs[s]
    above, here = work.begin[s + 1], work.begin[s]
    if plan.rectified[s]:
        for i in range(above, above + rows * long):
            if not work.inputs[i] > 0:
                work.slopes[i] = 0
    if s > 0:
        work.slopes[here : here + rows * wide] = 0
        add_product(
            work.slopes, above, long, one, rows, outputs, work.parameters, plan.weights_at[s], wide,
            work.slopes, here, wide, wide,
        )  # fmt: skip
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
        into,
        plan.weights_at[s],
        wide,
        wide,
    )
    for r in range(rows):
        for o in range(outputs):
            work.moved[plan.biases_at[s] + o] += work.slopes[above + r * long + o]


@compiled
def cross_entropy(plan, work, rows):
    """slopes ← share·(softmax(z) − one-hot), 0 where the label is padding; False if a label is no class."""
    last = plan.kind.size
    wide, classes = plan.size[last], plan.outputs[last - 1]
    for r in range(rows):
        begin = work.begin[last] + r * wide
        work.slopes[begin : begin + wide] = 0
        if work.labels[r] == PADDING:
            continue
        if not 0 <= work.labels[r] < classes:
            return False
        z, slopes = work.inputs[begin : begin + classes], work.slopes[begin : begin + classes]
        largest, total = z[0], np.float32(0)
        for c in range(1, classes):
            largest = max(largest, z[c])
        for c in range(classes):
            slopes[c] = np.exp(z[c] - largest)
            total += slopes[c]
        for c in range(classes):
            slopes[c] *= work.shares[r] / total
        slopes[work.labels[r]] -= work.shares[r]
    return True
