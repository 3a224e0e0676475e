"""Local SGD of one user after another in plain compiled loops.

A model is a chain of layers, laid out as a table with one row, a `STAGE`, for each layer.
`train_users` walks the table forward and back. It is compiled once for all dense models, and once
for all others, since models differ in their tables alone.

Users are kept apart as follows. All intermediate numbers lie in one float32 array, the arena, every
entry of which is set to zero before a user is trained, and in the user's own model, which is set to
the received one. Nothing else is read but the table and the user's own examples, and nothing else
is written. Labels are checked before anything is indexed by them.

Images are held with the channels of a pixel next to each other, in a frame of zeros as wide as the
padding of the layer that reads them: every window is then a few runs of consecutive numbers. Stages
up to the flattening take one example at a time; its image stays in the cache. Convolutions are
products of unfolded images by BLAS, dense layers are loops: a batch of few examples is too thin for
BLAS.

Of fast maths two rules are on: `contract` (a·b + c may be rounded once), and `reassoc` (sums in any
order) where sums would not be vectorised otherwise. Neither assumes that NaN or infinity are
absent. `np.uint64` says that an index is not negative, without which a loop is not vectorised. A
loop that reads fields of a stage is not vectorised either, because numba cannot know that what the
loop writes leaves these fields alone.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmf.data.structure import PADDING
from fedmf.noise.jit import compiled, jit_contract, jit_merged, jit_sums

LINEAR, CONVOLUTION, MAX_POOL, MEAN_POOL, FLATTEN, RELU, TANH = range(7)
CROSS_ENTROPY, SQUARED_ERROR, BINARY_CROSS_ENTROPY = range(3)
#: Numbers of a vector, and of a cache line.
LINE = 16
ONE = np.float32(1)
ZERO = np.float32(0)
QUARTER = np.float32(0.25)

_FIELDS: Final = (
    "kind",  # LINEAR, …
    "frozen",  # 1 for a layer that is not trained, whose weights lie among the constants
    "transposed",  # 1 for a convolution whose unfolded image is held transposed
    "inputs",  # numbers of an example before the layer
    "outputs",  # and after it
    "weight",  # where weights begin in the model or among the constants; -1 for none
    "bias",
    "x",  # where inputs begin in the arena
    "y",  # outputs
    "dx",  # slopes of the loss by the inputs
    "dy",  # slopes of the loss by the outputs
    "x_apart",  # from an example to the next; 0 where only one example's numbers are held
    "y_apart",
    "dx_apart",
    "dy_apart",
    "x_size",  # numbers of an example's inputs, frame included
    "y_size",
    "channels",  # an image of channels × height × width before the layer; 0 for no image
    "height",
    "width",
    "filters",  # an image of filters × lines × pixels after the layer; 0 for no image
    "lines",
    "pixels",
    "x_line",  # numbers of a line of an image, frame included
    "y_line",
    "x_first",  # numbers of the frame before the first pixel
    "y_first",
    "side_y",  # lines and pixels of a window
    "side_x",
    "step_y",  # lines and pixels from a window to the next
    "step_x",
    "edge_y",  # lines and pixels of padding
    "edge_x",
    "kernels",  # weights in the order (filter, line, pixel, channel), a filter's bias at its end
    "kernels_transposed",
    "kernel_slopes",  # slopes by kernels, in their order
    "example_slopes",  # those of one example
    "columns",  # the unfolded image
    "places",  # outputs or their slopes without a frame, where they have one
    "marks",  # which number of a window was the largest
)
#: A layer. `x`, `y`, `dx`, `dy`, and the fields from `kernels` on, are places in the arena.
STAGE = np.dtype([(name, np.int64) for name in _FIELDS], align=True)


class Program(NamedTuple):
    """The model and the rule of its steps, which are the same for all users.

    Attributes:
        stages: the layers, shape (stages,), each a `STAGE`.
        front: how many of the first stages take one example at a time.
        lowest: index of the first stage that is trained.
        loss: `CROSS_ENTROPY`, `SQUARED_ERROR` or `BINARY_CROSS_ENTROPY`.
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
        labels: for cross-entropy, shape (examples,).
        targets: for other losses, shape (examples, outputs).
        rows, weights, active: those of `StepRows`.
    """

    features: NDArray[np.float32]
    labels: NDArray[np.int64]
    targets: NDArray[np.float32]
    rows: NDArray[np.int64]
    weights: NDArray[np.float32]
    active: NDArray[np.int64]


# ---- Sums of rows, and dot products: where the time of dense layers goes


@jit_contract
def clear(values, begin, size):
    """Set ``size`` numbers to zero."""
    for i in range(size):
        values[np.uint64(begin + i)] = ZERO


@jit_contract
def copy(values, into, begin, size):
    """Copy ``size`` numbers."""
    for i in range(size):
        values[np.uint64(into + i)] = values[np.uint64(begin + i)]


@jit_contract
def add(values, into, begin, size, scale):
    """Add ``scale`` times ``size`` numbers to others."""
    for i in range(size):
        values[np.uint64(into + i)] += scale * values[np.uint64(begin + i)]


@jit_contract
def matrix(values, begin, rows, columns):
    """View a part of an array as a matrix."""
    return values[begin : begin + rows * columns].reshape(rows, columns)


@jit_contract
def add_products(out, c, rows, scale):
    """Add scale·Σ_r c[r, o]·rows[r] to each out[o].

    Two sums of five rows each are computed together: ten products for seven loads.
    """
    fives = rows.shape[0] - rows.shape[0] % 5
    even = out.shape[0] - out.shape[0] % 2
    for o in range(0, even, 2):  # both outputs stay in the fastest cache, as the rows do
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
        first = 0
        if o < even:
            first = fives
        for r in range(first, rows.shape[0]):
            weight = scale * c[r, o]
            for j in range(rows.shape[1]):
                out[o, j] += weight * rows[r, j]


@jit_sums
def add_dots(y, x, w):
    """Add x[r]·w[o] to each y[r, o].

    Two examples by four outputs are eight sums at a time, which fill the processor's pipes.
    """
    rows, outputs = y.shape
    even = rows - rows % 2
    fours = outputs - outputs % 4
    # Four rows of weights stay in the fastest cache while all examples pass.
    for o in range(0, fours, 4):
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
        first = fours
        if r >= even:
            first = 0
        for o in range(first, outputs):
            a = ZERO
            for k in range(x.shape[1]):
                a += x[r, k] * w[o, k]
            y[r, o] += a


# ---- Dense layers, for all examples of a step


@jit_contract
def bias_of(s, weights, o):
    """The bias of output o, or 0 for a layer without biases."""
    if s.bias >= 0:
        return weights[s.bias + o]
    return ZERO


@jit_contract
def linear(s, weights, arena, rows):
    """Compute Wx + b."""
    y = matrix(arena, s.y, rows, s.outputs)
    for r in range(rows):
        for o in range(s.outputs):
            y[r, o] = bias_of(s, weights, o)
    add_dots(y, matrix(arena, s.x, rows, s.inputs), matrix(weights, s.weight, s.outputs, s.inputs))


@jit_contract
def linear_back(s, weights, arena, rows, into, scale, pass_on):
    """Set the slopes by the inputs; add ``scale`` times those by the parameters to ``into``.

    ``into`` may be the model itself: these weights are not used again in this step.
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
    sums = matrix(into, s.weight, s.outputs, s.inputs)
    x = matrix(arena, s.x, rows, s.inputs)
    # A part of dy has the type of the transposed part above, so that the loop is compiled once.
    add_products(sums, dy[:, : s.outputs], x, scale)
    if s.bias >= 0:
        for o in range(s.outputs):
            total = ZERO
            for r in range(rows):
                total += dy[r, o]
            into[s.bias + o] += scale * total


