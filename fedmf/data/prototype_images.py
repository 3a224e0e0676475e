"""Noisy class prototypes: images of nothing, for measuring engines."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import torch

from fedmf.data.dataset import NumberedUsers
from fedmf.data.memory import InMemoryDataset
from fedmf.data.options import Spread, SpreadOptions
from fedmf.data.public_input import PublicInput, in_words
from fedmf.values import check_sizes, check_whole

_MOST_NUMBERS: Final = 1 << 33


@dataclass(frozen=True)
class Prototypes(SpreadOptions):
    """Each example is its class's fixed random image plus noise; labels are uniform.

    Images and noise have independent standard normal entries. Test examples are drawn beside the training
    examples, ``test_fraction`` times as many, at most 10,000.

    Args:
        input_shape: of one example.
        examples_per_user: n ≥ 1, the mean number of examples of a user.
        classes: number of prototypes, at least 2.

    Raises:
        ValueError: a value is out of range, or there are more than 2³³ numbers, all of which would lie in
            memory.

    >>> data = Prototypes(users=5, examples_per_user=20).load()
    >>> data.features.shape, data.sizes(np.arange(5)).tolist(), data.test_labels.numel()
    (torch.Size([100, 1, 28, 28]), [20, 20, 20, 20, 20], 20)
    """

    kind: ClassVar[str] = "prototypes"
    partition: Spread = "iid"
    input_shape: tuple[int, ...] = (1, 28, 28)
    examples_per_user: int = 20
    classes: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes("input_shape", self.input_shape, 1)
        check_whole("n (examples_per_user)", self.examples_per_user)
        check_whole("classes", self.classes, 2)
        numbers = self.users * self.examples_per_user * math.prod(self.input_shape)
        if numbers > _MOST_NUMBERS:
            raise ValueError(
                f"prototypes must have at most {_MOST_NUMBERS} numbers in memory; got {numbers}. "
                "Use fewer users, or the synthetic dataset, which is generated on demand."
            )

    def example_inputs(self) -> tuple[PublicInput, PublicInput, PublicInput]:
        """See `DatasetOptions.example_inputs`."""
        return (
            PublicInput("classes", str(self.classes), "configuration"),
            PublicInput("shape of an example", in_words(self.input_shape), "configuration"),
            PublicInput("normalisation", "none: generated", "fixed"),
        )

    def load(self) -> InMemoryDataset:
        """See `DatasetOptions.load`."""
        examples, width = self.users * self.examples_per_user, math.prod(self.input_shape)
        rng = np.random.default_rng([self.seed, 0x9407])
        images = rng.standard_normal((self.classes, width), dtype=np.float32)
        tests = min(10_000, max(1, round(self.test_fraction * examples)))

        def draw(count: int) -> tuple[torch.Tensor, torch.Tensor]:
            labels = rng.integers(self.classes, size=count)
            features = rng.standard_normal((count, width), dtype=np.float32)
            features += images[labels]
            return torch.from_numpy(features.reshape(count, *self.input_shape)), torch.from_numpy(labels)

        features, labels = draw(examples)
        test_features, test_labels = draw(tests)
        return InMemoryDataset(
            features=features,
            labels=labels,
            owned=self.split(labels.numpy(), rng),
            user_ids=NumberedUsers(self.users),
            test_features=test_features,
            test_labels=test_labels,
            classes=self.classes,
        )
