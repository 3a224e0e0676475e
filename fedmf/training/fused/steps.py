"""Local training of one user whose weights stay in the processor's cache, and its integers into the sum."""

from __future__ import annotations

import numpy as np

from fedmf.compiled import compiled, inlined
from fedmf.training.blocks import COUNTED, NO_CLASS, NOT_FINITE
from fedmf.training.clipping import clip_row
from fedmf.training.fused.convolutions import (
    convolve,
    flatten,
    pass_back,
    pass_back_first,
    turn_kernels,
    unflatten,
)
from fedmf.training.fused.dense import multiply, pass_back_dense
from fedmf.training.fused.values import CONVOLUTION, DENSE, FLATTEN, FROZEN
from fedmf.training.losses import PADDING


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


@compiled
def train_and_sum(plan, rule, origin, examples, work, clip_norm, scale, into, outcome):
    """Train the users of a group one after another and add their clipped updates to integer sums.

    Args:
        plan: the stages.
        rule: the local rule.
        origin: the received parameters.
        examples: of the group.
        work: memory.
        clip_norm: ζ.
        scale: what an update of norm ζ is scaled to.
        into: changed by `clip_row` alone.
        outcome: shape (users,); set to `COUNTED`, or to why a user added nothing.
    """
    nothing = work.row[:0]
    for u in range(outcome.size):
        outcome[u] = COUNTED
        if examples.absent[u]:
            continue
        outcome[u] = _train(plan, rule, origin, examples, work, u)
        if outcome[u] == COUNTED:
            _set_row(plan, work.parameters, origin, work.row)
            outcome[u] = clip_row(work.row, nothing, clip_norm, scale, into, nothing)


@inlined
def _train(plan, rule, origin, examples, work, u):
    """All of a user's steps, in memory where nothing is left of the user before."""
    _clear(work)
    work.parameters[:] = origin
    if plan.lowest > 0:
        _set_below(plan, examples, work, u)
    s = np.int64(0)
    while s < examples.active.size and examples.active[s] > u:
        rows = np.int64(0)
        for i in range(examples.rows.shape[2]):
            if examples.weights[s, u, i] > 0:
                e = examples.places[examples.rows[s, u, i]]
                work.labels[rows] = examples.labels[e]
                work.shares[rows] = -np.float32(rule.learning_rate) * examples.weights[s, u, i]
                if plan.lowest > 0:
                    _take_below(plan, work, rows, examples.rows[s, u, i] - examples.edges[u])
                else:
                    _take(plan, work, rows, examples.features[e])
                rows += 1
        if not _step(plan, rule, origin, work, rows):
            return NO_CLASS
        s += 1
    for e in range(examples.edges[u], examples.edges[u + 1]):
        if not _finite(examples.features[examples.places[e]]):
            return NOT_FINITE
    return COUNTED


@compiled
def _clear(work):
    """Zeros for all that an earlier user wrote: NaN times the zero of a padded lane is NaN."""
    work.inputs[:] = 0
    work.slopes[:] = 0
    work.marks[:] = 0
    work.velocity[:] = 0
    work.moved[:] = 0
    work.turned[:] = 0
    work.lines[:] = 0
    work.places[:] = 0
    work.amounts[:] = 0
    work.labels[:] = 0
    work.shares[:] = 0
    work.below[:] = 0
    work.row[:] = 0


@compiled
def _finite(numbers):
    wrong = np.int32(0)
    for i in range(numbers.size):  # in vectors, which an iterator would not be
        wrong |= np.int32(not abs(numbers[i]) < np.inf)
    return wrong == 0


@compiled
def _set_below(plan, examples, work, u):
    """Take all of a user's examples through the stages below the lowest that is trained."""
    first, last, wide = examples.edges[u], examples.edges[u + 1], plan.size[plan.lowest]
    e, begin = first, work.begin[plan.lowest]
    while e < last:
        rows = min(work.labels.size, last - e)
        for r in range(rows):
            _take(plan, work, r, examples.features[examples.places[e + r]])
        for s in range(plan.lowest):
            multiply(plan, work, s, rows)
        for i in range(rows * wide):
            work.below[(e - first) * wide + i] = work.inputs[begin + i]
        e += rows


@compiled
def _take_below(plan, work, r, place):
    """Put what the lowest trained stage sees of an example where it looks for it."""
    wide = plan.size[plan.lowest]
    begin = work.begin[plan.lowest] + r * wide
    for i in range(wide):
        work.inputs[begin + i] = work.below[place * wide + i]