# ---- Images, example by example


@jit_contract
def taps(s):
    """How many weights a filter has, with its bias."""
    return s.side_y * s.side_x * s.channels + 1


@jit_contract
def window(s, i, j, k):
    """Offset in an image of line k of the window of place (i, j)."""
    return (i * s.step_y + k) * s.x_line + j * s.step_x * s.channels


@jit_contract
def unfold(s, arena, r):
    """Copy each place's window, and a 1 that the bias is multiplied with, to ``columns``."""
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


@jit_contract
def unfold_transposed(s, arena, r):
    """Unfold an image transposed: for few channels, line after line of outputs is copied."""
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


@jit_contract
def fold(s, arena, r):
    """Add the slopes of each window to its pixels, as the reverse of `unfold`."""
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


@jit_contract
def place_of(s, o, i, j, c):
    """Index in the model of a weight of a convolution."""
    return s.weight + ((o * s.channels + c) * s.side_y + i) * s.side_x + j


@jit_contract
def set_kernels(s, weights, arena):
    """Set ``kernels`` and ``kernels_transposed``.

    BLAS takes three times as long for small matrices if it has to transpose the second one.
    """
    into = s.kernels
    for o in range(s.filters):
        for i in range(s.side_y):
            for j in range(s.side_x):
                for c in range(s.channels):
                    arena[into] = weights[place_of(s, o, i, j, c)]
                    into += 1
        arena[into] = bias_of(s, weights, o)
        into += 1
    for t in range(s.filters * taps(s)):
        place = t % taps(s) * s.filters + t // taps(s)
        arena[s.kernels_transposed + place] = arena[s.kernels + t]


