"""The engine that trains users by compiled steps."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from functools import cache
from itertools import accumulate
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.clipping.memory import new_vector
from fedmf.data.structure import TensorStructure
from fedmf.noise.jit import compiled
from fedmf.training.compiled import steps
from fedmf.training.compiled.chain import NotAChain, chain_of
from fedmf.training.compiled.step_plan import planned
from fedmf.training.engines import Engine
from fedmf.training.local_sgd import LocalSGD
from fedmf.training.losses import binary_cross_entropy, cross_entropy, squared_error
from fedmf.training.rng import kept_generators
from fedmf.training.task import Task
from fedmf.training.user_failures import Group, silent

_log = logging.getLogger("fedmf")

_LOSSES: Final[dict[Callable[..., Tensor], int]] = {
    cross_entropy: steps.CROSS_ENTROPY,
    squared_error: steps.SQUARED_ERROR,
    binary_cross_entropy: steps.BINARY_CROSS_ENTROPY,
}
#: Numbers in a cache line.
_LINE: Final = 16
#: Seconds before something is said.
_PATIENCE: Final = 5.0


class Compiled(Engine):
    """One user after another by compiled steps: chains of convolutions, pooling, dense layers, ReLU
    and tanh under cross-entropy, squared error or binary cross-entropy, in float32 on a processor.

    Args:
        task: model, loss and structure of examples.
        local: local SGD.

    Raises:
        NotAChain: the task is none of those.
    """

    def __init__(self, task: Task, local: LocalSGD) -> None:
        super().__init__(task, local)
        program, numbers = plan_of(task, local)
        rule = np.array([local.learning_rate, local.momentum, local.proximal], np.float32)
        self._program = program._replace(loss=_LOSSES[task.loss], rule=rule)
        self._arena = np.empty(numbers, np.float32)

    def train(self, origin: Tensor, group: Group) -> Tensor:
        """See `Engine.train`."""
        assert isinstance(group.features, Tensor)
        count = len(group.labels)
        classes = self._program.loss == steps.CROSS_ENTROPY
        labels = group.labels if classes else torch.zeros(0, dtype=torch.int64)
        targets = torch.zeros(0, 1) if classes else group.labels.reshape(count, -1)
        examples = steps.Examples(
            _array(group.features.reshape(count, -1)),
            _array(labels),
            _array(targets),
            group.steps.rows,
            group.steps.weights,
            group.steps.active.astype(np.int64),
        )
        # Each model begins on a cache line, in memory that was used before.
        step = -(-origin.numel() // _LINE) * _LINE
        models = new_vector(len(group) * step, torch.float32, origin.device).view(len(group), step)
        if not program()(
            self._program, _array(origin), examples, self._arena, models.view(-1).numpy(), step
        ):
            raise IndexError("a label is no class of the model")
        return models[:, : origin.numel()]


def _array(values: Tensor) -> NDArray[Any]:
    return values.detach().contiguous().numpy()


@cache
def program() -> Any:
    """`steps.train_users`, compiled for all models at once or loaded from disk."""
    waiting = (
        "the training program is being compiled, once for this machine and version: about 20 s"
    )
    said = threading.Timer(_PATIENCE, _log.warning, (waiting,))
    said.daemon = True
    said.start()
    try:
        return compiled(steps.SIGNATURE)(steps.train_users)
    finally:
        said.cancel()


def plan_of(task: Task, local: LocalSGD) -> tuple[steps.Program, int]:
    """A task's model as a program, and how many numbers its arena has.

    Raises:
        NotAChain: compiled steps cannot train it; the message says why.
    """
    features = task.structure.features
    labels = task.structure.labels
    model = task.model
    if task.device.type != "cpu" or type(local) is not LocalSGD:
        raise NotAChain("users are trained on a GPU or not by plain SGD")
    if task.loss not in _LOSSES or not isinstance(features, TensorStructure):
        raise NotAChain("the loss is another one, or features are not one array")
    with silent(), kept_generators(task.device):
        layers = chain_of(model, features.sample(torch.Generator().manual_seed(0), (3,)))
    if task.loss is cross_entropy and layers and layers[-1].kind == "log softmax":
        layers = layers[:-1]  # of which cross-entropy is the same
    outputs = layers[-1].after if layers else ()
    if task.loss is cross_entropy:
        fits = labels.dtype == torch.int64 and not labels.shape and len(outputs) == 1
    else:
        fits = labels.dtype == torch.float32 and math.prod(labels.shape) == math.prod(outputs)
    if not fits:
        raise NotAChain(f"labels are {labels}, outputs of shape {outputs}")
    sizes = [p.numel() for p in model.trained.values()]
    begins = accumulate(sizes, initial=0)
    places = {id(p): begin for p, begin in zip(model.trained.values(), begins, strict=False)}
    return planned(layers, places, local.batch_size, 0 if local.plain else model.dimension)
