"""Simulated data: LEAF's synthetic task, with users that are generated on demand.

It serves benchmarks and tests with any number of users; no person is behind a row.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.data.dataset import Dataset, NumberedUsers
from fedmf.data.dataset_options import DatasetOptions, PublicInput, in_words
from fedmf.values import Field

#: Held-out users have numbers from here on, which no configuration reaches.
_FIRST_TEST_USER: Final = 1 << 40
_MOST_TEST_USERS: Final = 500
#: s, α and β of LEAF.
_CLUSTERS: Final = 2
_ALPHA: Final = 0.1
_BETA: Final = 1.0


@dataclass(frozen=True)
class Synthetic(DatasetOptions):
    """Linear-softmax labels on Gaussian features, distributed differently for each user.

    User k belongs to one of s = 2 clusters c, uniformly, and with LEAF's α = 0.1 and β = 1 draws

        its model     w_k = Q·(μ_c + α·ε_k), Q of shape (features + 1, classes, s), ε_k ~ N(0, I_s),
        its features  x ~ N(v_k, Σ), v_k ~ N(B_k, I), B_k ~ N(0, β²), Σ = diag(j^−1.2),
        its labels    y = argmax(w_kᵀ(1, x) + 0.1·N(0, I)).

    All users own equally many examples. Test examples come from users of their own,
    ``test_fraction`` times as many, at most 500.

    References:
        Caldas et al. (2018), "LEAF: A Benchmark for Federated Settings", dataset Synthetic, which
        builds on Synthetic(α, β) of Li et al. (2020), "Federated Optimization in Heterogeneous
        Networks", section 5.1. There the users' models share only a scalar mean, so that no model
        is better than chance on a new user; here, as in LEAF, they share Q.

    >>> data = Synthetic(users=1_000_000, examples_per_user=20).load()
    >>> features, labels = data.examples(np.array([999_999, 5]))
    >>> features.shape, data.user_ids[5]
    (torch.Size([40, 60]), 'user-000005')
    """

    kind: ClassVar[str] = "synthetic"
    partition: Literal["iid"] = "iid"
    examples_per_user: Annotated[int, Field("number of examples of a user", ge=1)] = 20
    features: Annotated[int, Field("dimension of an example", ge=1)] = 60
    classes: Annotated[int, Field("number of classes", ge=2)] = 10

    def example_inputs(self) -> tuple[PublicInput, PublicInput, PublicInput]:
        return (
            PublicInput("classes", str(self.classes), "configuration"),
            PublicInput("shape of an example", in_words((self.features,)), "configuration"),
            PublicInput("normalization", "none: generated", "fixed"),
        )

    def load(self) -> SyntheticDataset:
        return SyntheticDataset(self)


class SyntheticDataset(Dataset):
    """The users of `Synthetic`, whose examples are computed on demand.

    A user is a function of ``seed`` and its number alone: memory does not grow with the number of
    users, and user 7 is the same among 10 users as among 10⁶.

    Args:
        options: number of users and their law.
    """

    counts_are_exact: ClassVar[bool] = True

    def __init__(self, options: Synthetic) -> None:
        self._options = options
        self._device = torch.device("cpu")
        self._ids = NumberedUsers(options.users)
        self.user_ids = self._ids
        self.classes = options.classes
        rng = np.random.default_rng([options.seed, 0x1EAF])
        self._factors = rng.standard_normal((options.features + 1, options.classes, _CLUSTERS))
        centers = rng.standard_normal((_CLUSTERS, 1))
        self._means = centers + rng.standard_normal((_CLUSTERS, _CLUSTERS))
        held_out = min(_MOST_TEST_USERS, max(1, round(options.test_fraction * options.users)))
        self.test_features, self.test_labels = self.examples(np.arange(held_out) + _FIRST_TEST_USER)

    def index_of(self, user_id: str) -> int:
        return self._ids.index_of(user_id)

    def sizes(self, users: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.full(len(users), self._options.examples_per_user, dtype=np.int64)

    def examples(self, users: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        size = self._options.examples_per_user
        x = np.empty((len(users) * size, self._options.features), np.float32)
        y = np.empty(len(users) * size, np.int64)
        for place, user in enumerate(users):
            rows = slice(place * size, (place + 1) * size)
            x[rows], y[rows] = self._examples_of(int(user))
        return torch.from_numpy(x).to(self._device), torch.from_numpy(y).to(self._device)

    def _examples_of(self, user: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Draw the examples of one user; names are those of the law of `Synthetic`."""
        options = self._options
        d = self._options.features
        rng = np.random.default_rng([options.seed, 0x05E2, user])
        mu = self._means[rng.integers(_CLUSTERS)]
        w = self._factors @ (mu + _ALPHA * rng.standard_normal(_CLUSTERS))
        v = _BETA * rng.standard_normal() + rng.standard_normal(d)
        deviations = np.arange(1, d + 1) ** -0.6
        x = v + deviations * rng.standard_normal((options.examples_per_user, d))
        scores = w[0] + x @ w[1:]
        y = (scores + 0.1 * rng.standard_normal(scores.shape)).argmax(axis=1)
        return x.astype(np.float32), y

    def to(self, device: torch.device | str) -> Self:
        """Return the same users with examples on ``device``; they are generated on the CPU."""
        moved = copy.copy(self)
        moved._device = torch.device(device)
        moved.test_features = self.test_features.to(device)
        moved.test_labels = self.test_labels.to(device)
        return moved