@jit_contract
def add_kernel_slopes(s, arena, into, scale):
    """Add ``scale`` times the slopes by kernels and biases to ``into``."""
    begin = s.kernel_slopes
    for o in range(s.filters):
        for i in range(s.side_y):
            for j in range(s.side_x):
                for c in range(s.channels):
                    into[place_of(s, o, i, j, c)] += scale * arena[begin]
                    begin += 1
        if s.bias >= 0:
            into[s.bias + o] += scale * arena[begin]
        begin += 1


@jit_contract
def has_frame(s):
    """Whether the outputs of a convolution lie in a frame of zeros."""
    return s.y_line != s.pixels * s.filters


@jit_contract
def unframed(s, arena, begin):
    """A convolution's outputs as a matrix, at ``places`` or, without a frame, at ``begin``."""
    if has_frame(s):
        begin = s.places
    return matrix(arena, begin, s.lines * s.pixels, s.filters)


@jit_contract
def convolution(s, arena, r):
    """Compute the products of all windows and kernels."""
    count = s.lines * s.pixels
    length = s.pixels * s.filters
    y = s.y + r * s.y_apart + s.y_first
    kernels = matrix(arena, s.kernels_transposed, taps(s), s.filters)
    products = unframed(s, arena, y)
    if s.transposed:
        unfold_transposed(s, arena, r)
        np.dot(matrix(arena, s.columns, taps(s), count).T, kernels, products)
    else:
        unfold(s, arena, r)
        np.dot(matrix(arena, s.columns, count, taps(s)), kernels, products)
    if has_frame(s):
        for i in range(s.lines):
            copy(arena, y + i * s.y_line, s.places + i * length, length)


@jit_contract
def convolution_back(s, arena, r, pass_on):
    """Set the slopes by the inputs, and add those by kernels and biases to ``kernel_slopes``."""
    count = s.lines * s.pixels
    length = s.pixels * s.filters
    dy = s.dy + r * s.dy_apart + s.y_first
    example_slopes = matrix(arena, s.example_slopes, s.filters, taps(s))
    if has_frame(s):
        for i in range(s.lines):
            copy(arena, s.places + i * length, dy + i * s.y_line, length)
    slopes = unframed(s, arena, dy)
    if not s.frozen:  # unfolded again, which takes less time than to store many unfolded images
        if s.transposed:
            unfold_transposed(s, arena, r)
            np.dot(slopes.T, matrix(arena, s.columns, taps(s), count).T, example_slopes)
        else:
            unfold(s, arena, r)
            np.dot(slopes.T, matrix(arena, s.columns, count, taps(s)), example_slopes)
        add(arena, s.kernel_slopes, s.example_slopes, s.filters * taps(s), ONE)
    if pass_on:
        kernels = matrix(arena, s.kernels, s.filters, taps(s))
        np.dot(slopes, kernels, matrix(arena, s.columns, count, taps(s)))
        fold(s, arena, r)


@jit_contract
def larger(value, place, largest, mark):
    """The larger of two numbers, NaN above all, and its place."""
    if (value > largest) | (value != value):
        return value, place
    return largest, mark


@jit_contract
def max_of_four(arena, into, marks, above, below, channels):
    """Set each channel's largest of four pixels, the first of equals, and mark which one it is."""
    for c in range(channels):
        a = arena[np.uint64(above + c)]
        b = arena[np.uint64(above + channels + c)]
        d = arena[np.uint64(below + c)]
        e = arena[np.uint64(below + channels + c)]
        largest, mark = larger(b, ONE, a, ZERO)
        largest, mark = larger(d, np.float32(2), largest, mark)
        largest, mark = larger(e, np.float32(3), largest, mark)
        arena[np.uint64(into + c)] = largest
        arena[np.uint64(marks + c)] = mark


