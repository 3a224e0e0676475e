"""The engine of path "compiled": users are trained one after another by compiled steps.

`program_of` lays a task's model out as a table, by `chain` and `step_plan`; the compiled loops of
`steps` walk it.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.clipping.memory import new_vector
from fedmf.data.structure import TensorStructure
from fedmf.models import FlatModel
from fedmf.noise.jit import Compiled
from fedmf.training.compiled import steps
from fedmf.training.compiled.chain import NotAChain, chain_of
from fedmf.training.compiled.step_plan import lay_out
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
#: Seconds of compiling before a notice says so.
_PATIENCE: Final = 5.0


class CompiledEngine(Engine):
    """Trains one user after another by compiled steps, in float32 on a processor.

    The model is a chain of convolutions, pooling, dense layers, ReLU and tanh; the loss is
    cross-entropy, squared error or binary cross-entropy.

    Args:
        task: model, loss and structure of examples.
        local: local SGD.

    Raises:
        NotAChain: compiled steps cannot train the task.
    """

    def __init__(self, task: Task, local: LocalSGD) -> None:
        super().__init__(task, local)
        program, numbers = program_of(task, local)
        rule = np.array([local.learning_rate, local.momentum, local.proximal], np.float32)
        self._program = program._replace(loss=_LOSSES[task.loss], rule=rule)
        self._arena = np.empty(numbers, np.float32)

    def train(self, origin: Tensor, group: Group) -> Tensor:
        """The users' models after local training from θ_t (``origin``), shape (users, d)."""
        assert isinstance(group.features, Tensor)
        count = len(group.labels)
        if self._program.loss == steps.CROSS_ENTROPY:
            labels = group.labels
            targets = torch.zeros(0, 1)
        else:
            labels = torch.zeros(0, dtype=torch.int64)
            targets = group.labels.reshape(count, -1)
        examples = steps.Examples(
            _array(group.features.reshape(count, -1)),
            _array(labels),
            _array(targets),
            group.steps.rows,
            group.steps.weights,
            group.steps.active.astype(np.int64),
        )
        # Each model begins on a cache line, in memory that was used before.
        stride = -(-origin.numel() // steps.LINE) * steps.LINE
        memory = new_vector(len(group) * stride, torch.float32, origin.device)
        train_users = compiled_training(self._program)
        trained = train_users(
            self._program, _array(origin), examples, self._arena, memory.numpy(), stride
        )
        if not trained:
            raise IndexError("a label is no class of the model")
        return memory.view(len(group), stride)[:, : origin.numel()]


def _array(values: Tensor) -> NDArray[Any]:
    return values.detach().contiguous().numpy()


def compiled_training(program: steps.Program) -> Compiled:
    """The training of a program, compiled or loaded from disk, with a notice if it takes long."""
    training = steps.train_on_rows
    seconds = 5
    if program.front > 0:
        training = steps.train_on_images
        seconds = 12
    if training.is_ready:
        return training
    notice = threading.Timer(_PATIENCE, _announce, (seconds,))
    notice.daemon = True
    notice.start()
    try:
        training.compile()
    finally:
        notice.cancel()
    return training


def _announce(seconds: int) -> None:
    """Say why nothing happens: in a log, or as output of a notebook, which shows logs in red."""
    notice = (
        f"Compiling the training program, once for this machine and version: about {seconds} s."
    )
    if "ipykernel" in sys.modules:
        print(notice)
    else:
        _log.warning(notice)


def program_of(task: Task, local: LocalSGD) -> tuple[steps.Program, int]:
    """A task's model as a program, and how many numbers its arena has.

    Raises:
        NotAChain: compiled steps cannot train the task; the message says why.
    """
    if task.device.type != "cpu" or type(local) is not LocalSGD:
        raise NotAChain("users are trained on a GPU, or not by plain SGD")
    if task.loss not in _LOSSES or not isinstance(task.structure.features, TensorStructure):
        raise NotAChain("the loss is not a compiled one, or features are several arrays")
    features = task.structure.features.sample(torch.Generator().manual_seed(0), (3,))
    with silent(), kept_generators(task.device):
        layers = chain_of(task.model, features)
    if task.loss is cross_entropy and layers and layers[-1].kind == "log softmax":
        layers = layers[:-1]  # cross-entropy takes it once more, which changes nothing
    outputs: tuple[int, ...] = ()
    if layers:
        outputs = layers[-1].after
    _check_labels(task, outputs)
    velocity = 0
    if not local.plain:
        velocity = task.model.dimension
    return lay_out(layers, _places_of_parameters(task.model), local.batch_size, velocity)


def _check_labels(task: Task, outputs: tuple[int, ...]) -> None:
    """Raise NotAChain if compiled losses cannot compare the labels with outputs of this shape."""
    labels = task.structure.labels
    if task.loss is cross_entropy:
        fits = labels.dtype == torch.int64 and not labels.shape and len(outputs) == 1
    else:
        fits = labels.dtype == torch.float32 and math.prod(labels.shape) == math.prod(outputs)
    if not fits:
        raise NotAChain(f"labels are {labels}, outputs of shape {outputs}")


def _places_of_parameters(model: FlatModel) -> dict[int, int]:
    """Map the id of each trained parameter to its place in the flat vector."""
    places: dict[int, int] = {}
    begin = 0
    for parameter in model.trained.values():
        places[id(parameter)] = begin
        begin += parameter.numel()
    return places
