"""Features of a model's frozen first layers, computed once for each user.

In a chain that begins with frozen layers, such as ``nn.Sequential(fedmf.freeze(backbone), head)``,
these layers have the same outputs for an example in every step of every round. So a user is trained
on these outputs, by the rest of the chain.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedmf.clipping.memory import on_all_cores
from fedmf.data import Dataset
from fedmf.data.structure import ExampleStructure, TensorStructure, split_rows
from fedmf.errors import pass_interrupt
from fedmf.models.frozen import own_copy
from fedmf.training.rng import kept_generators, other_states, torch_states

#: Most numbers of an example's features: more would take too much memory. It suffices for 256
#: hidden states of width 4,096.
_MOST_NUMBERS: Final = 2**20
#: Bytes of features that are kept; those of further users are computed again when they are needed.
_MOST_BYTES: Final = 2**31
#: Examples in one pass, and users whose examples are loaded together.
_ROWS: Final = 256
_USERS: Final = 64
#: Made-up examples, and the largest difference by rounding between the features of one example
#: alone and among others.
_EXAMPLES: Final = 3
_TOLERANCE: Final = 1e-3


def structure_of_features(layers: nn.Module, examples: ExampleStructure) -> TensorStructure | None:
    """The structure of the features that frozen layers compute.

    Args:
        layers: the frozen layers.
        examples: how an example looks.

    Returns:
        None where the features are no small tensor for each example, or are not the same each time
        for an example alone: the layers draw random numbers, mix examples or keep something.
    """
    device = next(layers.parameters()).device
    inputs, _ = examples.sample(torch.Generator().manual_seed(0), (_EXAMPLES,))
    if not isinstance(inputs, Tensor):
        return None
    inputs = inputs.to(device)
    with kept_generators(device):
        before = torch_states(device), other_states()
        with torch.no_grad():
            try:
                features = own_copy(layers)(inputs.clone())
                alone = own_copy(layers)(inputs[:1].clone())
            except Exception:  # the module may raise anything; the preflight tells
                return None
        if (torch_states(device), other_states()) != before:
            return None
    if not isinstance(features, Tensor) or features.shape[:1] != (_EXAMPLES,):
        return None
    numbers = features[0].numel()
    if not features.dtype.is_floating_point or not 0 < numbers <= _MOST_NUMBERS:
        return None
    if not torch.allclose(alone, features[:1], _TOLERANCE, _TOLERANCE):
        return None
    return TensorStructure(tuple(features.shape[1:]), features.dtype)


class FrozenFeatures(Dataset):
    """Users' examples with the features that frozen layers compute.

    Features are computed when they are first needed, and kept in memory.

    Args:
        dataset: users' examples.
        structure: how one of them must look.
        layers: the frozen layers.

    Guarantees: a user's features depend on its own examples alone. Each user has its own pass by
    its own copy of the layers, whatever else is computed.
    """

    def __init__(self, dataset: Dataset, structure: ExampleStructure, layers: nn.Module) -> None:
        self._dataset = dataset
        self._examples = structure
        self._layers = layers
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}
        self._bytes = 0
        self._full = False
        self.user_ids = dataset.user_ids
        self.test_labels = dataset.test_labels
        self.classes = dataset.classes
        self.test_owner = dataset.test_owner
        self.row_counts = dataset.row_counts
        self.has_examples = dataset.has_examples

    @cached_property
    def test_features(self) -> Tensor:  # type: ignore[override]
        """The features of the test part."""
        return self._features(self._dataset.test_features)

    def index_of(self, user_id: str) -> int:
        return self._dataset.index_of(user_id)

    def sizes(self, users: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._dataset.sizes(users)

    def examples(self, users: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        parts = [self._of_user(int(user)) for user in users]
        features = torch.cat([part for part, _ in parts])
        return features, torch.cat([labels for _, labels in parts])

    def to(self, device: torch.device | str) -> FrozenFeatures:
        layers = copy.deepcopy(self._layers).to(device)
        return FrozenFeatures(self._dataset.to(device), self._examples, layers)

    def prepare(self, users: NDArray[np.int64]) -> None:
        """Compute the features of users on all cores, if they are not kept yet.

        What fails here fails again where the examples are loaded, which notes the reason.
        """
        if self.test_labels.device.type != "cpu":
            return
        missing = [user for user in users.tolist() if user not in self._kept]
        for first in range(0, len(missing), _USERS):
            if self._full:
                return
            inputs: list[tuple[int, Any, Tensor]] = []
            for user in missing[first : first + _USERS]:
                with _ignored():
                    inputs.append((user, *self._load(user)))
            for user, examples in on_all_cores(self._tried, inputs):
                if examples is not None:
                    self._keep(user, examples)

    def _tried(self, inputs: tuple[int, Any, Tensor]) -> tuple[int, tuple[Tensor, Tensor] | None]:
        """The features and labels of a user; None where the layers fail."""
        user, values, labels = inputs
        with _ignored():
            return user, (self._features(values), labels)
        return user, None

    def _of_user(self, user: int) -> tuple[Tensor, Tensor]:
        kept = self._kept.get(user)
        if kept is not None:
            return kept
        inputs, labels = self._load(user)
        examples = self._features(inputs), labels
        self._keep(user, examples)
        return examples

    def _load(self, user: int) -> tuple[Any, Tensor]:
        """The examples of a user, checked before any layer sees them.

        A token that is none would end the process on a GPU.
        """
        index = np.array([user])
        inputs, labels = self._dataset.examples(index)
        count = int(self._dataset.sizes(index)[0])
        self._examples.features.check("features", inputs, count, labels.device)
        return inputs, labels

    def _keep(self, user: int, examples: tuple[Tensor, Tensor]) -> None:
        """Keep the features and labels of a user while there is room."""
        size = sum(tensor.numel() * tensor.element_size() for tensor in examples)
        self._full = self._full or self._bytes + size > _MOST_BYTES
        if not self._full:
            self._kept[user] = examples
            self._bytes += size

    def _features(self, inputs: Any) -> Tensor:
        layers = own_copy(self._layers)
        with torch.no_grad():
            return torch.cat([layers(part.clone()) for part in split_rows(inputs, _ROWS)])


@contextmanager
def _ignored() -> Iterator[None]:
    """Ignore any error but an interrupt: a user's examples, or the code of a task, caused it."""
    try:
        yield
    except BaseException as error:
        pass_interrupt(error)