@compiled
def _take(plan, work, r, example):
    """Put an example where the first stage looks for it."""
    begin = work.begin[0] + r * plan.size[0]
    if plan.kind[0] != CONVOLUTION:
        work.inputs[begin : begin + example.size] = example
        return
    margin, wide = plan.margin[0], plan.wide[0]
    height, width = plan.height[0] - 2 * margin, plan.width[0] - 2 * margin
    for c in range(plan.inputs[0]):
        for y in range(height):
            into = begin + ((y + margin) * plan.width[0] + margin) * wide + c
            here = (c * height + y) * width
            for x in range(width):
                work.inputs[into + x * wide] = example[here + x]


@inlined
def _step(plan, rule, origin, work, rows):
    """One step on examples that were taken; False if a label is no class."""
    stages = plan.kind.size
    for s in range(plan.lowest, stages):
        if plan.kind[s] == CONVOLUTION:
            turn_kernels(plan, work, s)
            for r in range(rows):
                convolve(plan, work, s, r)
        elif plan.kind[s] == FLATTEN:
            for r in range(rows):
                flatten(plan, work, s, r)
        else:
            multiply(plan, work, s, rows)
    if not cross_entropy(plan, work, rows):
        return False
    plain = work.velocity.size == 0
    into = work.parameters if plain else work.velocity
    if not plain:
        pull, kept = np.float32(rule.learning_rate * rule.proximal), np.float32(rule.momentum)
        for i in range(into.size):
            into[i] = kept * into[i] - pull * (work.parameters[i] - origin[i])
    for s in range(stages - 1, plan.lowest - 1, -1):
        if plan.kind[s] == FLATTEN:
            for r in range(rows):
                unflatten(plan, work, s, r)
            continue
        first, last = plan.biases_at[s], plan.biases_at[s] + plan.outputs_wide[s]
        if plan.kind[s] != FROZEN:
            work.moved[first:last] = 0
        if plan.kind[s] == CONVOLUTION:
            _pass_back(plan, work, s, rows, into)
        else:
            pass_back_dense(plan, work, s, rows, into)
        if plan.flat_biases[s] >= 0:
            for i in range(first, last):
                into[i] += work.moved[i]
    if not plain:
        work.parameters[:] += into
    return True


@inlined
def _pass_back(plan, work, s, rows, into):
    """The same of a convolution: gradients of its kernels are complete before they change."""
    side, run, real = plan.side[s], plan.run[s], plan.side[s] * plan.wide[s]
    first = plan.weights_at[s]
    last = first + plan.outputs[s] * side * run
    if s == 0 and plan.wide[s] == plan.inputs[s]:  # see `Plan.wide`
        _pass_back_narrow(plan, work, s, rows, into)
        return
    work.moved[first:last] = 0
    begin = work.begin[s]
    work.slopes[begin : begin + rows * plan.size[s]] = 0
    for r in range(rows):
        pass_back(plan, work, s, r)
    for line in range(first, last, run):
        for i in range(line, line + real):
            into[i] += work.moved[i]


@compiled
def _pass_back_narrow(plan, work, s, rows, into):
    side, run, wide, first = plan.side[s], plan.run[s], plan.outputs_wide[s], plan.turned_at[s]
    real = side * plan.wide[s]
    work.turned[first : plan.turned_at[s + 1]] = 0
    for r in range(rows):
        pass_back_first(plan, work, s, r)
    for o in range(plan.outputs[s]):
        for line in range(side):
            for k in range(real):
                place = plan.weights_at[s] + (o * side + line) * run + k
                into[place] += work.turned[first + (line * real + k) * wide + o]


@compiled
def _set_row(plan, parameters, origin, row):
    """row = θ − θ_t, in the order of the flat vector."""
    for s in range(plan.kind.size):
        if plan.kind[s] == CONVOLUTION:
            _set_kernels(plan, s, parameters, origin, row)
        elif plan.kind[s] >= DENSE:
            for o in range(plan.outputs[s]):
                here, there = plan.weights_at[s] + o * plan.wide[s], plan.flat_weights[s] + o * plan.inputs[s]
                _set_run(row, there, plan.inputs[s], parameters, origin, here)
        if plan.flat_biases[s] >= 0:
            _set_run(row, plan.flat_biases[s], plan.outputs[s], parameters, origin, plan.biases_at[s])


@compiled
def _set_kernels(plan, s, parameters, origin, row):
    side, wide, into = plan.side[s], plan.wide[s], plan.flat_weights[s]
    for o in range(plan.outputs[s]):
        for c in range(plan.inputs[s]):
            for line in range(side):
                here = plan.weights_at[s] + (o * side + line) * plan.run[s] + c
                for i in range(side):
                    row[into] = parameters[here + i * wide] - origin[here + i * wide]
                    into += 1


@compiled
def _set_run(row, into, n, parameters, origin, here):
    changes, new, old = row[into : into + n], parameters[here : here + n], origin[here : here + n]
    for i in range(n):
        changes[i] = new[i] - old[i]
