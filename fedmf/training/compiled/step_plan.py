"""A chain of layers as the table that compiled steps walk: where in the arena each layer's numbers
lie.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedmf.training.compiled import steps
from fedmf.training.compiled.chain import Layer, NotAChain

_KINDS: Final = {
    "linear": steps.LINEAR,
    "convolution": steps.CONVOLUTION,
    "max pool": steps.MAX_POOL,
    "mean pool": steps.MEAN_POOL,
    "relu": steps.RELU,
    "tanh": steps.TANH,
}
_IN_PLACE: Final = (steps.RELU, steps.TANH)
_POOLING: Final = (steps.MAX_POOL, steps.MEAN_POOL)


class _Image(NamedTuple):
    """Numbers between two stages: an image in a frame of zeros, or the inputs of a dense layer."""

    line: int
    first: int
    size: int


class _Room:
    """Hands out parts of an array one after the other, each on a cache line."""

    def __init__(self) -> None:
        self.numbers = 0

    def __call__(self, count: Any) -> int:
        begin = self.numbers
        self.numbers += -(-int(count) // steps.LINE) * steps.LINE
        return begin


def planned(
    layers: Sequence[Layer], places: Mapping[int, int], width: int, velocity: int
) -> tuple[steps.Program, int]:
    """A chain as a program, with loss and rule to be put in, and how many numbers its arena has.

    Args:
        layers: from features to outputs.
        places: where in the flat vector trained parameters begin, by their ids.
        width: examples in a step at most.
        velocity: numbers at the beginning of the arena that momentum takes.

    Raises:
        NotAChain: a layer is not one of those that are compiled.
    """
    constants: list[NDArray[np.float32]] = [np.zeros(1, np.float32)]
    stages = _stages(_pools_first(layers), dict(places), constants)
    if not stages or stages[-1]["kind"] != steps.LINEAR or all(s["frozen"] for s in stages):
        raise NotAChain("the last layer is not dense, or none is trained")
    room = _Room()
    room(velocity)
    _lay_out(stages, width, room)
    table = np.array(stages, steps.STAGE)
    nothing = np.zeros(3, np.float32)
    front = int(np.flatnonzero(table["channels"] == 0)[0])
    lowest = int(np.flatnonzero(table["frozen"] == 0)[0])
    return steps.Program(table, front, lowest, 0, nothing, np.concatenate(constants)), room.numbers


def _pools_first(layers: Sequence[Layer]) -> list[Layer]:
    """Activations after the pooling that follows them: they rise, so the largest number stays the
    largest.
    """
    ordered = [layer for layer in layers if layer.kind != "nothing"]
    for i, (one, other) in enumerate(pairwise(ordered)):
        if one.kind in ("relu", "tanh") and other.kind == "max pool":
            ordered[i], ordered[i + 1] = other, one._replace(before=other.after, after=other.after)
    return ordered


def _stages(
    layers: Sequence[Layer], places: dict[int, int], constants: list[NDArray[np.float32]]
) -> list[NDArray[Any]]:
    """Stages without places in the arena."""
    stages: list[NDArray[Any]] = []
    for layer in layers:
        before = layer.before
        after = layer.after
        s = np.zeros((), steps.STAGE)
        s["inputs"] = math.prod(before)
        s["outputs"] = math.prod(after)
        s["weight"] = -1
        s["bias"] = -1
        if len(before) == 3:
            s["channels"], s["height"], s["width"] = before
        if len(after) == 3:
            s["filters"], s["lines"], s["pixels"] = after
        if layer.kind == "reshape" and (not stages or before == after):
            continue  # features are only looked at otherwise
        if layer.kind == "reshape" and (len(before), len(after)) == (3, 1):
            s["kind"] = steps.FLATTEN
        elif (
            layer.kind in _KINDS
            and len(before) in (1, 3)
            and (layer.kind != "linear" or len(before) == 1)
        ):
            s["kind"] = _KINDS[layer.kind]
        else:
            raise NotAChain(f"{layer.kind} of a shape {before} is not compiled")
        (s["side_y"], s["side_x"]), (s["step_y"], s["step_x"]) = layer.side, layer.step
        s["edge_y"], s["edge_x"] = layer.edge
        _put_weights(s, layer, places, constants)
        stages.append(s)
    return stages


def _put_weights(
    s: NDArray[Any], layer: Layer, places: dict[int, int], constants: list[NDArray[np.float32]]
) -> None:
    parts = {"weight": layer.weight, "bias": layer.bias}
    given = {name: part for name, part in parts.items() if part is not None}
    s["frozen"] = not any(part.requires_grad for part in given.values())
    for name, part in given.items():
        if s["frozen"] and part.dtype == torch.float32:
            s[name] = sum(values.size for values in constants)
            constants.append(part.detach().numpy().ravel())
        elif id(part) in places:
            s[name] = places.pop(id(part))
        else:
            raise NotAChain(f"a {name} is frozen, of two layers or no parameter")


def _lay_out(stages: list[NDArray[Any]], width: int, room: _Room) -> None:
    """Give every stage its places in the arena. Activations work in place."""
    shape = (stages[0]["channels"], stages[0]["height"], stages[0]["width"])
    image = _image(*shape, _reader(stages, 0), stages[0]["inputs"])
    slots = {
        "x": room(width * image.size),
        "dx": room(image.size),
        "x_apart": image.size,
        "dx_apart": 0,
    }
    for i, s in enumerate(stages):
        for name, value in slots.items():
            s[name] = value
        s["x_line"], s["x_first"], s["x_size"] = image
        following = stages[i + 1]["kind"] if i + 1 < len(stages) else -1
        if s["kind"] not in _IN_PLACE:
            image = _image(
                s["filters"], s["lines"], s["pixels"], _reader(stages, i + 1), s["outputs"]
            )
            # Of an image that only pooling asks for, and of slopes by images, one example's are
            # enough.
            outputs = 1 if s["kind"] == steps.CONVOLUTION and following in _POOLING else width
            slopes = 1 if s["filters"] else width
            slots = {"x": room(outputs * image.size), "dx": room(slopes * image.size)}
            slots["x_apart"] = image.size if outputs > 1 else 0
            slots["dx_apart"] = image.size if slopes > 1 else 0
        for name, value in slots.items():
            s[name.replace("x", "y")] = value
        s["y_line"], s["y_first"], s["y_size"] = image
        if s["kind"] in _POOLING:
            s["marks"] = room(width * s["outputs"])
        elif s["kind"] == steps.CONVOLUTION:
            count = s["lines"] * s["pixels"]
            taps = s["side_y"] * s["side_x"] * s["channels"] + 1
            s["thin"] = s["side_x"] * s["channels"] < steps.LINE
            s["columns"], s["places"] = room(count * taps), room(count * s["filters"])
            for name in ("kernels", "across", "moved", "part"):
                s[name] = room(s["filters"] * taps)


def _reader(stages: list[NDArray[Any]], i: int) -> tuple[int, int]:
    """The padding of the stage that reads what stage i is given, past activations."""
    reader = next((s for s in stages[i:] if s["kind"] not in _IN_PLACE), None)
    return (0, 0) if reader is None else (int(reader["edge_y"]), int(reader["edge_x"]))


def _image(channels: Any, height: Any, width: Any, edges: tuple[int, int], numbers: Any) -> _Image:
    line = int(width + 2 * edges[1]) * int(channels)
    if not line:
        return _Image(int(numbers), 0, int(numbers))
    return _Image(
        line, edges[0] * line + edges[1] * int(channels), int(height + 2 * edges[0]) * line
    )
