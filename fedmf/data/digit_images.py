"""The digits data set."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch

from fedmf.data.dataset import NumberedUsers
from fedmf.data.memory import InMemoryDataset
from fedmf.data.options import PublicInput, Spread, SpreadOptions, in_words
from fedmf.values import Field


@dataclass(frozen=True)
class Digits(SpreadOptions):
    """The 1,797 handwritten 8×8 digits that ship inside scikit-learn, split over users.

    Features are scaled to [0, 1]. There may be as many users as training examples.

    References:
        E. Alpaydin, C. Kaynak (1998), Optical Recognition of Handwritten Digits, UCI.

    >>> Digits(users=10, partition="dirichlet").load().test_features.shape
    torch.Size([359, 64])
    """

    kind: ClassVar[str] = "digits"
    partition: Spread = "iid"
    input_shape: Annotated[
        tuple[int, ...], Field("shape of an example: 1,8,8 for convolutions; default: vectors of 64", ge=1)
    ] = ()

    def example_inputs(self) -> tuple[PublicInput, PublicInput, PublicInput]:
        """See `DatasetOptions.example_inputs`."""
        return (
            PublicInput("classes", "10", "the data set"),
            PublicInput("shape of an example", in_words(self.input_shape or (64,)), "configuration"),
            PublicInput("normalisation", "pixels / 16", "fixed"),
        )

    def load(self) -> InMemoryDataset:
        """See `DatasetOptions.load`."""
        table = np.loadtxt(bundled("digits", "digits.csv.gz"), delimiter=",")
        images, targets = table[:, :-1], table[:, -1].astype(np.int64)
        rng = np.random.default_rng([self.seed, 0xD161])
        order = rng.permutation(targets.size)
        held_out = round(self.test_fraction * targets.size)
        if held_out == 0:
            raise ValueError(
                f"test_fraction must hold out at least one of {targets.size} examples; "
                f"got {self.test_fraction}."
            )
        test, train = order[:held_out], order[held_out:]
        owned = self.split(targets[train], rng)
        features = torch.from_numpy((images / 16.0).astype(np.float32))
        labels = torch.from_numpy(targets.astype(np.int64))
        dataset = InMemoryDataset(
            features=features[train],
            labels=labels[train],
            owned=owned,
            user_ids=NumberedUsers(self.users),
            test_features=features[test],
            test_labels=labels[test],
            classes=10,
        )
        return dataset.reshaped(self.input_shape) if self.input_shape else dataset


def bundled(dataset: str, name: str) -> Path:
    """A data file of scikit-learn, which itself is slow to import.

    Args:
        dataset: who asks.
        name: of the file.

    Raises:
        ValueError: scikit-learn is not installed, or has no such file.
    """
    spec: Any = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise ValueError(f"dataset {dataset!r} needs the extra: pip install 'fedmf[data]'.")
    place = Path(spec.origin).parent / "datasets" / "data" / name
    if not place.is_file():
        raise ValueError(f"dataset {dataset!r} needs {name} of scikit-learn, which lacks it.")
    return place
