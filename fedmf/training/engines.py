"""Engines: they train the users of a group from the same parameters.

`LoopEngine` trains one user after another by automatic differentiation, `VmapEngine` groups of a
fixed size by torch.func; `compiled` has a third one. `local` chooses among them.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.overrides import TorchFunctionMode

from fedmf.data.structure import Features, each, named
from fedmf.errors import pass_interrupt
from fedmf.models import FlatModel
from fedmf.training.batches import StepRows
from fedmf.training.local_sgd import LocalSGD
from fedmf.training.rng import OwnDropout, kept_generators, seed_draws, torch_states
from fedmf.training.task import Task
from fedmf.training.user_failures import Group, silent
from fedmf.training.workers import single_threaded_products

#: Numbers in a cache line.
_LINE: Final = 16


class Engine(ABC):
    """Trains the users of a group from the same parameters.

    An engine belongs to one thread; it has its own copy of the module.

    Args:
        task: model, loss and structure of examples.
        local: local SGD.
    """

    #: How many users are computed at once, whatever their number.
    size: int = 1

    def __init__(self, task: Task, local: LocalSGD) -> None:
        self._local = local
        self._loss = task.loss
        self._model = task.model

    @abstractmethod
    def train(self, origin: Tensor, group: Group) -> Tensor:
        """The users' models after local training from θ_t (``origin``), shape (users, d)."""

    def expect(self, users: int) -> None:
        """Prepare for a round of ``users`` users, a public number, before its first group."""
        del users

    def _move(
        self, models: Tensor, origin: Tensor, velocity: Tensor | None, gradient: Tensor
    ) -> None:
        """Take one step, in place, with tensors of one user or of several."""
        if velocity is None:
            models.add_(gradient, alpha=-self._local.learning_rate)
            return
        velocity.mul_(self._local.momentum).add_(gradient)
        if self._local.proximal:
            velocity.add_(models - origin, alpha=self._local.proximal)
        models.add_(velocity, alpha=-self._local.learning_rate)

    def _micro_batches(self, width: int) -> Iterator[slice]:
        """The parts of a batch, each of which is one pass."""
        size = self._local.micro_batch or width
        for first in range(0, width, size):
            yield slice(first, min(first + size, width))


class LoopEngine(Engine):
    """Trains one user after another by automatic differentiation, without padding.

    Any module can be trained so. The parameters of the module's copy are views of one vector, their
    gradients of another. Each user begins with θ_t in the one, zeros in the other, the buffers of
    the given module, and torch's generator at a seed of the user's own, so that a module may draw
    random numbers; on a processor its dropout layers draw from the engine's own generator.
    """

    def __init__(self, task: Task, local: LocalSGD) -> None:
        super().__init__(task, local)
        module = self._model.module
        frozen: dict[int, Any] = {id(p): p for p in module.parameters() if not p.requires_grad}
        self._module = copy.deepcopy(module, frozen)
        self._buffers = _buffers_to_restore(self._module, module)
        model = FlatModel(self._module)
        self._flat = torch.empty(model.dimension, device=task.device)
        self._gradient = torch.empty_like(self._flat)
        values = model.unflatten(self._flat)
        slopes = model.unflatten(self._gradient)
        for name, parameter in model.trained.items():
            parameter.data = values[name]
            parameter.grad = slopes[name]
        self._dropout: OwnDropout | None = None
        if task.device.type == "cpu" and _has_dropout(self._module):
            self._dropout = OwnDropout()

    @torch.enable_grad()
    def train(self, origin: Tensor, group: Group) -> Tensor:
        """The users' models after local training from θ_t (``origin``), shape (users, d)."""
        origin = origin.detach()
        models = origin.new_empty(len(group), origin.numel())
        with self._dropout or nullcontext():
            for u in range(len(group)):
                if u in group.absent:
                    models[u] = origin
                else:
                    self._train(models[u], origin, group, u)
        return models

    def _train(self, into: Tensor, origin: Tensor, group: Group, u: int) -> None:
        seed_draws(int(group.seeds[u]), self._flat.device)
        if self._dropout is not None:
            self._dropout.generator.manual_seed(int(group.seeds[u]))
        velocity = None
        if not self._local.plain:
            velocity = torch.zeros_like(self._flat)
        self._flat.copy_(origin)
        self._restore_buffers()
        rows = torch.from_numpy(group.steps.rows[:, u]).to(self._flat.device)
        weights = torch.from_numpy(group.steps.weights[:, u]).to(self._flat.device)
        examples = (group.steps.weights[:, u] > 0).sum(axis=1)  # padding comes after them
        for s in range(int((group.steps.active > u).sum())):
            self._gradient.zero_()
            for part in self._micro_batches(int(examples[s])):
                self._add_gradient(group, rows[s, part], weights[s, part])
            self._move(self._flat, origin, velocity, self._gradient)
        into.copy_(self._flat)

    def _restore_buffers(self) -> None:
        for part, buffers in self._buffers:
            for name, buffer in buffers.items():
                part._buffers[name] = buffer.clone()

    def _add_gradient(self, group: Group, rows: Tensor, weights: Tensor) -> None:
        features, labels = group.examples(rows)
        losses = self._loss(outputs_of(self._module, features), labels)
        (losses * weights).sum().backward()


