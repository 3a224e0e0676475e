"""Local training by torch: one user after another, or users in groups of a fixed size."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.overrides import TorchFunctionMode

from fedmf.data.structure import Features, each, named
from fedmf.errors import ConfigError
from fedmf.models import FlatModel
from fedmf.training.batches import StepRows
from fedmf.training.local_sgd import LocalSGD
from fedmf.training.rng import kept_generators, seed_draws, torch_states
from fedmf.training.task import Task
from fedmf.training.user_failures import Group, pass_interrupt, silent

#: Numbers in a cache line.
_LINE: Final = 16


class Engine(ABC):
    """Trains the users of a group from the same parameters.

    An engine belongs to one thread and has a copy of the module.

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
        """Be told how many users a round asks, which is public, before the first of its groups."""
        del users

    def _move(
        self, models: Tensor, origin: Tensor, velocity: Tensor | None, gradient: Tensor
    ) -> None:
        """One step, in place, on tensors of one user or of several."""
        if velocity is None:
            models.add_(gradient, alpha=-self._local.learning_rate)
            return
        velocity.mul_(self._local.momentum).add_(gradient)
        if self._local.proximal:
            velocity.add_(models - origin, alpha=self._local.proximal)
        models.add_(velocity, alpha=-self._local.learning_rate)

    def _micro_batches(self, width: int) -> Iterator[slice]:
        """Parts of a batch of which each is one pass."""
        most = self._local.micro_batch or width
        return (slice(first, first + most) for first in range(0, width, most))


class LoopEngine(Engine):
    """One user after another by automatic differentiation, without padding: any module at all.

    The parameters of the module's copy are views of one vector, their gradients of another; each
    user begins with θ_t in the one, zeros in the other, the buffers of the given module, and
    torch's generator at a seed of the user's own, so that a module may draw random numbers, as
    dropout does.
    """

    def __init__(self, task: Task, local: LocalSGD) -> None:
        super().__init__(task, local)
        module = self._model.module
        frozen: dict[int, Any] = {id(p): p for p in module.parameters() if not p.requires_grad}
        self._module = copy.deepcopy(module, frozen)
        self._buffers = [
            (mine, buffers)
            for mine, theirs in zip(self._module.modules(), module.modules(), strict=True)
            if (buffers := dict(theirs.named_buffers(recurse=False)))
        ]
        model = FlatModel(self._module)
        self._flat = torch.empty(model.dimension, device=task.device)
        self._gradient = torch.empty_like(self._flat)
        values = model.unflatten(self._flat)
        slopes = model.unflatten(self._gradient)
        for name, parameter in model.trained.items():
            parameter.data = values[name]
            parameter.grad = slopes[name]

    def train(self, origin: Tensor, group: Group) -> Tensor:
        """See `Engine.train`."""
        models = origin.repeat(len(group), 1)
        for u in range(len(group)):
            if u not in group.absent:
                self._train(models[u], origin, group, u)
        return models

    def _train(self, into: Tensor, origin: Tensor, group: Group, u: int) -> None:
        flat = self._flat
        gradient = self._gradient
        steps = group.steps
        seed_draws(int(group.seeds[u]), flat.device)
        velocity = None if self._local.plain else torch.zeros_like(flat)
        with torch.no_grad():
            flat.copy_(origin)
            for part, buffers in self._buffers:
                part._buffers.update({name: buffer.clone() for name, buffer in buffers.items()})
        for s in range(int((steps.active > u).sum())):
            real = steps.weights[s, u] > 0
            rows = steps.rows[s, u][real]
            weights = steps.weights[s, u][real]
            gradient.zero_()
            for part in self._micro_batches(rows.size):
                self._add_gradient(group, rows[part], weights[part])
            with torch.no_grad():
                self._move(flat, origin, velocity, gradient)
        into.copy_(flat)

    def _add_gradient(
        self, group: Group, rows: NDArray[np.int64], weights: NDArray[np.float32]
    ) -> None:
        features, labels = group.taken(torch.from_numpy(rows).to(self._flat.device))
        with torch.enable_grad():
            outputs = (
                self._module(features) if isinstance(features, Tensor) else self._module(**features)
            )
            losses = self._loss(outputs, labels)
            (losses * torch.from_numpy(weights).to(losses.device)).sum().backward()