@jit_contract
def mean_of_four(arena, into, above, below, channels):
    """Set each channel's mean of four pixels."""
    for c in range(channels):
        a = arena[np.uint64(above + c)]
        b = arena[np.uint64(above + channels + c)]
        d = arena[np.uint64(below + c)]
        e = arena[np.uint64(below + channels + c)]
        arena[np.uint64(into + c)] = QUARTER * ((a + b) + (d + e))


@jit_contract
def where_marked(slope, mark, place):
    """The slope at the place that is marked, 0 at another one."""
    if mark == place:
        return slope
    return ZERO


@jit_contract
def max_of_four_back(arena, begin, marks, above, below, channels):
    """Give each channel's slope to the largest of four pixels, and zeros to the others."""
    for c in range(channels):
        slope = arena[np.uint64(begin + c)]
        mark = arena[np.uint64(marks + c)]
        arena[np.uint64(above + c)] = where_marked(slope, mark, 0)
        arena[np.uint64(above + channels + c)] = where_marked(slope, mark, 1)
        arena[np.uint64(below + c)] = where_marked(slope, mark, 2)
        arena[np.uint64(below + channels + c)] = where_marked(slope, mark, 3)


@jit_contract
def mean_of_four_back(arena, begin, above, below, channels):
    """Give a quarter of each channel's slope to each of four pixels."""
    for c in range(channels):
        share = QUARTER * arena[np.uint64(begin + c)]
        arena[np.uint64(above + c)] = share
        arena[np.uint64(above + channels + c)] = share
        arena[np.uint64(below + c)] = share
        arena[np.uint64(below + channels + c)] = share


@jit_contract
def pool(s, arena, r):
    """Set the largest number of each window of two by two, or the mean."""
    x = s.x + r * s.x_apart
    y = s.y + r * s.y_apart + s.y_first
    marks = s.marks + r * s.outputs
    for i in range(s.lines):
        for j in range(s.pixels):
            above = x + window(s, i, j, 0)
            below = above + s.x_line
            into = y + i * s.y_line + j * s.channels
            if s.kind == MEAN_POOL:
                mean_of_four(arena, into, above, below, s.channels)
            else:
                max_of_four(arena, into, marks, above, below, s.channels)
            marks += s.channels


@jit_contract
def pool_back(s, arena, r):
    """Set the slopes by the inputs of `pool`: zeros for pixels beyond the last window."""
    dx = s.dx + r * s.dx_apart
    dy = s.dy + r * s.dy_apart + s.y_first
    marks = s.marks + r * s.outputs
    clear(arena, dx, s.x_size)
    for i in range(s.lines):
        for j in range(s.pixels):
            above = dx + window(s, i, j, 0)
            below = above + s.x_line
            begin = dy + i * s.y_line + j * s.channels
            if s.kind == MEAN_POOL:
                mean_of_four_back(arena, begin, above, below, s.channels)
            else:
                max_of_four_back(arena, begin, marks, above, below, s.channels)
            marks += s.channels


@jit_contract
def flatten(s, arena, r):
    """Copy the numbers of an image in the order (channel, line, pixel)."""
    x = s.x + r * s.x_apart
    into = s.y + r * s.y_apart
    for c in range(s.channels):
        for i in range(s.height):
            for j in range(s.width):
                arena[into] = arena[x + i * s.x_line + j * s.channels + c]
                into += 1


@jit_contract
def flatten_back(s, arena, r):
    """Copy slopes in the order (channel, line, pixel) to those of an image."""
    dx = s.dx + r * s.dx_apart
    begin = s.dy + r * s.dy_apart
    for c in range(s.channels):
        for i in range(s.height):
            for j in range(s.width):
                arena[dx + i * s.x_line + j * s.channels + c] = arena[begin]
                begin += 1


# ---- Activations, in place, frames of zeros included


@jit_contract
def tanh(x):
    """tanh within a few units of the last place.

    It is the rational function of degree 13 over 6 that Eigen uses, since the library's function is
    not vectorised.
    """
    edge = np.float32(7.90531110763549805)
    if x < -edge:  # NaN stays
        x = -edge
    if x > edge:
        x = edge
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