def _has_dropout(module: nn.Module) -> bool:
    """Whether a part of a module is a dropout layer that drops anything."""
    return any(type(part) is nn.Dropout and part.p > 0 for part in module.modules())


def _buffers_to_restore(
    module: nn.Module, original: nn.Module
) -> list[tuple[nn.Module, dict[str, Tensor]]]:
    """The parts of a module that have buffers, each with those of the original."""
    parts: list[tuple[nn.Module, dict[str, Tensor]]] = []
    for part, original_part in zip(module.modules(), original.modules(), strict=True):
        buffers = dict(original_part.named_buffers(recurse=False))
        if buffers:
            parts.append((part, buffers))
    return parts


def outputs_of(module: nn.Module, features: Features) -> Tensor:
    """Call a module with features, which are one tensor or several by name."""
    if isinstance(features, Tensor):
        return module(features)
    return module(**features)


class VmapEngine(Engine):
    """Trains users in groups by torch.func.

    Batched kernels may round differently for another number of users. Here it is always the same,
    or on a GPU a function of how many users a round has: a smaller group is filled up with copies
    of its first user. A group is given to a GPU as a whole before its first step, since every copy
    to a GPU waits until all that was asked of it is done.

    Args:
        task: model, loss and structure of examples.
        local: local SGD.
    """

    def __init__(self, task: Task, local: LocalSGD) -> None:
        super().__init__(task, local)
        self._model = task.model.copied()
        self._largest = users_at_once(task, local)
        if self._largest == 1:
            self._largest = _USERS_ON_CPU
        self.size = self._largest
        self._on_gpu = task.device.type == "cuda"
        self._gradients = vmap(grad(self._weighted_loss))

    def expect(self, users: int) -> None:
        """On a GPU, make groups as large as a round needs.

        A step of 500 users takes the time of one of 16.
        """
        if self._on_gpu:
            self.size = even_size(users, self._largest)

    def train(self, origin: Tensor, group: Group) -> Tensor:
        """The users' models after local training from θ_t (``origin``), shape (users, d)."""
        steps = group.steps
        users = np.zeros(self.size, np.int64)
        users[: len(group)] = np.arange(len(group))
        with torch.no_grad(), OwnRows():
            models = _rows(origin, self.size).copy_(origin)
            gradient = _rows(origin, self.size)
            velocity = None
            if not self._local.plain:
                velocity = _rows(origin, self.size).zero_()
            rows = torch.from_numpy(steps.rows[:, users]).to(origin.device)
            weights = torch.from_numpy(steps.weights[:, users]).to(origin.device)
            for s, active in enumerate(steps.active.tolist()):
                self._set_gradient(gradient, models, group, rows[s], weights[s])
                active_velocity = None
                if velocity is not None:
                    active_velocity = velocity[:active]
                self._move(models[:active], origin, active_velocity, gradient[:active])
        return models[: len(group)]

    def _set_gradient(
        self, gradient: Tensor, models: Tensor, group: Group, rows: Tensor, weights: Tensor
    ) -> None:
        views = self._model.unflatten(gradient)
        parameters = self._model.unflatten(models)
        gradient.zero_()
        for part in self._micro_batches(rows.shape[1]):
            features, labels = group.examples(rows[:, part])
            slopes = self._gradients(parameters, features, labels, weights[:, part])
            for name, view in views.items():
                view.add_(slopes[name])

    def _weighted_loss(
        self, parameters: dict[str, Tensor], features: Features, labels: Tensor, weights: Tensor
    ) -> Tensor:
        outputs = self._model.call(parameters, features)
        return (self._loss(outputs, labels) * weights).sum()


