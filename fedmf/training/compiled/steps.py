"""Local SGD of one user after another in plain compiled loops.

A model is a chain of layers, laid out as a table with one row, a `STAGE`, for each. `train_users`
walks the table forward and back. It is compiled once for all models, since models differ in their
tables alone.

What keeps users apart: all numbers made on the way lie in one float32 array, the arena, every entry
of which is set to zero before a user is trained, and in the user's own model, which is set to the
received one. Nothing else is read but the table and the user's own examples, and nothing else is
written. Labels are checked before anything is indexed by them.

Images are held with the channels of a pixel side by side, in a frame of zeros as wide as the
padding of the layer that reads them: every window is then some runs of consecutive numbers. Stages
up to the flattening take one example at a time; its image stays in the cache. Convolutions are
products of unfolded images by BLAS, dense layers are loops: a batch of few examples is too thin for
BLAS.

Of fast maths two rules are on: `contract` (a·b + c may be rounded once), and `reassoc` (sums in any
order) where sums would not be vectorised otherwise. Neither assumes that NaN or infinity are
absent. `np.uint64` says that an index is not negative, without which a loop is not vectorised;
neither is one that reads fields of a stage, for all that numba knows changed by what it writes.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import from_dtype, njit, types
from numpy.typing import NDArray

from fedmf.data.structure import PADDING

LINEAR, CONVOLUTION, MAX_POOL, MEAN_POOL, FLATTEN, RELU, TANH = range(7)
CROSS_ENTROPY, SQUARED_ERROR, BINARY_CROSS_ENTROPY = range(3)
#: Numbers of a vector, and of a cache line.
LINE = 16
ONE = np.float32(1)
ZERO = np.float32(0)
QUARTER = np.float32(0.25)

#: A layer. Its inputs begin at ``x`` in the arena, its outputs at ``y``, slopes of the loss by them
#: at ``dx`` and ``dy``; those of the next example lie ``x_apart``, … further on, 0 where one
#: example's are held. ``weight``, ``bias``: where in the model, or in the constants of a ``frozen``
#: layer; -1 for none. Images of ``channels`` × ``height`` × ``width`` become ``filters`` ×
#: ``lines`` × ``pixels``. A line is ``x_line`` (``y_line``) numbers long and the first pixel
#: ``x_first`` after ``x``, frame included. ``kernels`` are weights in the order (filter, line,
#: pixel, channel), each filter's bias at its end; ``across`` the same transposed, ``moved`` the
#: slopes by them, ``part`` those of one example. ``columns`` is the unfolded image, transposed
#: where ``thin``, and ``places`` its outputs where these get a frame. Pooling notes at ``marks``
#: which number of a window was the largest.
STAGE = np.dtype(
    [
        (name, np.int64)
        for name in (
            "kind",
            "frozen",
            "thin",
            "inputs",
            "outputs",
            "weight",
            "bias",
            "x",
            "y",
            "dx",
            "dy",
            "x_apart",
            "y_apart",
            "dx_apart",
            "dy_apart",
            "x_size",
            "y_size",
            "channels",
            "height",
            "width",
            "filters",
            "lines",
            "pixels",
            "x_line",
            "y_line",
            "x_first",
            "y_first",
            "side_y",
            "side_x",
            "step_y",
            "step_x",
            "edge_y",
            "edge_x",
            "kernels",
            "across",
            "moved",
            "part",
            "columns",
            "places",
            "marks",
        )
    ],
    align=True,
)


class Program(NamedTuple):
    """The part that is the same for all users.

    Attributes:
        stages: of the model.
        front: how many of them take one example at a time.
        lowest: the first that is trained.
        loss: `CROSS_ENTROPY`, ….
        rule: η, β and μ of `LocalSGD`.
        constants: weights that are not trained.
    """

    stages: NDArray[Any]
    front: int
    lowest: int
    loss: int
    rule: NDArray[np.float32]
    constants: NDArray[np.float32]


class Examples(NamedTuple):
    """The examples of some users.

    Attributes:
        features: shape (examples, inputs).
        labels: of cross-entropy, shape (examples,).
        targets: of other losses, shape (examples, outputs).
        rows, weights, active: see `StepRows`.
    """

    features: NDArray[np.float32]
    labels: NDArray[np.int64]
    targets: NDArray[np.float32]
    rows: NDArray[np.int64]
    weights: NDArray[np.float32]
    active: NDArray[np.int64]


#: Compile a function that becomes a part of `train_users`; the second is for sums in any order.
part, sums = (
    njit(fastmath=rules, nogil=True, error_model="numpy")
    for rules in ({"contract"}, {"contract", "reassoc"})
)


# ---- Sums of rows, and dot products: where the time of dense layers goes
# -----------------------------------


@part
def clear(values, begin, size):
    """Set so many numbers to zero."""
    for i in range(size):
        values[np.uint64(begin + i)] = ZERO


@part
def copy(values, into, begin, size):
    """Copy so many numbers."""
    for i in range(size):
        values[np.uint64(into + i)] = values[np.uint64(begin + i)]


@part
def add(values, into, begin, size, scale):
    """Add ``scale`` times so many numbers to others."""
    for i in range(size):
        values[np.uint64(into + i)] += scale * values[np.uint64(begin + i)]


@part
def matrix(values, begin, rows, columns):
    """A part of an array as a matrix; no copy."""
    return values[begin : begin + rows * columns].reshape(rows, columns)


@part
def add_products(out, c, rows, scale):
    """out[o] += scale·Σ_r c[r, o]·rows[r]; two sums of five rows each are ten products for seven
    loads.
    """
    fives = rows.shape[0] - rows.shape[0] % 5
    even = out.shape[0] - out.shape[0] % 2
    for o in range(0, even, 2):  # which stay in the fastest cache, as the rows do
        for r in range(0, fives, 5):
            a = scale * c[r, o]
            b = scale * c[r + 1, o]
            d = scale * c[r + 2, o]
            e = scale * c[r + 3, o]
            f = scale * c[r + 4, o]
            g = scale * c[r, o + 1]
            h = scale * c[r + 1, o + 1]
            k = scale * c[r + 2, o + 1]
            l = scale * c[r + 3, o + 1]  # noqa: E741
            m = scale * c[r + 4, o + 1]
            for j in range(rows.shape[1]):
                p = rows[r, j]
                q = rows[r + 1, j]
                s = rows[r + 2, j]
                t = rows[r + 3, j]
                u = rows[r + 4, j]
                out[o, j] += (a * p + b * q) + (d * s + e * t) + f * u
                out[o + 1, j] += (g * p + h * q) + (k * s + l * t) + m * u
    for o in range(out.shape[0]):
        for r in range(fives if o < even else 0, rows.shape[0]):
            weight = scale * c[r, o]
            for j in range(rows.shape[1]):
                out[o, j] += weight * rows[r, j]


@sums
def add_dots(y, x, w):
    """y[r, o] += x[r]·w[o]; two examples by four outputs are eight sums that fill the processor's
    pipes.
    """
    rows, outputs = y.shape
    even = rows - rows % 2
    fours = outputs - outputs % 4
    for o in range(
        0, fours, 4
    ):  # four rows of weights stay in the fastest cache while all examples pass
        for r in range(0, even, 2):
            a = b = c = d = e = f = g = h = ZERO
            for k in range(x.shape[1]):
                u = x[r, k]
                v = x[r + 1, k]
                p = w[o, k]
                q = w[o + 1, k]
                s = w[o + 2, k]
                t = w[o + 3, k]
                a += u * p
                b += u * q
                c += u * s
                d += u * t
                e += v * p
                f += v * q
                g += v * s
                h += v * t
            y[r, o] += a
            y[r, o + 1] += b
            y[r, o + 2] += c
            y[r, o + 3] += d
            y[r + 1, o] += e
            y[r + 1, o + 1] += f
            y[r + 1, o + 2] += g
            y[r + 1, o + 3] += h
    for r in range(rows):
        for o in range(0 if r >= even else fours, outputs):
            a = ZERO
            for k in range(x.shape[1]):
                a += x[r, k] * w[o, k]
            y[r, o] += a


# ---- Dense layers, for all examples of a step
# --------------------------------------------------------------


@part
def linear(s, weights, arena, rows):
    """Wx + b."""
    y = matrix(arena, s.y, rows, s.outputs)
    for r in range(rows):
        for o in range(s.outputs):
            y[r, o] = weights[s.bias + o] if s.bias >= 0 else ZERO
    add_dots(y, matrix(arena, s.x, rows, s.inputs), matrix(weights, s.weight, s.outputs, s.inputs))


@part
def linear_back(s, weights, arena, rows, into, scale, pass_on):
    """Slopes by the inputs; then ``scale`` times those by weights and biases are added to ``into``,
    which may be the model itself: these weights are not used again in this step.
    """
    dy = matrix(arena, s.dy, rows, s.outputs)
    if pass_on:
        dx = matrix(arena, s.dx, rows, s.inputs)
        clear(arena, s.dx, dx.size)
        w = matrix(weights, s.weight, s.outputs, s.inputs)
        for o in range(0, s.outputs, 10):  # some rows of weights at a time, for all examples
            add_products(dx, dy[:, o : o + 10].T, w[o : o + 10], ONE)
    if s.frozen:
        return
    add_products(
        matrix(into, s.weight, s.outputs, s.inputs), dy, matrix(arena, s.x, rows, s.inputs), scale
    )
    if s.bias >= 0:
        for o in range(s.outputs):
            total = ZERO
            for r in range(rows):
                total += dy[r, o]
            into[s.bias + o] += scale * total


# ---- Images, example by example
# ----------------------------------------------------------------------------


@part
def taps(s):
    """Weights of a filter, and its bias."""
    return s.side_y * s.side_x * s.channels + 1


@part
def window(s, i, j, k):
    """Where line k of the window of place (i, j) begins in an image."""
    return (i * s.step_y + k) * s.x_line + j * s.step_x * s.channels


@part
def unfold(s, arena, r):
    """columns[place] = the window of that place, and 1, which the bias is multiplied with."""
    x = s.x + r * s.x_apart
    run = s.side_x * s.channels
    into = s.columns
    for i in range(s.lines):
        for j in range(s.pixels):
            for k in range(s.side_y):
                copy(arena, into, x + window(s, i, j, k), run)
                into += run
            arena[into] = ONE
            into += 1


@part
def unfold_across(s, arena, r):
    """The same transposed: of few channels at once, line after line of outputs is copied."""
    x = s.x + r * s.x_apart
    into = s.columns
    pixels = s.pixels
    apart = s.step_x * s.channels
    for k in range(s.side_y):
        for place in range(s.side_x * s.channels):
            for i in range(s.lines):
                begin = x + window(s, i, 0, k) + place
                for j in range(pixels):
                    arena[np.uint64(into + j)] = arena[np.uint64(begin + j * apart)]
                into += pixels
    for j in range(s.lines * pixels):
        arena[np.uint64(into + j)] = ONE


@part
def fold(s, arena, r):
    """The way back of `unfold`: slopes of each window are added to its pixels."""
    dx = s.dx + r * s.dx_apart
    run = s.side_x * s.channels
    begin = s.columns
    clear(arena, dx, s.x_size)
    for i in range(s.lines):
        for j in range(s.pixels):
            for k in range(s.side_y):
                add(arena, dx + window(s, i, j, k), begin, run, ONE)
                begin += run
            begin += 1


@part
def place_of(s, o, i, j, c):
    """Where a weight of a convolution lies in the model."""
    return s.weight + ((o * s.channels + c) * s.side_y + i) * s.side_x + j


@part
def turn_kernels(s, weights, arena):
    """Set ``kernels``; and ``across``, since BLAS takes three times as long for small matrices of
    which the second is to be transposed.
    """
    into = s.kernels
    for o in range(s.filters):
        for i in range(s.side_y):
            for j in range(s.side_x):
                for c in range(s.channels):
                    arena[into] = weights[place_of(s, o, i, j, c)]
                    into += 1
        arena[into] = weights[s.bias + o] if s.bias >= 0 else ZERO
        into += 1
    for t in range(s.filters * taps(s)):
        arena[s.across + t % taps(s) * s.filters + t // taps(s)] = arena[s.kernels + t]


@part
def move_kernels(s, arena, into, scale):
    """Add ``scale`` times the slopes by kernels and biases."""
    begin = s.moved
    for o in range(s.filters):
        for i in range(s.side_y):
            for j in range(s.side_x):
                for c in range(s.channels):
                    into[place_of(s, o, i, j, c)] += scale * arena[begin]
                    begin += 1
        if s.bias >= 0:
            into[s.bias + o] += scale * arena[begin]
        begin += 1


@part
def convolution(s, arena, r):
    """Products of all windows and kernels."""
    count = s.lines * s.pixels
    length = s.pixels * s.filters
    y = s.y + r * s.y_apart + s.y_first
    framed = s.y_line != length
    across = matrix(arena, s.across, taps(s), s.filters)
    products = matrix(arena, s.places if framed else y, count, s.filters)
    if s.thin:
        unfold_across(s, arena, r)
        np.dot(matrix(arena, s.columns, taps(s), count).T, across, products)
    else:
        unfold(s, arena, r)
        np.dot(matrix(arena, s.columns, count, taps(s)), across, products)
    if framed:
        for i in range(s.lines):
            copy(arena, y + i * s.y_line, s.places + i * length, length)


@part
def convolution_back(s, arena, r, pass_on):
    """Slopes by the inputs, and by kernels and biases, which are added at ``moved``."""
    count = s.lines * s.pixels
    length = s.pixels * s.filters
    dy = s.dy + r * s.dy_apart + s.y_first
    framed = s.y_line != length
    part = matrix(arena, s.part, s.filters, taps(s))
    if framed:
        for i in range(s.lines):
            copy(arena, s.places + i * length, dy + i * s.y_line, length)
    slopes = matrix(arena, s.places if framed else dy, count, s.filters)
    if not s.frozen:  # unfolded again, which takes less time than to keep many
        if s.thin:
            unfold_across(s, arena, r)
            np.dot(slopes.T, matrix(arena, s.columns, taps(s), count).T, part)
        else:
            unfold(s, arena, r)
            np.dot(slopes.T, matrix(arena, s.columns, count, taps(s)), part)
        add(arena, s.moved, s.part, s.filters * taps(s), ONE)
    if pass_on:
        kernels = matrix(arena, s.kernels, s.filters, taps(s))
        np.dot(slopes, kernels, matrix(arena, s.columns, count, taps(s)))
        fold(s, arena, r)


@part
def take_larger(value, place, largest, mark):
    """The larger of two numbers, NaN above all, and its place."""
    larger = (value > largest) | (value != value)
    return value if larger else largest, place if larger else mark


@part
def pool_four(arena, into, marks, above, below, size, mean):
    """The mean of four pixels, or the largest, the first of equals; and which is the largest."""
    for c in range(size):
        a = arena[np.uint64(above + c)]
        b = arena[np.uint64(above + size + c)]
        d = arena[np.uint64(below + c)]
        e = arena[np.uint64(below + size + c)]
        largest, mark = take_larger(b, ONE, a, ZERO)
        largest, mark = take_larger(d, np.float32(2), largest, mark)
        largest, mark = take_larger(e, np.float32(3), largest, mark)
        arena[np.uint64(into + c)] = QUARTER * ((a + b) + (d + e)) if mean else largest
        arena[np.uint64(marks + c)] = mark


@part
def set_four(arena, begin, marks, above, below, size, mean):
    """The slope of the largest of four pixels, or of all in a mean."""
    for c in range(size):
        slope = arena[np.uint64(begin + c)]
        mark = arena[np.uint64(marks + c)]
        share = QUARTER * slope
        arena[np.uint64(above + c)] = share if mean else slope if mark == 0 else ZERO
        arena[np.uint64(above + size + c)] = share if mean else slope if mark == 1 else ZERO
        arena[np.uint64(below + c)] = share if mean else slope if mark == 2 else ZERO
        arena[np.uint64(below + size + c)] = share if mean else slope if mark == 3 else ZERO


@part
def pool(s, arena, r, back):
    """The largest number of each window of two by two, or the mean; or slopes from there, zeros for
    pixels beyond the last window.
    """
    x = s.x + r * s.x_apart
    y = s.y + r * s.y_apart + s.y_first
    marks = s.marks + r * s.outputs
    dx = s.dx + r * s.dx_apart
    dy = s.dy + r * s.dy_apart + s.y_first
    mean = s.kind == MEAN_POOL
    if back:
        clear(arena, dx, s.x_size)
    for i in range(s.lines):
        for j in range(s.pixels):
            above = window(s, i, j, 0)
            place = i * s.y_line + j * s.channels
            below = above + s.x_line
            if back:
                set_four(arena, dy + place, marks, dx + above, dx + below, s.channels, mean)
            else:
                pool_four(arena, y + place, marks, x + above, x + below, s.channels, mean)
            marks += s.channels


@part
def flatten(s, arena, r, back):
    """Numbers of an image in the order (channel, line, pixel), or slopes from there."""
    image = s.dx + r * s.dx_apart if back else s.x + r * s.x_apart
    row = s.dy + r * s.dy_apart if back else s.y + r * s.y_apart
    for c in range(s.channels):
        for i in range(s.height):
            for j in range(s.width):
                place = image + i * s.x_line + j * s.channels + c
                if back:
                    arena[place] = arena[row]
                else:
                    arena[row] = arena[place]
                row += 1


# ---- Activations, in place, frames of zeros included
# -------------------------------------------------------


@part
def tanh(x):
    """Within a few units of the last place: the rational function of degree 13 over 6 that Eigen
    uses, since the library's function is not vectorised.
    """
    edge = np.float32(7.90531110763549805)
    x = -edge if x < -edge else x  # NaN stays
    x = edge if x > edge else x
    y = x * x
    p = np.float32(-2.76076847742355e-16)
    p = p * y + np.float32(2.00018790482477e-13)
    p = p * y + np.float32(-8.60467152213735e-11)
    p = p * y + np.float32(5.12229709037114e-08)
    p = p * y + np.float32(1.48572235717979e-05)
    p = p * y + np.float32(6.37261928875436e-04)
    p = p * y + np.float32(4.89352455891786e-03)
    q = np.float32(1.19825839466702e-06)
    q = q * y + np.float32(1.18534705686654e-04)
    q = q * y + np.float32(2.26843463243900e-03)
    q = q * y + np.float32(4.89352518554385e-03)
    return x * p / q


@part
def activate(s, arena, first, rows):
    """ReLU or tanh."""
    for r in range(first, first + rows):
        y = s.y + r * s.y_apart
        if s.kind == RELU:
            for i in range(s.y_size):
                value = arena[np.uint64(y + i)]
                arena[np.uint64(y + i)] = ZERO if value < 0 else value  # NaN stays
        else:
            for i in range(s.y_size):
                arena[np.uint64(y + i)] = tanh(arena[np.uint64(y + i)])


@part
def activate_back(s, arena, first, rows):
    """Slopes by the inputs."""
    for r in range(first, first + rows):
        y = s.y + r * s.y_apart
        dy = s.dy + r * s.dy_apart
        if s.kind == RELU:
            for i in range(s.y_size):
                slope = arena[np.uint64(dy + i)]
                arena[np.uint64(dy + i)] = ZERO if arena[np.uint64(y + i)] <= 0 else slope
        else:
            for i in range(s.y_size):
                value = arena[np.uint64(y + i)]
                arena[np.uint64(dy + i)] *= ONE - value * value


# ---- Losses
# ------------------------------------------------------------------------------------------------


@part
def loss_slopes(s, loss, arena, examples, batch, share):
    """Slopes of Σ share·loss by the outputs of the last stage."""
    for r in range(batch.size):
        z = s.y + r * s.outputs
        d = s.dy + r * s.outputs
        if loss == CROSS_ENTROPY:
            label = examples.labels[batch[r]]
            largest = arena[z]
            total = ZERO
            for o in range(s.outputs):
                largest = max(largest, arena[z + o])
            for o in range(s.outputs):
                arena[d + o] = math.exp(arena[z + o] - largest)
                total += arena[d + o]
            weight = ZERO if label == PADDING else share
            for o in range(s.outputs):
                arena[d + o] *= weight / total
            arena[d + max(label, 0)] -= weight
            continue
        each = share / np.float32(s.outputs)
        for o in range(s.outputs):
            value = arena[z + o]
            target = examples.targets[batch[r], o]
            if loss == SQUARED_ERROR:
                arena[d + o] = np.float32(2) * each * (value - target)
            else:
                arena[d + o] = each * (ONE / (ONE + math.exp(-value)) - target)


# ---- One user
# ----------------------------------------------------------------------------------------------


@part
def forward(s, model, constants, arena, first, rows):
    """Outputs of a stage for some examples: of one alone up to the flattening."""
    if s.kind == LINEAR:
        linear(s, constants if s.frozen else model, arena, rows)
    elif s.kind == CONVOLUTION:
        convolution(s, arena, first)
    elif s.kind == MAX_POOL or s.kind == MEAN_POOL:
        pool(s, arena, first, False)
    elif s.kind == FLATTEN:
        flatten(s, arena, first, False)
    else:
        activate(s, arena, first, rows)


@part
def back(s, model, constants, arena, first, rows, into, scale, pass_on):
    """Slopes by the inputs of a stage; ``scale`` times those by weights of a dense one go into
    ``into``.
    """
    if s.kind == LINEAR:
        linear_back(s, constants if s.frozen else model, arena, rows, into, scale, pass_on)
    elif s.kind == CONVOLUTION:
        convolution_back(s, arena, first, pass_on)
    elif s.kind == MAX_POOL or s.kind == MEAN_POOL:
        pool(s, arena, first, True)
    elif s.kind == FLATTEN:
        flatten(s, arena, first, True)
    else:
        activate_back(s, arena, first, rows)


@part
def step(program, model, arena, examples, batch, share, into, scale):
    """One batch, with its examples where the first stage reads: slopes times ``scale`` go into
    ``into``.
    """
    stages = program.stages
    constants = program.constants
    front = program.front
    lowest = program.lowest
    rows = batch.size
    last = program.stages.size - 1
    for i in range(front):
        s = stages[i]
        if s.kind == CONVOLUTION:
            turn_kernels(s, constants if s.frozen else model, arena)
            clear(arena, s.moved, s.filters * taps(s))
    for r in range(rows):
        for i in range(front):
            forward(stages[i], model, constants, arena, r, 1)
    for i in range(front, last + 1):
        forward(stages[i], model, constants, arena, 0, rows)
    loss_slopes(stages[last], program.loss, arena, examples, batch, share)
    for i in range(last, max(front, lowest) - 1, -1):
        back(stages[i], model, constants, arena, 0, rows, into, scale, i > lowest)
    for r in range(rows):
        for i in range(front - 1, lowest - 1, -1):
            back(stages[i], model, constants, arena, r, 1, into, scale, i > lowest)
    for i in range(lowest, front):
        if stages[i].kind == CONVOLUTION and not stages[i].frozen:
            move_kernels(stages[i], arena, into, scale)


@part
def take(s, arena, example, r):
    """Put an example where the first stage reads."""
    begin = 0
    x = s.x + r * s.x_apart + s.x_first
    if s.channels == 0:
        for i in range(example.size):
            arena[np.uint64(x + i)] = example[i]
        return
    for c in range(s.channels):
        for i in range(s.height):
            for j in range(s.width):
                arena[x + i * s.x_line + j * s.channels + c] = example[begin]
                begin += 1


@part
def train_user(program, received, examples, u, arena, model):
    """Set ``model`` to one user's model after local training."""
    clear(arena, 0, arena.size)
    for i in range(received.size):
        model[i] = received[i]
    rate = program.rule[0]
    momentum = program.rule[1]
    proximal = program.rule[2]
    plain = momentum == 0 and proximal == 0
    velocity = model if plain else arena[: received.size]
    for t in range(examples.active.size):
        if examples.active[t] <= u:
            break
        size = 0
        while size < examples.rows.shape[2] and examples.weights[t, u, size] > 0:
            size += 1
        batch = examples.rows[t, u, :size]
        share = examples.weights[t, u, 0]
        for r in range(size):
            take(program.stages[0], arena, examples.features[batch[r]], r)
        if plain:
            step(program, model, arena, examples, batch, share, model, -rate)
            continue
        for i in range(received.size):
            velocity[i] = momentum * velocity[i] + proximal * (model[i] - received[i])
        step(program, model, arena, examples, batch, share, velocity, ONE)
        for i in range(received.size):
            model[i] -= rate * velocity[i]