@jit_contract
def relu(x):
    """0 for a negative number; NaN stays."""
    if x < 0:
        return ZERO
    return x


@jit_contract
def relu_back(y, slope):
    """The slope by the input of ReLU, from its output and the slope by its output."""
    if y <= 0:
        return ZERO
    return slope


@jit_contract
def activate(s, arena, first, rows):
    """Apply ReLU or tanh to some examples."""
    for r in range(first, first + rows):
        y = s.y + r * s.y_apart
        if s.kind == RELU:
            for i in range(s.y_size):
                arena[np.uint64(y + i)] = relu(arena[np.uint64(y + i)])
        else:
            for i in range(s.y_size):
                arena[np.uint64(y + i)] = tanh(arena[np.uint64(y + i)])


@jit_contract
def activate_back(s, arena, first, rows):
    """Set the slopes by the inputs of ReLU or tanh, for some examples."""
    for r in range(first, first + rows):
        y = s.y + r * s.y_apart
        dy = s.dy + r * s.dy_apart
        if s.kind == RELU:
            for i in range(s.y_size):
                value = arena[np.uint64(y + i)]
                arena[np.uint64(dy + i)] = relu_back(value, arena[np.uint64(dy + i)])
        else:
            for i in range(s.y_size):
                value = arena[np.uint64(y + i)]
                arena[np.uint64(dy + i)] *= ONE - value * value


# ---- Losses


@jit_contract
def loss_slopes(s, loss, arena, examples, batch, share):
    """Set the slopes of Σ share·loss by the outputs of the last stage."""
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
            weight = share
            if label == PADDING:
                weight = ZERO
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


@jit_contract
def weights_of(s, model, constants):
    """The array that holds a stage's weights."""
    if s.frozen:
        return constants
    return model


@jit_contract
def forward_image(s, arena, r):
    """Compute the outputs of a stage up to the flattening for example r."""
    if s.kind == CONVOLUTION:
        convolution(s, arena, r)
    elif s.kind == MAX_POOL or s.kind == MEAN_POOL:
        pool(s, arena, r)
    elif s.kind == FLATTEN:
        flatten(s, arena, r)
    else:
        activate(s, arena, r, 1)


@jit_contract
def image_back(s, arena, r, pass_on):
    """Compute the slopes by the inputs of a stage up to the flattening for example r."""
    if s.kind == CONVOLUTION:
        convolution_back(s, arena, r, pass_on)
    elif s.kind == MAX_POOL or s.kind == MEAN_POOL:
        pool_back(s, arena, r)
    elif s.kind == FLATTEN:
        flatten_back(s, arena, r)
    else:
        activate_back(s, arena, r, 1)


@jit_contract
def forward_images(program, model, arena, rows):
    """Compute the outputs of the stages up to the flattening, one example after another."""
    stages = program.stages
    for i in range(program.front):
        s = stages[i]
        if s.kind == CONVOLUTION:
            set_kernels(s, weights_of(s, model, program.constants), arena)
            clear(arena, s.kernel_slopes, s.filters * taps(s))
    for r in range(rows):
        for i in range(program.front):
            forward_image(stages[i], arena, r)


@jit_contract
def images_back(program, arena, rows, into, scale):
    """Add ``scale`` times the slopes by the weights of convolutions to ``into``."""
    stages = program.stages
    lowest = program.lowest
    for r in range(rows):
        for i in range(program.front - 1, lowest - 1, -1):
            image_back(stages[i], arena, r, i > lowest)
    for i in range(lowest, program.front):
        if stages[i].kind == CONVOLUTION and not stages[i].frozen:
            add_kernel_slopes(stages[i], arena, into, scale)


@jit_merged
def forward(s, model, constants, arena, rows):
    """Compute the outputs of a stage after the flattening."""
    if s.kind == LINEAR:
        linear(s, weights_of(s, model, constants), arena, rows)
    else:
        activate(s, arena, 0, rows)


@jit_merged
def back(s, model, constants, arena, rows, into, scale, pass_on):
    """Compute the slopes by the inputs of a stage after the flattening.

    ``scale`` times the slopes by the weights of a dense stage are added to ``into``.
    """
    if s.kind == LINEAR:
        weights = weights_of(s, model, constants)
        linear_back(s, weights, arena, rows, into, scale, pass_on)
    else:
        activate_back(s, arena, 0, rows)


