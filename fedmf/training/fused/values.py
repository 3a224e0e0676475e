"""What the compiled passes work on, as tuples of arrays."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmf.training.blocks import LANES

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]

#: Kinds of stages: a dense layer that nobody trains, those from `DENSE` on that users train. A low-rank layer
#: W·h + b + B·(s·A·h) is two of them: `DOWN` sets s·A·h, and W·h + b where `UP` adds B times that.
CONVOLUTION, FLATTEN, FROZEN, DENSE, DOWN, UP = range(6)


class Plan(NamedTuple):
    """The stages of a model, one after the other; arrays have an entry for each.

    Images are held pixel by pixel with the channels of a pixel side by side, surrounded by the zeros that
    padding asks for. Channels and dense rows are padded with zeros to whole vectors; those of the first
    image are not where a line of the kernel fits a vector anyway ("narrow").

    Attributes:
        kind: `CONVOLUTION`, `FLATTEN`, `FROZEN`, `DENSE`, `DOWN` or `UP`.
        inputs: channels; of a dense stage its inputs.
        wide: the same with padding: how far pixels, or the weights of two outputs, lie apart.
        height, width: of the image, with its zeros.
        margin: how many zeros on each side.
        outputs, outputs_wide: channels or numbers that come out, and with padding.
        side: of the kernel.
        run: weights of one line of a kernel, with padding.
        pool: 2 where the largest of 2×2 pixels goes on, else 1.
        rectified: 1 where ReLU follows, else 0.
        size: numbers of an input; one more entry for the model's outputs.
        weights_at, biases_at: where they begin in parameters as they are held here.
        turned_at: where the kernels begin that are turned for the way forward; one more entry for their end.
        marks_at: where the marks of pooling begin, for one example; one more entry for their end.
        flat_weights, flat_biases: where they begin in the flat vector; −1 for no biases.
        lowest: the first stage that is trained; the outputs of those below are made once for each example.
        scale: s, of a stage `DOWN`.
        constants: what nobody trains, padded with zeros: of a stage Wᵀ as vectors of 16 columns below one
            another, shape (padded outputs/16, inputs, 16), then b, then W if gradients go back through it.
        constants_at: where W and b of a stage `FROZEN`, and those beside a stage `DOWN`, begin.
    """

    kind: Integers
    inputs: Integers
    wide: Integers
    height: Integers
    width: Integers
    margin: Integers
    outputs: Integers
    outputs_wide: Integers
    side: Integers
    run: Integers
    pool: Integers
    rectified: Integers
    size: Integers
    weights_at: Integers
    biases_at: Integers
    turned_at: Integers
    marks_at: Integers
    flat_weights: Integers
    flat_biases: Integers
    lowest: int
    scale: Floats
    constants: Floats
    constants_at: Integers


class Work(NamedTuple):
    """Memory of one user's training, cleared for the next one.

    Attributes:
        begin: where the inputs of a stage begin, for all examples of a step.
        inputs: of all stages; the model's outputs last.
        slopes: −η times the gradients of the loss in them.
        marks: see `largest_of`, of all stages, example by example.
        marked: how many marks an example has, shape (1,).
        parameters: the user's, as held here.
        velocity: −η·v; empty without momentum and FedProx.
        moved: −η times the gradient of kernels, and of all biases.
        turned: kernels for the way forward.
        lines: two lines of a convolution's outputs.
        shifts: where the pixels lie that a mark of 0 … 3 means, from the first on.
        places, amounts: what a channel of outputs passes back: where, and how much.
        labels, shares: of a step's examples.
        below: what comes into the lowest stage that is trained, of all of the user's examples; empty if that
            is the first.
        row: the update, as the flat vector has it.
    """

    begin: Integers
    inputs: Floats
    slopes: Floats
    marks: NDArray[np.uint8]
    marked: Integers
    parameters: Floats
    velocity: Floats
    moved: Floats
    turned: Floats
    lines: Floats
    shifts: Integers
    places: Integers
    amounts: Floats
    labels: Integers
    shares: Floats
    below: Floats
    row: Floats


def aligned(size: int) -> Floats:
    """Zeros that begin where a vector does: loads across the lines of a cache take twice the time."""
    room = np.zeros(int(size) + LANES, np.float32)
    first = -(room.ctypes.data // room.itemsize) % LANES
    return room[first : first + int(size)]


#: Vectors may be read this far beyond the end of an image.
SLACK: Final = LANES


#: Examples whose way through frozen stages is taken at once, if a user has so many.
BELOW_AT_ONCE: Final = 24


def work(plan: Plan, held: int, width: int, most: int, plain: bool, dimension: int) -> Work:
    """Memory for steps of at most ``width`` examples of users of d parameters that take ``held`` numbers and
    own at most ``most`` examples. It is full of NaN: what is not cleared for a user shows."""
    if plan.lowest > 0:
        width = max(width, min(most, BELOW_AT_ONCE))
    begin = np.concatenate([[0], np.cumsum(plan.size * width)])
    pixels, marked = plan.height * plan.width, plan.marks_at[-1:]
    memory = Work(
        begin=begin,
        inputs=aligned(begin[-1] + SLACK),
        slopes=aligned(begin[-1] + SLACK),
        marks=np.zeros(int(marked[0]) * width, np.uint8),
        marked=marked,
        parameters=aligned(held),
        velocity=aligned(0 if plain else held),
        moved=aligned(held),
        turned=aligned(plan.turned_at[-1]),
        lines=aligned(2 * (plan.width * plan.outputs_wide).max()),
        shifts=np.zeros(5, np.int64),
        places=np.zeros(1 + int(pixels.max()), np.int64),
        amounts=aligned(1 + pixels.max()),
        labels=np.zeros(width, np.int64),
        shares=aligned(width),
        below=aligned(most * plan.size[plan.lowest] if plan.lowest > 0 else 0),
        row=aligned(dimension),
    )
    for values in memory:
        if values.dtype == np.float32:
            values.fill(np.nan)
    return memory