@part
def labelled(program, examples):
    """Whether all labels of these users are classes, or padding."""
    classes = program.stages[program.stages.size - 1].outputs
    for row in examples.rows.flat:
        label = examples.labels[row]
        if label != PADDING and not 0 <= label < classes:
            return False
    return True


def train_users(program, received, examples, arena, models, step):
    """Train users one after another; to be compiled for `SIGNATURE`.

    Args:
        program: a `Program`.
        received: θ_t, shape (d,).
        examples: `Examples` of the users.
        arena: of the plan; any contents.
        models: set to the users' models; that of user u is d numbers from u·step on.
        step: see models.

    Returns:
        Whether users were trained: not if a label is no class.
    """
    if program.loss == CROSS_ENTROPY and not labelled(program, examples):
        return False
    for u in range(examples.rows.shape[1]):
        model = models[u * step : u * step + received.size]
        train_user(program, received, examples, u, arena, model)
    return True


_FLOATS = types.float32
_INTEGERS = types.int64
_PROGRAM = from_dtype(STAGE)[::1], _INTEGERS, _INTEGERS, _INTEGERS, _FLOATS[::1], _FLOATS[::1]
_EXAMPLES = (
    *(_FLOATS[:, ::1], _INTEGERS[::1], _FLOATS[:, ::1]),
    *(_INTEGERS[:, :, ::1], _FLOATS[:, :, ::1], _INTEGERS[::1]),
)
#: The types of `train_users`.
SIGNATURE = types.boolean(
    types.NamedTuple(_PROGRAM, Program),
    _FLOATS[::1],
    types.NamedTuple(_EXAMPLES, Examples),
    _FLOATS[::1],
    _FLOATS[::1],
    _INTEGERS,
)
