"""What the compiled passes work on, as tuples of arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedmf.compiled import compiled
from fedmf.training.blocks import LANES, Examples, padded
from fedmf.training.clipping import empty_vector

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]


class Chain(NamedTuple):
    """The received model: dense layers, each followed by a function of single entries.

    Columns are padded with zeros to whole vectors; the arrays of all layers lie one after the other.

    Attributes:
        weights: W_l, of each layer from the second on, as vectors of 16 columns below one another: shape
            (padded inputs/16, outputs, 16), so that a product reads them in one run.
        transposed: W_lᵀ likewise, shape (padded outputs/16, inputs, 16).
        biases: b_l, padded; zeros for a layer without.
        weights_at, transposed_at, biases_at: where those of layer l begin.
        flat_weights, flat_biases: where W_l and b_l begin in the flat vector; −1 for no b_l.
        sizes: inputs, then outputs of each layer; shape (layers + 1,).
        wide: the same, padded.
        activations: after each layer: 0 nothing, 1 ReLU, 2 tanh, 3 sigmoid.
    """

    weights: Floats
    transposed: Floats
    biases: Floats
    weights_at: Integers
    transposed_at: Integers
    biases_at: Integers
    flat_weights: Integers
    flat_biases: Integers
    sizes: Integers
    wide: Integers
    activations: Integers

    @property
    def dimension(self) -> int:
        """d, the length of the flat vector."""
        inputs, outputs = self.sizes[:-1], self.sizes[1:]
        return int((inputs * outputs).sum() + outputs[self.flat_biases >= 0].sum())


class Work(NamedTuple):
    """Memory of one user's pass, used again for the next one.

    Rows are those of all steps, one after the other; what belongs to layer l begins at ``begin[l]``.

    Attributes:
        begin: shape (layers + 2,).
        inputs: H_l, the input of each layer from the second on.
        gradients: D_l, gradients of the loss in each layer's output.
        changes: A_l = coefficient of the row's step times D_l.
        x: the user's examples, padded.
        base: x·W_1ᵀ + b_1.
        first: A_1 summed over all uses of an example, shape (examples, padded outputs).
        close: x·xᵀ, rows padded.
        near: how far its rows lie apart, shape (1,).
        across: a transposed history.
        mixed: products of a step's rows with the history.
        shift: the change of a bias.
        example: which example each row is.
        taken: how many rows each step has.
        labels, shares: of a step's rows.
        zeros: sixteen.
        row: the update, as the flat vector has it.
        velocity, moved: coefficients of the steps' gradients in v and in θ − θ_t.
    """

    begin: Integers
    inputs: Floats
    gradients: Floats
    changes: Floats
    x: Floats
    base: Floats
    first: Floats
    close: Floats
    near: Integers
    across: Floats
    mixed: Floats
    shift: Floats
    example: Integers
    taken: Integers
    labels: Integers
    shares: Floats
    zeros: Floats
    row: Floats
    velocity: NDArray[np.float64]
    moved: NDArray[np.float64]


@compiled
def _longest(edges):
    longest = 0
    for u in range(edges.size - 1):
        longest = max(longest, edges[u + 1] - edges[u])
    return longest


class Sizes(NamedTuple):
    """What decides how much memory a group's users need: most steps, rows of a step, examples of a user."""

    steps: int
    width: int
    examples: int


def sizes_of(examples: Examples) -> Sizes:
    """Those of a group."""
    steps, _, width = examples.rows.shape
    return Sizes(steps, width, int(_longest(examples.edges)))


def work(chain: Chain, sizes: Sizes) -> Work:
    """Memory for any user of a group."""
    (steps, width, most), wide = sizes, chain.wide
    history = steps * width
    begin = np.concatenate([[0, 0], np.cumsum(wide[1:] * history)]).astype(np.int64)
    long, near = padded(history), padded(most)
    floats = [
        begin[-1],
        begin[-1],
        begin[-1],
        most * wide[0],
        most * wide[1],
        most * wide[1],
    ]
    rows = [np.zeros(size, np.float32) for size in floats]
    return Work(
        begin,
        *rows,
        close=np.zeros(most * near, np.float32),
        near=np.array([near]),
        across=np.zeros(int(wide.max()) * long, np.float32),
        mixed=np.zeros(width * long, np.float32),
        shift=np.zeros(int(wide.max()), np.float32),
        example=np.zeros(history, np.int64),
        taken=np.zeros(steps, np.int64),
        labels=np.zeros(width, np.int64),
        shares=np.zeros(width, np.float32),
        zeros=np.zeros(LANES, np.float32),
        row=empty_vector(chain.dimension, torch.float32).numpy(),
        velocity=np.zeros(steps),
        moved=np.zeros(steps),
    )