#: Users in a group on a processor. Functions of float32 go through memory at most 32 numbers at a
#: time, and may round the rest differently: this way there is no rest.
_USERS_ON_CPU: Final = 32
#: Least share of the places of groups that the users of a call must fill. Any group takes the time
#: of a full one, which is 1.3 to 1.5 times as fast as one user after another.
_LEAST_FILLED: Final = 0.75
#: Trained parameters times examples of a step, above which a model is not trained in such groups:
#: there arithmetic hides the interpreter.
_LARGEST_STEP: Final = 2**18
#: Most examples in a step of made-up users.
_LARGEST_TRIED_BATCH: Final = 256
#: Layers that torch.func makes no faster on a device, or takes apart into one call a user.
_SLOW_IN_GROUPS: Final = {"cpu": (nn.LSTM, nn.modules.conv._ConvNd), "cuda": (nn.RNNBase,)}
#: Most users in a group on a GPU, and the share of its memory that a group may take.
_USERS_ON_GPU: Final = 1024
_MEMORY_SHARE: Final = 0.25


def fills_groups(users: int) -> bool:
    """Whether so many users leave at most a quarter of their groups on a processor empty.

    >>> [users for users in (1, 23, 24, 32, 33, 47, 48, 64, 65) if fills_groups(users)]
    [24, 32, 48, 64]
    """
    places = _USERS_ON_CPU * -(-users // _USERS_ON_CPU)
    return users > 0 and users >= _LEAST_FILLED * places


def even_size(users: int, largest: int) -> int:
    """The size of groups that share a round's users evenly: a multiple of 32, or the largest.

    Args:
        users: how many a round has.
        largest: most users in a group.

    >>> [even_size(users, 1024) for users in (1, 100, 500, 600, 1100, 5000)]
    [32, 128, 512, 608, 576, 1024]
    >>> even_size(500, 4)
    4
    """
    groups = max(1, -(-users // largest))
    return min(largest, _USERS_ON_CPU * max(1, -(-users // (groups * _USERS_ON_CPU))))


def users_at_once(task: Task, local: LocalSGD) -> int:
    """The largest size of groups by torch.func where they are faster than one user after another.

    It is 1 where they are not. It follows from the model, the batch size and the device's memory,
    never from free memory or from which users there are: a group of another size would have other
    bits.
    """
    model = task.model
    slow = _SLOW_IN_GROUPS[task.device.type]
    if any(isinstance(part, slow) for part in model.module.modules()):
        return 1
    if task.device.type == "cpu":
        if model.dimension * local.batch_size > _LARGEST_STEP:
            return 1
        return _USERS_ON_CPU
    memory = torch.cuda.get_device_properties(task.device).total_memory
    bytes_of_a_user = _bytes_of_a_user(task, local) + 24 * model.dimension
    fitting = min(int(_MEMORY_SHARE * memory) // bytes_of_a_user, _USERS_ON_GPU)
    return 1 << max(0, fitting.bit_length() - 1)


def _bytes_of_a_user(task: Task, local: LocalSGD) -> int:
    """Memory that one user's step takes on a GPU."""
    group = made_up_group(task, max(2, local.batch_size), users=1)
    engine = LoopEngine(task, local)
    origin = task.model.initial().to(task.device)
    torch.cuda.reset_peak_memory_stats(task.device)
    before = torch.cuda.memory_allocated(task.device)
    with kept_generators(task.device):
        engine.train(origin, group)
    return torch.cuda.max_memory_allocated(task.device) - before


def tried_batch(local: LocalSGD) -> int:
    """The batch size that is tried on made-up users: the run's own, unless it is very large."""
    return min(local.batch_size, _LARGEST_TRIED_BATCH)


def made_up_group(task: Task, width: int, users: int = 2) -> Group:
    """Users with made-up examples for a step, and the largest valid numbers in it.

    One example of the first user is padding; each other has half as many real ones as the user
    before.
    """
    structure = task.structure
    features, labels = structure.sample(torch.Generator().manual_seed(0), (users * width,))
    for name, declared in named(structure.features).items():
        _put_extremes(named(features)[name], declared.integers)
    _put_extremes(labels, structure.labels.integers)
    weights = np.zeros((1, users, width), np.float32)
    for user in range(users):
        real = max(1, (width - 1) >> user)
        weights[:, user, :real] = 1.0 / real
    rows = np.arange(users * width).reshape(1, users, width)
    return Group(
        positions=np.arange(users),
        width=width,
        edges=np.arange(users + 1) * width,
        features=each(lambda values: values.to(task.device), features),
        labels=labels.to(task.device),
        steps=StepRows(rows, weights, active=np.full(1, users)),
        seeds=np.arange(users, dtype=np.uint64),
    )


def _put_extremes(values: Tensor, integers: range) -> None:
    """Make the first of some integers the largest of a range, and the last one the least."""
    if integers:
        values.view(-1)[0] = integers[-1]
        values.view(-1)[-1] = integers[0]


def draws_numbers(task: Task, local: LocalSGD) -> bool:
    """Whether model or loss draw random numbers from torch's generator, which all threads share.

    Dropout layers do not (`OwnDropout`).

    It is also true where they fail on made-up examples, so that nothing is known.
    """
    group = made_up_group(task, max(2, local.batch_size), users=1)
    device = task.device
    with silent(), kept_generators(device):
        try:
            LoopEngine(task, local).train(task.model.initial().to(device), group)
        except BaseException as error:
            pass_interrupt(error)
            return True
        after = torch_states(device)
        seed_draws(int(group.seeds[0]), device)
        return after != torch_states(device)


@contextmanager
def training_conditions(device: torch.device) -> Iterator[None]:
    """Conditions of all training: repeatable kernels, no warnings, and generators as before.

    Kernels run on one thread each: with more, bits may differ.
    """
    with (
        silent(),
        kept_generators(device),
        _full_precision(device),
        single_threaded_products(),
    ):
        yield


@contextmanager
def _full_precision(device: torch.device) -> Iterator[None]:
    """Within, a GPU's convolutions are repeatable, and in float32 instead of TensorFloat-32.

    TensorFloat-32 would change an update by 2 %.
    """
    if device.type != "cuda":
        yield
        return
    cudnn = torch.backends.cudnn
    with cudnn.flags(enabled=cudnn.enabled, benchmark=False, deterministic=True, allow_tf32=False):
        yield


def _rows(like: Tensor, users: int) -> Tensor:
    """Uninitialized rows, shape (users, d), each on a cache line.

    There is a gap between rows, so that they are never taken as one.
    """
    length = like.numel()
    return like.new_empty(users, (length // _LINE + 1) * _LINE)[:, :length]


#: Functions that torch.func flattens as well, without a check of indices.
_FLATTENED: Final = (torch.embedding, torch.index_fill, Tensor.index_fill)


class OwnRows(TorchFunctionMode):
    """Within, rows of an embedding are gathered, which checks that a token is one.

    torch.func flattens users × V rows, so that token V of one user would be token 0 of the next.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace the look-up and call everything else as it is."""
        if func in _FLATTENED:
            raise NotImplementedError(f"{func.__name__} of users together")
        if func is F.embedding:
            func = _embedding
        return func(*args, **(kwargs or {}))


def _embedding(
    tokens: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Rows of a table by their indices, as `torch.nn.functional.embedding` gives them."""
    del norm_type, sparse
    if max_norm is not None or scale_grad_by_freq:
        raise NotImplementedError("an embedding with max_norm or scale_grad_by_freq")
    indices = tokens.reshape(-1, 1).to(torch.int64).expand(-1, weight.shape[1])
    rows = weight.gather(0, indices).reshape(*tokens.shape, weight.shape[1])
    if padding_idx is None:
        return rows
    return torch.where((tokens == padding_idx % len(weight)).unsqueeze(-1), rows.detach(), rows)