class VmapEngine(Engine):
    """Users in groups by torch.func; a group of fewer is filled up with copies of its first user.

    Batched kernels may round differently for another number of users: here it is always the same,
    or on a GPU a function of how many users the round asks.

    Args:
        task: model, loss and structure of examples.
        local: local SGD.
    """

    def __init__(self, task: Task, local: LocalSGD) -> None:
        super().__init__(task, local)
        self._model, most = self._model.copied(), users_at_once(task, local)
        self.size = self._most = most if most > 1 else _TOGETHER
        self._on_gpu = task.device.type == "cuda"
        self._gradients = vmap(grad(self._weighted_loss))

    def expect(self, users: int) -> None:
        """On a GPU, groups as large as a round needs: a step of 500 users takes the time of one of
        16.
        """
        if self._on_gpu:
            self.size = min(self._most, 1 << (max(users, 1) - 1).bit_length())

    def train(self, origin: Tensor, group: Group) -> Tensor:
        """See `Engine.train`."""
        steps = group.steps
        users = np.zeros(self.size, np.int64)
        users[: len(group)] = np.arange(len(group))
        with torch.no_grad(), OwnRows():
            models = _rows(origin, self.size).copy_(origin)
            gradient = _rows(origin, self.size)
            velocity = None if self._local.plain else _rows(origin, self.size).zero_()
            for s, active in enumerate(steps.active.tolist()):
                rows = torch.from_numpy(steps.rows[s][users]).to(origin.device)
                weights = torch.from_numpy(steps.weights[s][users]).to(origin.device)
                self._set_gradient(gradient, models, group, rows, weights)
                moving = None if velocity is None else velocity[:active]
                self._move(models[:active], origin, moving, gradient[:active])
        return models[: len(group)]

    def _set_gradient(
        self, gradient: Tensor, models: Tensor, group: Group, rows: Tensor, weights: Tensor
    ) -> None:
        views = self._model.unflatten(gradient)
        parameters = self._model.unflatten(models)
        gradient.zero_()
        for part in self._micro_batches(rows.shape[1]):
            features, labels = group.taken(rows[:, part])
            slopes = self._gradients(parameters, features, labels, weights[:, part])
            for name, view in views.items():
                view.add_(slopes[name])

    def _weighted_loss(
        self, parameters: dict[str, Tensor], features: Features, labels: Tensor, weights: Tensor
    ) -> Tensor:
        outputs = self._model.call(parameters, features)
        return (self._loss(outputs, labels) * weights).sum()


#: Users in a group on a processor. Functions of float32 go through memory 32 numbers at a time at
#: most, and may round the rest differently: this way there is no rest.
_TOGETHER: Final = 32
#: The largest size of a model that is trained in such groups: trained parameters times examples of
#: a step. In larger ones arithmetic hides the interpreter.
_LARGEST: Final = 2**18
#: Examples in a step of made-up users at most.
_MOST_TRIED: Final = 256
#: Layers that torch.func makes no faster there, or takes apart into one call a user.
_BY_ITSELF: Final = {"cpu": (nn.LSTM, nn.modules.conv._ConvNd), "cuda": (nn.RNNBase,)}
#: Users in a group on a GPU at most, and the share of its memory that a group may take.
_MOST_ON_GPU: Final = 1024
_SHARE: Final = 0.25


def users_at_once(task: Task, local: LocalSGD) -> int:
    """The largest size of groups by torch.func where they are faster than one user after another,
    else 1.

    It follows from the model, the batch size and the device's memory, never from free memory or who
    is there: a group of another size would have other bits.
    """
    model = task.model
    if any(isinstance(part, _BY_ITSELF[task.device.type]) for part in model.module.modules()):
        return 1
    if task.device.type == "cpu":
        return _TOGETHER if model.dimension * local.batch_size <= _LARGEST else 1
    memory = torch.cuda.get_device_properties(task.device).total_memory
    most = int(_SHARE * memory) // (_bytes_of_a_user(task, local) + 24 * model.dimension)
    return 1 << max(0, min(most, _MOST_ON_GPU).bit_length() - 1)


