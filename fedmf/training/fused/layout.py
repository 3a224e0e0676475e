"""The stages of a chain of layers, and parameters as compiled passes hold them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedmf.training.blocks import LANES, padded
from fedmf.training.compilable import adapted
from fedmf.training.fused.values import (
    CONVOLUTION,
    DENSE,
    DOWN,
    FLATTEN,
    FROZEN,
    UP,
    Floats,
    Integers,
    Plan,
    aligned,
)

#: Sides of kernels that are written out.
SIDES: Final = (3, 5)


@dataclass(frozen=True)
class Stage:
    """One stage; see `Plan` for the fields. ``constant`` are the weights and biases that nobody trains."""

    kind: int
    inputs: int
    outputs: int
    bias: bool = False
    height: int = 1
    width: int = 1
    margin: int = 0
    side: int = 1
    pool: int = 1
    rectified: bool = False
    first: bool = False
    scale: float = 1.0
    constant: nn.Linear | None = None

    @property
    def dense(self) -> bool:
        """Whether users train a matrix of it."""
        return self.kind >= DENSE

    @property
    def wide(self) -> int:
        """Numbers from pixel to pixel."""
        narrow = self.kind == CONVOLUTION and self.first and self.inputs * self.side <= LANES
        return self.inputs if narrow else padded(self.inputs)

    @property
    def run(self) -> int:
        """Numbers of a line of a kernel, a whole number of vectors."""
        return padded(self.side * self.wide)

    @property
    def held(self) -> int:
        """Numbers of the weights."""
        if self.kind == CONVOLUTION:
            return self.outputs * self.side * self.run
        return self.outputs * self.wide if self.dense else 0

    @property
    def weights(self) -> int:
        """Numbers of the weights in the flat vector."""
        if self.kind == CONVOLUTION:
            return self.outputs * self.inputs * self.side**2
        return self.outputs * self.inputs if self.dense else 0

    @property
    def image(self) -> tuple[int, int, int]:
        """Channels, height and width of what comes out."""
        height, width = ((n - self.side + 1) // self.pool for n in (self.height, self.width))
        return self.outputs, height, width


@dataclass(frozen=True)
class Layout:
    """Stages as compiled passes take them.

    Args:
        stages: from inputs to logits.
    """

    stages: tuple[Stage, ...]
    plan: Plan = field(init=False)

    def __post_init__(self) -> None:
        stages = self.stages
        sizes = [padded(s.height * s.width * s.wide) for s in stages] + [padded(stages[-1].outputs)]
        lowest = next(s for s, stage in enumerate(stages) if stage.weights)
        constants, constants_at = _constants(stages, lowest)

        def column(of: Callable[[Stage], Any]) -> Integers:
            return np.array([of(stage) for stage in stages], dtype=np.int64)

        held = _places(stages, lambda s: s.held, lambda s: padded(s.outputs) if s.weights else 0)
        flat = _places(stages, lambda s: s.weights, lambda s: s.outputs if s.bias else 0)
        flat_biases = np.where(column(lambda s: s.bias), flat[1], -1)
        turned = [s.side**2 * s.wide * padded(s.outputs) if s.kind == CONVOLUTION else 0 for s in stages]
        marks = [padded(s.outputs) * s.image[1] * s.image[2] if s.kind == CONVOLUTION else 0 for s in stages]
        plan = Plan(
            kind=column(lambda s: s.kind),
            inputs=column(lambda s: s.inputs),
            wide=column(lambda s: s.wide),
            height=column(lambda s: s.height),
            width=column(lambda s: s.width),
            margin=np.append(column(lambda s: s.margin), 0),
            outputs=column(lambda s: s.outputs),
            outputs_wide=column(lambda s: padded(s.outputs)),
            side=column(lambda s: s.side),
            run=column(lambda s: s.run),
            pool=column(lambda s: s.pool),
            rectified=column(lambda s: s.rectified),
            size=np.array(sizes),
            weights_at=held[0],
            biases_at=held[1],
            turned_at=np.cumsum([0, *turned]),
            marks_at=np.cumsum([0, *marks]),
            flat_weights=flat[0],
            flat_biases=flat_biases,
            lowest=lowest,
            scale=np.array([stage.scale for stage in stages], dtype=np.float32),
            constants=constants,
            constants_at=constants_at,
        )
        object.__setattr__(self, "plan", plan)

    @property
    def dimension(self) -> int:
        """d, the length of the flat vector."""
        return sum(s.weights + (s.outputs if s.bias else 0) for s in self.stages)

    @property
    def held(self) -> int:
        """Numbers that parameters take here."""
        return sum(s.held + (padded(s.outputs) if s.weights else 0) for s in self.stages)

    def packed(self, flat: NDArray[np.float32]) -> NDArray[np.float32]:
        """Parameters as they are held here, zeros between them."""
        held, plan = aligned(self.held), self.plan
        for s, stage in enumerate(self.stages):
            weights = flat[plan.flat_weights[s] :][: stage.weights]
            into = held[plan.weights_at[s] :][: stage.held]
            if stage.kind == CONVOLUTION:
                square = stage.side, stage.side
                kernels = np.zeros((stage.outputs, *square, stage.wide), np.float32)
                kernels[..., : stage.inputs] = weights.reshape(
                    stage.outputs, stage.inputs, *square
                ).transpose(0, 2, 3, 1)
                lines = into.reshape(stage.outputs, stage.side, stage.run)
                lines[..., : stage.side * stage.wide] = kernels.reshape(stage.outputs, stage.side, -1)
            elif stage.dense:
                into.reshape(stage.outputs, stage.wide)[:, : stage.inputs] = weights.reshape(
                    stage.outputs, stage.inputs
                )
            if stage.bias:
                place = plan.flat_biases[s]
                held[plan.biases_at[s] :][: stage.outputs] = flat[place : place + stage.outputs]
        return held


def _places(stages, weights, biases):
    """Where weights and biases begin if each stage has its weights, then its biases."""
    lengths = [length for stage in stages for length in (weights(stage), biases(stage))]
    starts = np.cumsum([0, *lengths[:-1]])
    return starts[0::2], starts[1::2]


def _constants(stages: tuple[Stage, ...], lowest: int) -> tuple[Floats, Integers]:
    """The numbers that nobody trains, and where those of each stage begin: see `Plan`."""
    parts = [_packed_constants(stage, s > lowest) for s, stage in enumerate(stages)]
    places = np.cumsum([0, *(part.size for part in parts)])
    held = aligned(places[-1])
    np.concatenate(parts, out=held)
    return held, places[:-1]


def _packed_constants(stage: Stage, back: bool) -> Floats:
    if (layer := stage.constant) is None:
        return np.empty(0, np.float32)
    whole = np.zeros((padded(layer.out_features), stage.wide), np.float32)
    whole[: layer.out_features, : layer.in_features] = layer.weight.detach().numpy()
    biases = np.zeros(len(whole), np.float32)
    if layer.bias is not None:
        biases[: layer.out_features] = layer.bias.detach().numpy()
    vectors = whole[:, : layer.in_features].reshape(-1, LANES, layer.in_features).transpose(0, 2, 1)
    return np.concatenate([vectors.ravel(), biases, *([whole.ravel()] if back else [])])


def laid_out(modules: list[nn.Module], shape: tuple[int, ...]) -> Layout | None:
    """The stages of a chain of convolutions and dense layers, on examples of a shape; None for others."""
    stages: list[Stage] = []
    image: tuple[int, ...] = tuple(shape)
    for module in modules:
        following = _next(module, image, not stages)
        if following:
            stages.extend(following)
            image = stages[-1].image if stages[-1].kind == CONVOLUTION else (stages[-1].outputs,)
        elif type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
            if stages and len(image) == 3:
                stages.append(Stage(FLATTEN, *(image[0], int(np.prod(image)), False, *image[1:])))
            image = (int(np.prod(image)),)
        elif type(module) is nn.ReLU and stages and stages[-1].kind != FLATTEN:
            stages[-1] = replace(stages[-1], rectified=True)
        elif _pools(module) and stages and stages[-1].kind == CONVOLUTION and stages[-1].pool == 1:
            stages[-1] = replace(stages[-1], pool=2)
            image = stages[-1].image
        else:
            return None
        if min(image) < 1:
            return None
    if not any(stage.weights for stage in stages) or stages[-1].rectified:
        return None
    if stages[-1].kind in (CONVOLUTION, FLATTEN):
        return None
    return Layout(tuple(stages))


def _next(module: nn.Module, image: tuple[int, ...], first: bool) -> list[Stage]:
    """The stages of a convolution or dense layer that is written out; none for others."""
    if type(module) is nn.Linear and image == (module.in_features,):
        sides = module.in_features, module.out_features
        if _frozen(module):
            return [Stage(FROZEN, *sides, constant=module)]
        return [Stage(DENSE, *sides, module.bias is not None, first=first)] if _trained(module) else []
    if (parts := adapted(module)) is not None:
        base, down, up, scale = parts
        trained = _trained(down) and _trained(up) and down.bias is None and up.bias is None
        if image != (base.in_features,) or not (trained and _frozen(base)):
            return []
        lower = Stage(DOWN, down.in_features, down.out_features, scale=scale, constant=base)
        return [lower, Stage(UP, up.in_features, up.out_features)]
    if type(module) is not nn.Conv2d or len(image) != 3 or image[0] != module.in_channels:
        return []
    side, padding = module.kernel_size[0], module.padding
    plain = module.stride == module.dilation == (1, 1) and module.groups == 1 and _trained(module)
    if not plain or module.padding_mode != "zeros" or isinstance(padding, str):
        return []
    if module.kernel_size != (side, side) or side not in SIDES or padding[0] != padding[1]:
        return []
    height, width = (n + 2 * padding[0] for n in image[1:])
    sides = module.in_channels, module.out_channels
    biases = module.bias is not None
    return [
        Stage(CONVOLUTION, *sides, biases, height, width, margin=padding[0], side=side, first=first),
    ]


def _trained(layer: nn.Module) -> bool:
    return all(parameter.requires_grad for parameter in layer.parameters())


def _frozen(layer: nn.Module) -> bool:
    """Whether nobody trains any of it, in the type that users compute in."""
    return not any(p.requires_grad or p.dtype != torch.float32 for p in layer.parameters())


def _pools(module: nn.Module) -> bool:
    """Whether a module takes the largest of 2×2 pixels."""
    if type(module) is not nn.MaxPool2d:
        return False
    sizes = [
        value if isinstance(value, tuple) else (value, value)
        for value in (module.kernel_size, module.stride, module.padding, module.dilation)
    ]
    return sizes == [(2, 2), (2, 2), (0, 0), (1, 1)] and not module.ceil_mode and not module.return_indices
