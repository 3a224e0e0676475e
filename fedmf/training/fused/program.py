"""Which models and users compiled local steps are for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedmf.data import TensorStructure
from fedmf.training.barrier import Group, add_users
from fedmf.training.blocks import LANES, Examples, Rule, padded
from fedmf.training.clipping import Into, UpdateSum
from fedmf.training.fused.steps import train_and_sum
from fedmf.training.fused.values import CONVOLUTION, DENSE, FLATTEN, Plan, aligned, work
from fedmf.training.gradients import layers_of
from fedmf.training.local_sgd import LocalSGD
from fedmf.training.losses import cross_entropy
from fedmf.training.task import Task

#: Sides of kernels that are written out.
SIDES = (3, 5)


@dataclass(frozen=True)
class Stage:
    """One stage; see `Plan` for the fields."""

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
        return self.outputs * self.wide if self.kind == DENSE else 0

    @property
    def weights(self) -> int:
        """Numbers of the weights in the flat vector."""
        if self.kind == CONVOLUTION:
            return self.outputs * self.inputs * self.side**2
        return self.outputs * self.inputs if self.kind == DENSE else 0

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
        column = lambda of: np.array([of(stage) for stage in stages], dtype=np.int64)  # noqa: E731
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
            elif stage.kind == DENSE:
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


def laid_out(modules: list[nn.Module], shape: tuple[int, ...]) -> Layout | None:
    """The stages of a chain of convolutions and dense layers, on examples of a shape; None for others."""
    stages: list[Stage] = []
    image: tuple[int, ...] = tuple(shape)
    for module in modules:
        stage = _next(module, image, not stages)
        if stage is not None:
            stages.append(stage)
            image = stage.image if stage.kind == CONVOLUTION else (stage.outputs,)
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
    if not stages or stages[-1].kind != DENSE or stages[-1].rectified:
        return None
    return Layout(tuple(stages))


def _next(module: nn.Module, image: tuple[int, ...], first: bool) -> Stage | None:
    """The stage of a convolution or dense layer that is written out."""
    if type(module) is nn.Linear and image == (module.in_features,):
        return Stage(DENSE, module.in_features, module.out_features, module.bias is not None, first=first)
    if type(module) is not nn.Conv2d or len(image) != 3 or image[0] != module.in_channels:
        return None
    side, padding = module.kernel_size[0], module.padding
    plain = module.stride == module.dilation == (1, 1) and module.groups == 1
    if not plain or module.padding_mode != "zeros" or isinstance(padding, str):
        return None
    if module.kernel_size != (side, side) or side not in SIDES or padding[0] != padding[1]:
        return None
    height, width = (n + 2 * padding[0] for n in image[1:])
    return Stage(
        CONVOLUTION,
        module.in_channels,
        module.out_channels,
        module.bias is not None,
        height=height,
        width=width,
        margin=padding[0],
        side=side,
        first=first,
    )


def _pools(module: nn.Module) -> bool:
    """Whether a module takes the largest of 2×2 pixels."""
    if type(module) is not nn.MaxPool2d:
        return False
    sizes = [
        value if isinstance(value, tuple) else (value, value)
        for value in (module.kernel_size, module.stride, module.padding, module.dilation)
    ]
    return sizes == [(2, 2), (2, 2), (0, 0), (1, 1)] and not module.ceil_mode and not module.return_indices


class ReceivedModel:
    """A model at the received parameters.

    Args:
        layout: its stages.
        rule: of local SGD.
        origin: θ_t as the layout holds it.
    """

    def __init__(self, layout: Layout, rule: Rule, origin: NDArray[np.float32]) -> None:
        self._layout, self._rule, self._origin = layout, rule, origin

    def add_to(self, total: UpdateSum, group: Group) -> Iterator[tuple[int, tuple[str, str]]]:
        """See `add_users`."""
        return add_users(total, group, self._compute)

    def _compute(
        self,
        examples: Examples,
        outcome: NDArray[np.int64],
        clip_norm: float,
        scale: float,
        into: Into,
    ) -> None:
        plain = self._rule.momentum == 0.0 and self._rule.proximal == 0.0
        plan, width = self._layout.plan, examples.rows.shape[2]
        memory = work(plan, self._origin.size, width, plain, into.total.size)
        train_and_sum(plan, self._rule, self._origin, examples, memory, clip_norm, scale, into, outcome)


class FusedProgram:
    """Local SGD of chains of convolutions and dense layers under cross-entropy, from examples to the integers
    of clipped updates: one user after another, all steps in one compiled call.

    Guarantees:
        A user's integers are a function of its own examples and the received model, to the bit, whoever is
        trained beside it, in whatever groups and threads. They enter the sum as every user's do.

    Args:
        layout: the model's stages.
        local: local SGD.
    """

    def __init__(self, layout: Layout, local: LocalSGD) -> None:
        self._layout, self._local = layout, local

    @classmethod
    def of(cls, task: Task, local: LocalSGD) -> FusedProgram | None:
        """The program for a task's model, None if that is no such chain or is to be computed otherwise."""
        features, labels = task.structure.features, task.structure.labels
        examples = isinstance(features, TensorStructure) and features.dtype == torch.float32
        classes = labels.dtype == torch.int64 and not labels.shape
        wished = local.engine == "auto" and local.precision == "float32" and task.device.type == "cpu"
        if not (wished and examples and classes and task.loss is cross_entropy):
            return None
        if layers_of(task.model, task.device) is None:  # hooks, or parameters that are used twice
            return None
        layout = laid_out(list(_chain(task.model.module)), features.shape)
        if layout is None or layout.dimension != task.model.dimension:
            return None
        return cls(layout, local)

    def cost(self, examples: int) -> float:
        """Multiply-adds of a user who owns so many examples, beyond those that every program needs; infinite
        without examples.

        Copying the weights, the norm and the integers take the time of 40 multiply-adds a weight (measured),
        and in later epochs weights meet every example again, forward and in the step.
        """
        if examples == 0:
            return math.inf
        return self._layout.dimension * (40.0 + 2.0 * examples * (self._local.epochs - 1))

    def received(self, origin: Tensor) -> ReceivedModel:
        """The model of a round: θ_t, shape (d,), float32."""
        local = self._local
        rule = Rule(local.learning_rate, local.momentum, local.proximal)
        return ReceivedModel(self._layout, rule, self._layout.packed(origin.detach().numpy()))


def _chain(module: nn.Module) -> Iterator[nn.Module]:
    if type(module) is nn.Sequential:
        for child in module:
            yield from _chain(child)
    elif type(module) is not nn.Identity:
        yield module
