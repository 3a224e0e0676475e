"""The steps of one user through W_l + Σ_r A_r ⊗ H_r, whose second part is never formed."""

from __future__ import annotations

import math

import numpy as np

from fedmf.compiled import compiled
from fedmf.training.blocks import LANES, add_product, row_products
from fedmf.training.losses import PADDING


# Arrays are copied and added number by number: with slices numba compiles the text of an error about their
# shapes, a tenth of all that the first round of a fresh machine waits for.
@compiled
def _set(numbers, at, others, begin, count):
    for i in range(count):
        numbers[at + i] = others[begin + i]


@compiled
def _add(numbers, at, others, count):
    for i in range(count):
        numbers[at + i] += others[i]


@compiled
def _add_received(x, start, row, rows, n, w, first, y, begin, columns):
    """y += x·w for a matrix of the received model, held as vectors of 16 columns: see `Chain`."""
    one, wide = np.int64(1), np.int64(LANES)
    add_product(x, start, row, one, rows, n, w, first, wide, wide * n, y, begin, columns, columns)


@compiled
def _add_own(x, start, row, rows, n, w, first, wide, y, begin, columns):
    """y += x·w for rows of the user's history."""
    one, apart = np.int64(1), np.int64(LANES)
    add_product(x, start, row, one, rows, n, w, first, wide, apart, y, begin, columns, columns)


@compiled
def begin_user(chain, examples, work, u):
    """Copy a user's examples; x·W_1ᵀ + b_1 and x·xᵀ serve all of its steps."""
    zero = np.int64(0)
    lowest, count = examples.edges[u], examples.edges[u + 1] - examples.edges[u]
    inputs, outputs = chain.wide[0], chain.wide[1]
    near = work.near[0]
    for e in range(count):
        place = examples.places[lowest + e]
        for i in range(chain.sizes[0]):
            work.x[e * inputs + i] = examples.features[place, i]
        _set(work.base, e * outputs, chain.biases, zero, outputs)
    _add_received(
        work.x, zero, inputs, count, chain.sizes[0], chain.transposed, zero, work.base, zero, outputs
    )
    row_products(work.x, zero, inputs, count, work.close, near, work.zeros)
    work.velocity[:] = 0.0
    work.moved[:] = 0.0
    return lowest, count


@compiled
def set_changes(chain, work, steps, count):
    """A_r = (coefficient of r's step)·D_r, and their sums over the uses of an example for the first layer."""
    outputs, r = chain.wide[1], np.int64(0)
    work.first[: count * outputs] = 0
    for s in range(steps):
        coefficient = np.float32(work.moved[s])
        for _ in range(work.taken[s]):
            here, there = work.begin[1] + r * outputs, work.example[r] * outputs
            for o in range(outputs):
                work.first[there + o] += coefficient * work.gradients[here + o]
            for layer in range(1, chain.sizes.size - 1):
                wide = chain.wide[layer + 1]
                here = work.begin[layer + 1] + r * wide
                for o in range(here, here + wide):
                    work.changes[o] = coefficient * work.gradients[o]
            r += 1


@compiled
def step(chain, rule, examples, work, u, s, lowest, count, done):
    """Step s of user u after ``done`` rows of history: how many rows it adds, −1 for a label out of range."""
    rows = np.int64(0)
    for i in range(examples.rows.shape[2]):
        if examples.weights[s, u, i] > 0:
            work.example[done + rows] = examples.rows[s, u, i] - lowest
            work.labels[rows] = examples.labels[examples.places[examples.rows[s, u, i]]]
            work.shares[rows] = examples.weights[s, u, i]
            rows += 1
    work.taken[s] = rows
    if s > 0:
        set_changes(chain, work, s, count)
    layers = chain.sizes.size - 1
    _forward_first(chain, work, rows, count, done)
    for layer in range(1, layers):
        start, wide = work.begin[layer] + done * chain.wide[layer], chain.wide[layer]
        _activate(work.inputs, start, wide, rows, chain.sizes[layer], chain.activations[layer - 1])
        _forward(chain, work, layer, rows, done)
    last, wide = work.begin[layers] + done * chain.wide[layers], chain.wide[layers]
    _set(work.gradients, last, work.inputs, last, rows * wide)
    if not _cross_entropy(work.gradients, last, wide, chain.sizes[layers], work.labels, work.shares, rows):
        return -1
    for layer in range(layers - 1, 0, -1):
        _backward(chain, work, layer, rows, done)
    for i in range(s + 1):
        work.velocity[i] = rule.momentum * work.velocity[i] + rule.proximal * work.moved[i]
    work.velocity[s] += 1.0
    for i in range(s + 1):
        work.moved[i] -= rule.learning_rate * work.velocity[i]
    return rows


@compiled
def _forward_first(chain, work, rows, count, done):
    """z = x·W_1ᵀ + b_1 + (x·xᵀ)·A_1 + Σ A_1."""
    zero, one = np.int64(0), np.int64(1)
    outputs, near = chain.wide[1], work.near[0]
    _sum_rows(work.shift, work.first, zero, outputs, count)
    for r in range(rows):
        e, here = work.example[done + r], work.begin[1] + (done + r) * outputs
        _set(work.inputs, here, work.base, e * outputs, outputs)
        if done > 0:
            _add_own(
                work.close, e * near, near, one, count, work.first, zero, outputs, work.inputs, here, outputs
            )
            if chain.flat_biases[0] >= 0:
                _add(work.inputs, here, work.shift, outputs)


