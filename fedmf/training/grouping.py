"""How many users are trained together, and whether that leaves everybody's bits alone."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedmf.data import each
from fedmf.training.barrier import Group, silent
from fedmf.training.batches import StepRows
from fedmf.training.clipping import FixedPointSum
from fedmf.training.gradients import Accumulation, Batch, Gradient, aligned_empty
from fedmf.training.task import Task
from fedmf.training.workers import Workers, single_threaded_kernels

#: Models of a group and their inputs should stay in the processor's last cache: more users are slower.
CACHE_BYTES = 6 * 2**20
#: Enough users to hide the interpreter behind the arithmetic.
ENOUGH_USERS = 64
#: Share of a device's free memory that a group may take.
MEMORY_SHARE = 0.5
#: Users of small models that are computed in one block, filled up where they are fewer; and what is small:
#: parameters, frozen ones too, times examples of a step. More arithmetic would hide the interpreter anyway.
BLOCK, SMALL = 16, 2**21
#: Made-up users whose memory is looked at, and twice as many.
_FEW = 2


class Grouping:
    """Which users may be computed together.

    Batched kernels may round differently for another number of users. On a processor users are therefore
    computed together only if that gives the same bits as each user alone. Where it does not, users of small
    models are computed in blocks of one size, filled up with the first of them, if that gives the same bits
    at any place of a block, whoever else is in it. Both are tried once for each number of users and width, on
    random models and made-up examples that are the same in every process.

    Args:
        task: model, loss and structure of examples.
        workers: hold the gradients.
        most: users in the largest group; None derives it.
        exact: whether users are only computed together if no bit changes.
        train: gives the models of a group after local training, (users, d), from the received one.
    """

    def __init__(
        self,
        task: Task,
        workers: Workers[Gradient],
        most: int | None,
        exact: bool,
        train: Callable[[Tensor, Group], Tensor],
    ) -> None:
        self._task, self._workers, self._exact, self._train = task, workers, exact, train
        self._same_bits: dict[tuple[int, int], bool] = {}
        self._blocks: dict[int, int] = {}
        self._costs: dict[int, tuple[int, int]] = {}
        if most is not None and most < 1:
            raise ValueError(f"group size must be at least 1; got {most}.")
        self._given = most

    def most(self, width: int, examples: int) -> int:
        """Users in the largest group of this width, each with at most so many examples."""
        if self._given is not None:
            return self._given
        if self._workers.of_thread.one_by_one:
            return 1
        if self._task.device.type == "cpu":
            return max(1, min(CACHE_BYTES // (4 * self._task.model.dimension), ENOUGH_USERS))
        free, _ = torch.cuda.mem_get_info(self._task.device)
        return self.fitting(free, width, examples)

    def fitting(self, free: int, width: int, examples: int) -> int:
        """The same for a device with so many free bytes: each worker has a group of its own there."""
        if width not in self._costs:
            self._costs[width] = self._measured(width)
        group, user = self._costs[width]
        user += examples * self._task.structure.example_bytes
        room = int(MEMORY_SHARE * free) // self._workers.count - group
        return max(1, min(room // user, 16 * ENOUGH_USERS))

    def _measured(self, width: int) -> tuple[int, int]:
        """Bytes that a group takes on the device at most, and each user in it, their examples left out."""
        few, more = (self._held(users, width) for users in (_FEW, 2 * _FEW))
        user = -(-(more - few) // _FEW)
        return max(0, few - _FEW * user), user

    def _held(self, users: int, width: int) -> int:
        """Bytes at most while made-up users take two steps, and are clipped and added up."""
        task, shape = self._task, (users, width)
        gpus = [task.device] if task.device.type == "cuda" else []
        features, labels = task.structure.sample(torch.Generator().manual_seed(0), (users * width,))
        features, labels = each(lambda values: values.to(task.device), features), labels.to(task.device)
        rows = np.arange(users * width).reshape(1, *shape).repeat(2, axis=0)
        weights = np.full((2, *shape), 1.0 / width, np.float32)
        steps = StepRows(rows, weights, np.full(2, users))
        edges = np.arange(users + 1) * width
        group = Group(np.arange(users), width, edges, features, labels, steps)
        origin = task.model.initial().to(task.device)
        held = HeldBytes(task.device)
        with silent(), torch.random.fork_rng(devices=gpus), single_threaded_kernels(), held:
            total = FixedPointSum(origin.numel(), 1.0, task.device)
            total.add_updates(self._train(origin, group), origin)
        return held.most

    def parts(self, users: int, width: int) -> list[slice]:
        """The first ``users`` users of a group with ``width`` examples a step, as they are to be computed:
        each part filled up to `block`."""
        block = self.block(width)
        if block == 1 and self._together(users, width):
            return [slice(0, users)]
        return [slice(u, min(u + block, users)) for u in range(0, users, block)]

    def filled(self, part: slice, width: int) -> Tensor:
        """Those users, the first one again and again until there are as many as in a block."""
        users = torch.arange(part.start, part.stop)
        again = users[:1].expand(max(0, self.block(width) - len(users)))
        return torch.cat([users, again])

    def one_by_one(self, width: int) -> bool:
        """Whether users with so many examples a step, who fit a group, are trained alone for their bits."""
        together = min(BLOCK, self.most(width, width))
        with silent():
            return together > 1 and self.block(width) == 1 and not self._together(together, width)

    def block(self, width: int) -> int:
        """How many users are computed together whatever their number; 1 for no such blocks."""
        if width not in self._blocks:
            parameters = sum(part.numel() for part in self._task.model.module.parameters())
            small = parameters * width <= SMALL and not self._workers.of_thread.one_by_one
            apart = self._exact and small and not self._together(BLOCK, width)
            self._blocks[width] = BLOCK if apart and self._same_anywhere(width) else 1
        return self._blocks[width]

    def _together(self, users: int, width: int) -> bool:
        if users == 1 or not self._exact:
            return True
        key = (users, width)
        if key not in self._same_bits:
            self._same_bits[key] = self._try(users, width)
        return self._same_bits[key]

    def _try(self, users: int, width: int) -> bool:
        """Whether users get the same bits together and alone."""
        random, batches = self._made_up(users, width)
        alone = [torch.tensor([u]) for u in range(users)]
        return all(self._same(random, batch, [torch.arange(users)], alone) for batch in batches)

    def _same_anywhere(self, width: int) -> bool:
        """Whether users of a block get the same bits in another order, and beside copies of one alone."""
        random, batches = self._made_up(BLOCK, width)
        whole = torch.arange(BLOCK)
        others = [whole.flip(0)], [whole.roll(1)], [torch.full((BLOCK,), u) for u in range(BLOCK)]
        return all(self._same(random, batch, [whole], other) for batch in batches for other in others)

    def _made_up(self, users: int, width: int) -> tuple[Tensor, list[Batch]]:
        """Random models and examples."""
        structure, device = self._task.structure, self._task.device
        generator = torch.Generator().manual_seed(0)
        initial = self._task.model.initial()
        random = initial + 0.1 * torch.randn(users, initial.numel(), generator=generator)
        features, labels = structure.sample(generator, (users, width))
        features, labels = each(lambda values: values.to(device), features), labels.to(device)
        weights = torch.full((users, width), 1.0 / width, device=device)
        batches = [Batch(features, labels, weights)]
        if any(part.bound is not None for part in structure.features.named.values()):
            # Words that repeat, as they do in texts.
            repeated = each(lambda values: values[:, :1].expand_as(values), features)
            batches.append(Batch(repeated, labels, weights))
        return random, batches

    def _same(self, random: Tensor, batch: Batch, one: list[Tensor], other: list[Tensor]) -> bool:
        """Whether a step has the same bits in these parts of all users and in those parts."""
        expected = torch.empty_like(random)
        for users in one:
            expected[users] = self._stepped(random, batch, users)
        bits = expected.view(torch.int32)
        return all(
            torch.equal(self._stepped(random, batch, users).view(torch.int32), bits[users]) for users in other
        )

    def _stepped(self, random: Tensor, batch: Batch, users: Tensor) -> Tensor:
        """Models of some users, in memory of their own, after a step together."""
        models = aligned_empty(batch.weights, users.numel(), random.shape[1]).copy_(random[users])
        with torch.no_grad(), single_threaded_kernels():
            self._workers.of_thread.accumulate(
                batch.part(users), Accumulation(models, models, beta=1.0, alpha=-1.0)
            )
        return models.contiguous()


class HeldBytes(TorchDispatchMode):
    """Bytes of tensors that operations within make on a device and that are held at once; ``most`` so far.

    >>> with HeldBytes(torch.device("cpu")) as held:
    ...     x = torch.zeros(1000)
    ...     y = (x + 1).exp_().sum()
    >>> held.most
    8004
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device, self.now, self.most = device, 0, 0
        self._alive: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and note what it returns that is no view of what it was given."""
        given = {storage._cdata for storage in self._storages((args, kwargs))}
        made = func(*args, **(kwargs or {}))
        for storage in self._storages(made):
            key, size = storage._cdata, storage.nbytes()
            if key not in given and key not in self._alive:
                self._alive.add(key)
                self.now += size
                self.most = max(self.most, self.now)
                weakref.finalize(storage, self._freed, key, size)
        return made

    def _freed(self, key: int, size: int) -> None:
        self._alive.discard(key)
        self.now -= size

    def _storages(self, values: Any) -> list[torch.UntypedStorage]:
        tensors = [value for value in tree_leaves(values) if isinstance(value, Tensor)]
        return [tensor.untyped_storage() for tensor in tensors if tensor.device.type == self._device.type]
