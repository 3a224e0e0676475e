"""How many users are trained together, and whether that leaves everybody's bits alone."""

from __future__ import annotations

import torch
from torch import Tensor

from fedmf.data import each
from fedmf.training.gradients import Accumulation, Batch, Gradient, aligned_empty
from fedmf.training.task import Task
from fedmf.training.workers import Workers, single_threaded_kernels

__all__ = ["Grouping", "saved_bytes"]

#: Models of a group and their inputs should stay in the processor's last cache: more users are slower.
CACHE_BYTES = 6 * 2**20
#: Enough users to hide the interpreter behind the arithmetic.
ENOUGH_USERS = 64
#: Share of a device's free memory that a group may take.
MEMORY_SHARE = 0.5


class Grouping:
    """Which users may be computed together.

    Batched kernels may round differently from those for one user. On a processor users are therefore
    computed together only if that gives the same bits as each user alone. This is tried once for each number
    of users and width, on random models and made-up examples that are the same in every process.

    Args:
        task: model, loss and structure of examples.
        workers: hold the gradients.
        most: users in the largest group; None derives it.
        exact: whether users are only computed together if no bit changes.
    """

    def __init__(self, task: Task, workers: Workers[Gradient], most: int | None, exact: bool) -> None:
        self._task, self._workers, self._exact = task, workers, exact
        self._same_bits: dict[tuple[int, int], bool] = {}
        self.most = self._derived() if most is None else most
        if self.most < 1:
            raise ValueError(f"group size must be at least 1; got {most}.")

    def _derived(self) -> int:
        if self._workers.of_thread.one_by_one:
            return 1
        models = 4 * self._task.model.dimension
        if self._task.device.type == "cpu":
            return max(1, min(CACHE_BYTES // models, ENOUGH_USERS))
        free, _ = torch.cuda.mem_get_info(self._task.device)
        # The model, its velocity and its gradient; what a step saves for its backward pass, twice over.
        user = 3 * models + 2 * saved_bytes(self._task)
        return max(1, min(int(MEMORY_SHARE * free) // user, 16 * ENOUGH_USERS))

    def parts(self, users: int, width: int) -> list[slice]:
        """The first ``users`` users of a group with ``width`` examples a step, as they are to be computed."""
        if self._together(users, width):
            return [slice(0, users)]
        return [slice(u, u + 1) for u in range(users)]

    def _together(self, users: int, width: int) -> bool:
        if users == 1 or not self._exact:
            return True
        key = (users, width)
        if key not in self._same_bits:
            self._same_bits[key] = self._try(users, width)
        return self._same_bits[key]

    def _try(self, users: int, width: int) -> bool:
        """Whether users get the same bits together and alone."""
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
        return all(self._same(random, batch) for batch in batches)

    def _same(self, random: Tensor, batch: Batch) -> bool:
        stepped = []
        with torch.no_grad(), single_threaded_kernels():
            for parts in ([slice(0, len(random))], [slice(u, u + 1) for u in range(len(random))]):
                models = aligned_empty(batch.weights, *random.shape).copy_(random)
                for part in parts:
                    alone = batch.part(part).cloned()
                    self._workers.of_thread.accumulate(
                        alone, Accumulation(models[part], models[part], beta=1.0, alpha=-1.0)
                    )
                stepped.append(models.contiguous().view(torch.int32))
        return torch.equal(*stepped)


def saved_bytes(task: Task) -> int:
    """Bytes that automatic differentiation keeps for one made-up example, parameters left out."""
    saved: dict[int, int] = {}
    features, labels = task.structure.sample(torch.Generator().manual_seed(0), (1,))
    point = task.model.initial().to(task.device).requires_grad_()
    skipped = {point.data_ptr()}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in skipped:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        features = each(lambda values: values.to(task.device), features)
        outputs = task.model.forward(point, features)
        task.loss(outputs, labels.to(task.device)).sum()
    return sum(saved.values())