@compiled
def _forward(chain, work, layer, rows, done):
    """z = h·Wᵀ + b + (h·Hᵀ)·A + Σ A of a later layer."""
    zero = np.int64(0)
    inputs, outputs, long = chain.wide[layer], chain.wide[layer + 1], work.mixed.size // work.labels.size
    start, here = work.begin[layer] + done * inputs, work.begin[layer + 1] + done * outputs
    for r in range(rows):
        _set(work.inputs, here + r * outputs, chain.biases, chain.biases_at[layer], outputs)
    _add_received(
        work.inputs, start, inputs, rows, chain.sizes[layer],
        chain.transposed, chain.transposed_at[layer], work.inputs, here, outputs,
    )  # fmt: skip
    if done == 0:
        return
    _transpose(work.across, long, work.inputs, work.begin[layer], inputs, done)
    work.mixed[:] = 0
    _add_own(
        work.inputs, start, inputs, rows, chain.sizes[layer], work.across, zero, long, work.mixed, zero, long
    )
    _add_own(
        work.mixed, zero, long, rows, done, work.changes, work.begin[layer + 1], outputs,
        work.inputs, here, outputs,
    )  # fmt: skip
    if chain.flat_biases[layer] >= 0:
        _sum_rows(work.shift, work.changes, work.begin[layer + 1], outputs, done)
        for r in range(rows):
            _add(work.inputs, here + r * outputs, work.shift, outputs)


@compiled
def _backward(chain, work, layer, rows, done):
    """The gradient in the output of a layer from that of the next one: (d·W + (d·Aᵀ)·H)·act'."""
    zero = np.int64(0)
    inputs, outputs, long = chain.wide[layer], chain.wide[layer + 1], work.mixed.size // work.labels.size
    above, below = work.begin[layer + 1] + done * outputs, work.begin[layer] + done * inputs
    work.gradients[below : below + rows * inputs] = 0
    _add_received(
        work.gradients, above, outputs, rows, chain.sizes[layer + 1],
        chain.weights, chain.weights_at[layer], work.gradients, below, inputs,
    )  # fmt: skip
    if done > 0:
        _transpose(work.across, long, work.changes, work.begin[layer + 1], outputs, done)
        work.mixed[:] = 0
        _add_own(
            work.gradients, above, outputs, rows, chain.sizes[layer + 1], work.across, zero, long,
            work.mixed, zero, long,
        )  # fmt: skip
        _add_own(
            work.mixed, zero, long, rows, done, work.inputs, work.begin[layer], inputs,
            work.gradients, below, inputs,
        )  # fmt: skip
    _slope(work.gradients, work.inputs, below, inputs, rows, chain.activations[layer - 1])


@compiled
def _activate(h, begin, wide, rows, columns, kind):
    for r in range(rows):
        line = h[begin + r * wide : begin + r * wide + columns]  # padding stays zero
        for c in range(columns):
            if kind == 1:
                line[c] = np.float32(0) if line[c] < 0 else line[c]  # NaN stays
            elif kind == 2:
                line[c] = np.float32(math.tanh(line[c]))
            elif kind == 3:
                line[c] = np.float32(1) / (np.float32(1) + np.exp(-line[c]))


@compiled
def _slope(d, h, begin, wide, rows, kind):
    """d ← d·act', where h is the output of act."""
    for c in range(begin, begin + rows * wide):
        if kind == 1:
            d[c] = d[c] if h[c] > 0 else np.float32(0)
        elif kind == 2:
            d[c] *= np.float32(1) - h[c] * h[c]
        elif kind == 3:
            d[c] *= h[c] * (np.float32(1) - h[c])


@compiled
def _cross_entropy(z, begin, wide, classes, labels, shares, rows):
    """z ← w·(softmax(z) − one-hot), 0 where the label is padding; False if a label is no class."""
    for r in range(rows):
        if labels[r] == PADDING:
            z[begin + r * wide : begin + (r + 1) * wide] = 0
            continue
        if not 0 <= labels[r] < classes:
            return False
        line = z[begin + r * wide : begin + r * wide + classes]
        largest, total = line[0], np.float32(0)
        for c in range(1, classes):
            largest = max(largest, line[c])
        for c in range(classes):
            line[c] = np.exp(line[c] - largest)
            total += line[c]
        for c in range(classes):
            line[c] *= shares[r] / total
        line[labels[r]] -= shares[r]
        z[begin + r * wide + classes : begin + (r + 1) * wide] = 0
    return True


@compiled
def _transpose(across, long, rows, begin, wide, count):
    for r in range(count):
        for c in range(wide):
            across[c * long + r] = rows[begin + r * wide + c]


@compiled
def _sum_rows(total, rows, begin, wide, count):
    total[:wide] = 0
    for r in range(count):
        for c in range(wide):
            total[c] += rows[begin + r * wide + c]