@jit_merged
def step(program, images, model, arena, examples, batch, share, into, scale):
    """Add ``scale`` times the slopes of one batch to ``into``.

    The batch's examples are where the first stage reads. ``images`` is as in `train_users`.
    """
    stages = program.stages
    constants = program.constants
    front = program.front
    lowest = program.lowest
    rows = batch.size
    last = program.stages.size - 1
    if images is not None:
        forward_images(program, model, arena, rows)
    for i in range(front, last + 1):
        forward(stages[i], model, constants, arena, rows)
    loss_slopes(stages[last], program.loss, arena, examples, batch, share)
    for i in range(last, max(front, lowest) - 1, -1):
        back(stages[i], model, constants, arena, rows, into, scale, i > lowest)
    if images is not None:
        images_back(program, arena, rows, into, scale)


@jit_contract
def put_example(s, arena, example, r):
    """Copy example r of a batch to where the first stage reads."""
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


@jit_merged
def train_user(program, images, received, examples, u, arena, model):
    """Set ``model`` to one user's model after local training."""
    clear(arena, 0, arena.size)
    for i in range(received.size):
        model[i] = received[i]
    rate = program.rule[0]
    momentum = program.rule[1]
    proximal = program.rule[2]
    plain = momentum == 0 and proximal == 0
    velocity = arena[: received.size]
    into = velocity
    scale = ONE
    if plain:
        into = model
        scale = -rate
    for t in range(examples.active.size):
        if examples.active[t] <= u:
            break
        size = 0
        while size < examples.rows.shape[2] and examples.weights[t, u, size] > 0:
            size += 1
        batch = examples.rows[t, u, :size]
        share = examples.weights[t, u, 0]
        for r in range(size):
            put_example(program.stages[0], arena, examples.features[batch[r]], r)
        if not plain:
            for i in range(received.size):
                velocity[i] = momentum * velocity[i] + proximal * (model[i] - received[i])
        step(program, images, model, arena, examples, batch, share, into, scale)
        if not plain:
            for i in range(received.size):
                model[i] -= rate * velocity[i]


@jit_contract
def labels_are_valid(program, examples):
    """Whether all labels of these users are classes, or padding."""
    classes = program.stages[program.stages.size - 1].outputs
    for row in examples.rows.flat:
        label = examples.labels[row]
        if label != PADDING and not 0 <= label < classes:
            return False
    return True


@jit_merged
def train_users(program, images, received, examples, arena, models, stride):
    """Train users one after another.

    Args:
        program: a `Program`.
        images: None leaves all stages up to a flattening out of the machine code, which takes a
            third of the time to compile; else any number.
        received: θ_t, shape (d,).
        examples: `Examples` of the users.
        arena: array of the size that the program needs; any contents.
        models: set to the users' models; that of user u is d numbers from u·stride on.
        stride: numbers from the beginning of a user's model to that of the next.

    Returns:
        Whether users were trained: not if a label is no class.
    """
    if program.loss == CROSS_ENTROPY and not labels_are_valid(program, examples):
        return False
    for u in range(examples.rows.shape[1]):
        model = models[u * stride : u * stride + received.size]
        train_user(program, images, received, examples, u, arena, model)
    return True


def signature() -> Any:
    """Return the types of `train_on_rows` and `train_on_images`."""
    from numba import from_dtype, types

    floats = types.float32
    integers = types.int64
    program = from_dtype(STAGE)[::1], integers, integers, integers, floats[::1], floats[::1]
    examples = (
        floats[:, ::1],
        integers[::1],
        floats[:, ::1],
        integers[:, :, ::1],
        floats[:, :, ::1],
        integers[::1],
    )
    return types.boolean(
        types.NamedTuple(program, Program),
        floats[::1],
        types.NamedTuple(examples, Examples),
        floats[::1],
        floats[::1],
        integers,
    )


@compiled(signature, fastmath={"contract"})
def train_on_rows(program, received, examples, arena, models, stride):
    """Train users of a model without convolutions; see `train_users`."""
    return train_users(program, None, received, examples, arena, models, stride)


@compiled(signature, fastmath={"contract"})
def train_on_images(program, received, examples, arena, models, stride):
    """Train users of a model with stages up to a flattening; see `train_users`."""
    return train_users(program, 0, received, examples, arena, models, stride)