def _bytes_of_a_user(task: Task, local: LocalSGD) -> int:
    """What one user's step takes on a GPU."""
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
    return min(local.batch_size, _MOST_TRIED)


def made_up_group(task: Task, width: int, users: int = 2) -> Group:
    """Users with made-up examples for a step, and the largest valid numbers in it.

    One example of the first user is padding; each other has half as many real ones as the user
    before.
    """
    features, labels = task.structure.sample(torch.Generator().manual_seed(0), (users * width,))
    for part, drawn in ((task.structure.features, features), (task.structure.labels, labels)):
        for name, values in named(drawn).items():
            if (bound := named(part)[name].bound) is not None:
                values.view(-1)[0] = bound - 1
                values.view(-1)[-1] = 0
    rows = np.arange(users * width).reshape(1, users, width)
    weights = np.zeros((1, users, width), np.float32)
    for user in range(users):
        real = max(1, (width - 1) >> user)
        weights[:, user, :real] = 1.0 / real
    features = each(lambda values: values.to(task.device), features)
    edges = np.arange(users + 1) * width
    steps = StepRows(rows, weights, np.full(1, users))
    seeds = np.arange(users, dtype=np.uint64)
    return Group(np.arange(users), width, edges, features, labels.to(task.device), steps, seeds)


def draws_numbers(task: Task, local: LocalSGD) -> bool:
    """Whether model or loss draw random numbers from torch's generator, which all threads share.

    True as well where they fail on made-up examples, so that nothing is known.
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
def full_precision(device: torch.device) -> Iterator[None]:
    """Within, a GPU's convolutions are in float32, not TensorFloat-32 (2 % of an update), and
    repeatable.
    """
    if device.type != "cuda":
        yield
        return
    cudnn = torch.backends.cudnn
    with cudnn.flags(enabled=cudnn.enabled, benchmark=False, deterministic=True, allow_tf32=False):
        yield


def refuse_batch_statistics(module: nn.Module) -> None:
    """ConfigError for a module in which one example changes another's outputs."""
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            raise ConfigError(
                f"model must treat examples one by one; got {type(part).__name__} {name!r}. The"
                " statistics of a batch mix them, padding included: use GroupNorm or LayerNorm."
            )


def _rows(like: Tensor, users: int) -> Tensor:
    """Shape (users, d), each row on a cache line, with a gap before the next: rows are never taken
    as one.
    """
    length = like.numel()
    return like.new_empty(users, (length // _LINE + 1) * _LINE)[:, :length]


#: Others that torch.func flattens so, without a check of indices.
_FLATTENED: Final = (torch.embedding, torch.index_fill, Tensor.index_fill)


class OwnRows(TorchFunctionMode):
    """Within, rows of an embedding are gathered, which checks that a token is one.

    torch.func flattens users × V rows, so that token V of one user would be token 0 of the next.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace the look-up and call everything else as it is."""
        if func in _FLATTENED:
            raise NotImplementedError(f"{func.__name__} of users together")
        if func is not F.embedding:
            return func(*args, **(kwargs or {}))
        return _embedding(*args, **(kwargs or {}))


def _embedding(
    tokens: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Rows of a table by their numbers, as `torch.nn.functional.embedding`."""
    del norm_type, sparse
    if max_norm is not None or scale_grad_by_freq:
        raise NotImplementedError("an embedding with max_norm or scale_grad_by_freq")
    numbers = tokens.reshape(-1, 1).to(torch.int64).expand(-1, weight.shape[1])
    rows = weight.gather(0, numbers).reshape(*tokens.shape, weight.shape[1])
    if padding_idx is None:
        return rows
    return torch.where((tokens == padding_idx % len(weight)).unsqueeze(-1), rows.detach(), rows)
