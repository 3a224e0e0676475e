"""The layout of a chain of layers as the table that compiled steps walk.

It says for each layer where its weights lie in the model and where its numbers lie in the arena.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.training.compiled import steps
from fedmf.training.compiled.chain import Layer, NotAChain

_KINDS: Final = {
    "linear": steps.LINEAR,
    "convolution": steps.CONVOLUTION,
    "max pool": steps.MAX_POOL,
    "mean pool": steps.MEAN_POOL,
    "reshape": steps.FLATTEN,
    "relu": steps.RELU,
    "tanh": steps.TANH,
}
_IN_PLACE: Final = (steps.RELU, steps.TANH)
_POOLING: Final = (steps.MAX_POOL, steps.MEAN_POOL)

#: A row of the table, a `steps.STAGE` with its fields as attributes.
_Stage: TypeAlias = Any


class _Image(NamedTuple):
    """One example between two stages: an image in a frame of zeros, or a row of numbers.

    Attributes:
        line: numbers of a line, frame included; a row of numbers is one line.
        first: numbers of the frame before the first pixel.
        size: numbers in all.
    """

    line: int
    first: int
    size: int


class _Buffer(NamedTuple):
    """Numbers between two stages, and the slopes of the loss by them.

    Attributes:
        values, slopes: where they begin in the arena.
        values_apart, slopes_apart: numbers from an example to the next; 0 if only one is held.
        image: the layout of one example.
    """

    values: int
    slopes: int
    values_apart: int
    slopes_apart: int
    image: _Image


class _Arena:
    """Hands out parts of an array one after the other, each on a cache line."""

    def __init__(self) -> None:
        self.size = 0

    def part(self, count: int) -> int:
        """Reserve ``count`` numbers and return where they begin."""
        begin = self.size
        self.size += -(-int(count) // steps.LINE) * steps.LINE
        return begin

    def buffer(self, image: _Image, values_of: int, slopes_of: int) -> _Buffer:
        """Reserve the values of some examples, and the slopes of some."""
        values = self.part(values_of * image.size)
        slopes = self.part(slopes_of * image.size)
        return _Buffer(
            values, slopes, _apart(image.size, values_of), _apart(image.size, slopes_of), image
        )


def _apart(size: int, examples: int) -> int:
    if examples == 1:
        return 0
    return size


class _Weights:
    """The places of weights: in the model, or among constants if they are frozen.

    Args:
        places: where trained parameters begin in the flat vector, by their ids.
    """

    def __init__(self, places: Mapping[int, int]) -> None:
        self._places = dict(places)
        self._constants = [np.zeros(1, np.float32)]

    @property
    def constants(self) -> NDArray[np.float32]:
        """All frozen weights, one after the other."""
        return np.concatenate(self._constants)

    def place_of(self, name: str, parameter: Tensor | None, frozen: bool) -> int:
        """Return where a parameter begins, -1 for none; a trained one has only one layer."""
        if parameter is None:
            return -1
        if frozen and parameter.dtype == torch.float32:
            place = self.constants.size
            self._constants.append(parameter.detach().numpy().ravel())
            return place
        if id(parameter) in self._places:
            return self._places.pop(id(parameter))
        raise NotAChain(f"a {name} is frozen, shared by two layers or not a parameter")


def lay_out(
    layers: Sequence[Layer], places: Mapping[int, int], width: int, velocity: int
) -> tuple[steps.Program, int]:
    """Lay out a chain as a program; its loss and rule are set by the caller.

    Args:
        layers: from features to outputs.
        places: where trained parameters begin in the flat vector, by their ids.
        width: most examples in a step.
        velocity: numbers at the beginning of the arena that momentum takes.

    Returns:
        The program, and how many numbers its arena has.

    Raises:
        NotAChain: a layer is not one of those that are compiled.
    """
    needed = _without_views(_pools_first(layers))
    table = np.zeros(len(needed), steps.STAGE)
    stages = list(table.view(np.recarray))
    weights = _Weights(places)
    for s, layer in zip(stages, needed, strict=True):
        _describe(s, layer)
        s.frozen = not layer.trained
        s.weight = weights.place_of("weight", layer.weight, s.frozen)
        s.bias = weights.place_of("bias", layer.bias, s.frozen)
    if not stages or stages[-1].kind != steps.LINEAR or table["frozen"].all():
        raise NotAChain("the last layer is not dense, or none is trained")
    arena = _Arena()
    arena.part(velocity)
    _place_in_arena(stages, width, arena)
    program = steps.Program(
        stages=table,
        front=int(np.flatnonzero(table["channels"] == 0)[0]),
        lowest=int(np.flatnonzero(table["frozen"] == 0)[0]),
        loss=steps.CROSS_ENTROPY,
        rule=np.zeros(3, np.float32),
        constants=weights.constants,
    )
    return program, arena.size


def _pools_first(layers: Sequence[Layer]) -> list[Layer]:
    """Move activations behind a max pooling that follows them.

    They are increasing functions, so the largest number stays the largest.
    """
    before = [layer for layer in layers if layer.kind != "nothing"]
    ordered = list(before)
    for i, (activation, pool) in enumerate(pairwise(before)):
        if activation.kind in ("relu", "tanh") and pool.kind == "max pool":
            ordered[i] = pool
            ordered[i + 1] = activation._replace(before=pool.after, after=pool.after)
    return ordered


def _without_views(layers: Sequence[Layer]) -> list[Layer]:
    """Drop reshapes that move no numbers, such as all of the features'."""
    needed: list[Layer] = []
    for layer in layers:
        if layer.kind == "reshape" and (not needed or layer.before == layer.after):
            continue
        needed.append(layer)
    return needed


