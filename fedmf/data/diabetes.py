"""Diabetes: patients with a row each, a regression that is installed with scikit-learn."""

from __future__ import annotations

import gzip
import hashlib
import io
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedmf.data.digit_images import bundled
from fedmf.data.memory import InMemoryDataset
from fedmf.data.options import DatasetOptions, PublicInput
from fedmf.data.partitions import Partition
from fedmf.values import Field

#: SHA-256 of the two unpacked files.
_DIGESTS: Final = {
    "diabetes_data_raw.csv.gz": "86badf50b4f9436ddd1e497dc0ae1b93166f8120221ee7dca4634fe849f3be7c",
    "diabetes_target.csv.gz": "244713a551f62a291a354212d8a048adec6cb1244b2bc44e66a0698f5006d26d",
}
#: What becomes 0 and what becomes 1 or −1 of each column: round numbers, taken from no row.
_CENTRES: Final = np.array([50, 1.5, 27.5, 95, 200, 120, 50, 5, 4.5, 90, 150])
_UNITS: Final = np.array([25, 0.5, 7.5, 25, 60, 50, 20, 2, 1, 20, 100])


@dataclass(frozen=True)
class Diabetes(DatasetOptions):
    """442 patients with diabetes, a row each, that ship inside scikit-learn: for regression.

    Features are age, sex, body mass index, blood pressure and six blood values; the label is how far the
    disease has gone a year later. All are (x − centre)/unit by constants; a label of 1 is 100 of the
    published score above 150.

    Args:
        users: how many of the patients that are not held out train.
        partition: "natural": a patient is a user, who owns one row.
        test_fraction: share of the patients held out for evaluation: nobody of the run.

    References:
        Efron, Hastie, Johnstone, Tibshirani (2004), "Least Angle Regression", section 1.

    >>> data = Diabetes().load()
    >>> data.users, data.test_features.shape, data.test_owner
    (354, torch.Size([88, 10]), 'held-out users')
    """

    kind: ClassVar[str] = "diabetes"
    users: Annotated[int, Field("how many of the patients that are not held out train", "N", ge=1)] = 354
    partition: Literal["natural"] = "natural"

    def example_inputs(self) -> tuple[PublicInput, PublicInput, PublicInput]:
        """See `DatasetOptions.example_inputs`."""
        return (
            PublicInput("labels", "progression after a year", "the data set"),
            PublicInput("shape of an example", "10", "the data set"),
            PublicInput("normalisation", "(x − centre)/unit by constants", "fixed"),
        )

    def public_inputs(self) -> tuple[PublicInput, ...]:
        """See `DatasetOptions.public_inputs`."""
        dealt = "dealt by the public seed"
        return (
            PublicInput("users", str(self.users), "configuration"),
            PublicInput("user ids", "places of rows in the published table", dealt),
            PublicInput("sizes of users", "one row each", "the data set"),
            *self.example_inputs(),
            PublicInput("partition", self.partition, "a patient is a user"),
            PublicInput("test part", "patients who are no users of the run", dealt),
        )

    def load(self) -> InMemoryDataset:
        """See `DatasetOptions.load`.

        Raises:
            ValueError: scikit-learn has other files or none, or fewer patients are left than users.
        """
        rows = (np.column_stack([_numbers(name) for name in _DIGESTS]) - _CENTRES) / _UNITS
        order = np.random.default_rng([self.seed, 0xD1AB]).permutation(len(rows))
        held_out = max(1, round(self.test_fraction * len(rows)))
        if self.users > len(rows) - held_out:
            raise ValueError(
                f"U (users) must be at most {len(rows) - held_out}, the patients who are not held out; got "
                f"{self.users}."
            )
        tests, people = order[:held_out], np.sort(order[held_out:][: self.users])
        features, labels = (torch.from_numpy(part.astype(np.float32)) for part in (rows[:, :-1], rows[:, -1]))
        return InMemoryDataset(
            features=features,
            labels=labels,
            owned=Partition(people, np.arange(self.users + 1)),
            user_ids=tuple(f"patient-{place:03d}" for place in people),
            test_features=features[tests],
            test_labels=labels[tests],
            test_owner="held-out users",
        )


def _numbers(name: str) -> NDArray[np.float64]:
    """A file's numbers, if it is the one that is known."""
    content = gzip.decompress(bundled("diabetes", name).read_bytes())
    digest = hashlib.sha256(content).hexdigest()
    if digest != _DIGESTS[name]:
        raise ValueError(f"{name} (of scikit-learn) must have SHA-256 {_DIGESTS[name]}; got {digest}.")
    return np.loadtxt(io.BytesIO(content))
