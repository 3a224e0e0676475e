"""How many users are trained together, and whether that leaves everybody's bits alone."""

from __future__ import annotations

import torch
from torch import Tensor

from fedmf.models import FlatModel
from fedmf.training.gradients import Loss, aligned_empty
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
    of users and width, on random models that are the same in every process.

    Args:
        model: the flat model.
        loss: per-example losses.
        workers: hold the gradients.
        example: one example, shape (1, …); says where groups are trained.
        classes: number of labels.
        most: users in the largest group; None derives it.
        exact: whether users are only computed together if no bit changes.
    """

    def __init__(
        self,
        model: FlatModel,
        loss: Loss,
        workers: Workers,
        example: Tensor,
        classes: int,
        most: int | None,
        exact: bool,
    ) -> None:
        self.device = example.device
        self._model, self._workers, self._classes, self._exact = model, workers, classes, exact
        self._shape = example.shape[1:]
        self._same_bits: dict[tuple[int, int], bool] = {}
        self.most = self._derived(loss, example) if most is None else most
        if self.most < 1:
            raise ValueError(f"group size must be at least 1; got {most}.")

    def _derived(self, loss: Loss, example: Tensor) -> int:
        if self._workers.gradient.one_by_one:
            return 1
        models = 4 * self._model.dimension
        if self.device.type == "cpu":
            return max(1, min(CACHE_BYTES // models, ENOUGH_USERS))
        free, _ = torch.cuda.mem_get_info(self.device)
        # The model, its velocity and its gradient; what a step saves for its backward pass, twice over.
        user = 3 * models + 2 * saved_bytes(self._model, loss, example)
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
        generator = torch.Generator().manual_seed(0)
        initial = self._model.initial()
        random = initial + 0.1 * torch.randn(users, initial.numel(), generator=generator)
        features = torch.randn(users, width, *self._shape, generator=generator).to(self.device)
        labels = torch.randint(self._classes, (users, width), generator=generator).to(self.device)
        weights = torch.full((users, width), 1.0 / width, device=self.device)
        stepped = []
        with torch.no_grad(), single_threaded_kernels():
            for parts in ([slice(0, users)], [slice(u, u + 1) for u in range(users)]):
                models = aligned_empty(features, *random.shape).copy_(random)
                for part in parts:
                    batch = (features[part].clone(), labels[part].clone(), weights[part].clone())
                    self._workers.gradient.accumulate(
                        models[part], *batch, models[part], beta=1.0, alpha=-1.0
                    )
                stepped.append(models.contiguous().view(torch.int32))
        return torch.equal(*stepped)


def saved_bytes(model: FlatModel, loss: Loss, example: Tensor) -> int:
    """Bytes that automatic differentiation keeps for one example, parameters left out."""
    saved: dict[int, int] = {}
    point = model.initial().to(example.device).requires_grad_()
    skipped = {point.data_ptr()}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in skipped:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss(model.forward(point, example), torch.zeros(1, dtype=torch.int64, device=example.device)).sum()
    return sum(saved.values())