def _describe(s: _Stage, layer: Layer) -> None:
    """Set a stage's kind and sizes."""
    dimensions = len(layer.before)
    known = layer.kind in _KINDS and dimensions in (1, 3)
    if layer.kind == "linear":
        known = dimensions == 1
    if layer.kind == "reshape":
        known = dimensions == 3 and len(layer.after) == 1
    if not known:
        raise NotAChain(f"{layer.kind} of shape {layer.before} is not compiled")
    s.kind = _KINDS[layer.kind]
    s.inputs = math.prod(layer.before)
    s.outputs = math.prod(layer.after)
    if len(layer.before) == 3:
        s.channels, s.height, s.width = layer.before
    if len(layer.after) == 3:
        s.filters, s.lines, s.pixels = layer.after
    s.side_y, s.side_x = layer.side
    s.step_y, s.step_x = layer.step
    s.edge_y, s.edge_x = layer.edge


def _place_in_arena(stages: list[_Stage], width: int, arena: _Arena) -> None:
    """Give every stage its places in the arena; activations work in place."""
    features = _inputs_of(stages[0], _frame_for(stages))
    buffer = arena.buffer(features, values_of=width, slopes_of=1)
    for i, s in enumerate(stages):
        following = stages[i + 1 :]
        _read_from(s, buffer)
        if s.kind not in _IN_PLACE:
            image = _outputs_of(s, _frame_for(following))
            buffer = arena.buffer(
                image, _examples_held(s, following, width), _slopes_held(s, width)
            )
        _write_to(s, buffer)
        _place_own_numbers(s, width, arena)


def _examples_held(s: _Stage, following: list[_Stage], width: int) -> int:
    """How many examples' outputs are held: one example's if only pooling reads them."""
    if s.kind == steps.CONVOLUTION and following and following[0].kind in _POOLING:
        return 1
    return width


def _slopes_held(s: _Stage, width: int) -> int:
    """How many examples' slopes by the outputs are held: one example's if these are an image."""
    if s.filters:
        return 1
    return width


def _read_from(s: _Stage, buffer: _Buffer) -> None:
    s.x = buffer.values
    s.dx = buffer.slopes
    s.x_apart = buffer.values_apart
    s.dx_apart = buffer.slopes_apart
    s.x_line = buffer.image.line
    s.x_first = buffer.image.first
    s.x_size = buffer.image.size


def _write_to(s: _Stage, buffer: _Buffer) -> None:
    s.y = buffer.values
    s.dy = buffer.slopes
    s.y_apart = buffer.values_apart
    s.dy_apart = buffer.slopes_apart
    s.y_line = buffer.image.line
    s.y_first = buffer.image.first
    s.y_size = buffer.image.size


def _place_own_numbers(s: _Stage, width: int, arena: _Arena) -> None:
    """Reserve the numbers that a pooling or convolution needs for itself."""
    if s.kind == steps.MAX_POOL:
        s.marks = arena.part(width * s.outputs)
    elif s.kind == steps.CONVOLUTION:
        count = s.lines * s.pixels
        taps = s.side_y * s.side_x * s.channels + 1
        s.transposed = s.side_x * s.channels < steps.LINE
        s.columns = arena.part(count * taps)
        s.places = arena.part(count * s.filters)
        s.kernels = arena.part(s.filters * taps)
        s.kernels_transposed = arena.part(s.filters * taps)
        s.kernel_slopes = arena.part(s.filters * taps)
        s.example_slopes = arena.part(s.filters * taps)


def _frame_for(stages: list[_Stage]) -> tuple[int, int]:
    """Lines and pixels of the frame that the first of these stages needs, past activations."""
    for s in stages:
        if s.kind not in _IN_PLACE:
            return int(s.edge_y), int(s.edge_x)
    return 0, 0


def _inputs_of(s: _Stage, frame: tuple[int, int]) -> _Image:
    if not s.channels:
        return _row(int(s.inputs))
    return _image(int(s.channels), int(s.height), int(s.width), frame)


def _outputs_of(s: _Stage, frame: tuple[int, int]) -> _Image:
    if not s.filters:
        return _row(int(s.outputs))
    return _image(int(s.filters), int(s.lines), int(s.pixels), frame)


def _row(numbers: int) -> _Image:
    return _Image(numbers, 0, numbers)


def _image(channels: int, height: int, width: int, frame: tuple[int, int]) -> _Image:
    lines, pixels = frame
    line = (width + 2 * pixels) * channels
    return _Image(line, first=lines * line + pixels * channels, size=(height + 2 * lines) * line)
