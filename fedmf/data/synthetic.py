"""Made-up data: LEAF's synthetic task, whose users are generated on demand, and images of nothing."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.data.dataset import FederatedDataset, NumberedUsers
from fedmf.data.keyed_draws import KeyedDraws, normals, quantile_levels, sixteen_bits
from fedmf.data.options import DatasetOptions, PublicInput, in_words
from fedmf.data.partitions import pareto_quantiles
from fedmf.values import Field

#: Held-out users have numbers from here on, which no configuration reaches.
_FIRST_TEST_USER: Final = 1 << 40
_MOST_TEST_USERS: Final = 500
#: Examples computed at a time: intermediate results stay in the cache, and in memory already mapped.
_BLOCK: Final = 256


@dataclass(frozen=True)
class Synthetic(DatasetOptions):
    """Linear-softmax labels on Gaussian features, with models and features that differ between users.

    User k belongs to one of s clusters c, uniformly, and draws
        its model       w_k = Q·(μ_c + α·ε_k),    Q of shape (features + 1, classes, s), ε_k ~ N(0, I_s),
        its features    x ~ N(v_k, Σ), v_k ~ N(B_k, I), B_k ~ N(0, β²), Σ = diag(j^−1.2),
        its labels      y = argmax(w_kᵀ(1, x) + 0.1·N(0, I)).
    LEAF has α = 0.1, β = 1 and two clusters; α = 0 with one cluster gives everybody the same model.
    Test examples come from users of their own, ``test_fraction`` times as many, at most 500.

    References:
        Caldas et al. (2018), "LEAF: A Benchmark for Federated Settings", dataset Synthetic, which
        builds on Synthetic(α, β) of Li et al. (2020), "Federated Optimization in Heterogeneous
        Networks", section 5.1. There the users' models share only a scalar mean, so that no model is
        better than chance on a new user; here, as in LEAF, they share Q.

    >>> data = Synthetic(users=1_000_000, examples_per_user=20).load()
    >>> features, labels = data.examples(np.array([999_999, 5]))
    >>> features.shape, data.user_ids[5]
    (torch.Size([40, 60]), 'user-000005')
    """

    kind: ClassVar[str] = "synthetic"
    partition: Annotated[
        Literal["iid", "power-law"],
        Field("iid: all users own examples_per_user; power-law: Pareto's law of sizes"),
    ] = "iid"
    examples_per_user: Annotated[int, Field("mean number of examples of a user", ge=1)] = 20
    features: Annotated[int, Field("dimension of an example", ge=1)] = 60
    classes: Annotated[int, Field("number of classes", ge=2)] = 10
    clusters: Annotated[int, Field("clusters of users", "s", ge=1, le=1000)] = 2
    alpha: Annotated[float, Field("α, how much models of users differ", "α", ge=0)] = 0.1
    beta: Annotated[float, Field("β, how much examples of users differ", "β", ge=0)] = 1.0

    def example_inputs(self) -> tuple[PublicInput, PublicInput, PublicInput]:
        """See `DatasetOptions.example_inputs`."""
        return (
            PublicInput("classes", str(self.classes), "configuration"),
            PublicInput("shape of an example", in_words((self.features,)), "configuration"),
            PublicInput("normalisation", "none: generated", "fixed"),
        )

    def load(self) -> SyntheticDataset:
        """See `DatasetOptions.load`."""
        return SyntheticDataset(self)


class SyntheticDataset(FederatedDataset):
    """The users of `Synthetic`, who are computed when they are asked for.

    A user is a function of ``seed`` and its number alone: memory does not grow with the number of users, and
    user 7 is the same among 10 users as among 10⁶.

    Args:
        options: how many users of what law.
    """

    counts_are_exact: ClassVar[bool] = True

    def __init__(self, options: Synthetic) -> None:
        features, clusters, classes, seed = options.features, options.clusters, options.classes, options.seed
        self._ids = NumberedUsers(options.users)
        self.user_ids, self.classes = self._ids, classes
        self._features, self._clusters = features, clusters
        self._alpha, self._beta = options.alpha, options.beta
        self._sizes = _size_table(options)
        self._size_draws, self._draws = KeyedDraws(seed, "sizes"), KeyedDraws(seed, "synthetic")
        rng = np.random.default_rng([seed, 0x1EAF])
        self._factors = rng.standard_normal((features + 1, clusters * classes))
        self._means = rng.standard_normal((clusters, 1)) + rng.standard_normal((clusters, clusters))
        self._scale = (np.arange(1, features + 1) ** -0.6).astype(np.float32)
        self._device = torch.device("cpu")
        held_out = min(_MOST_TEST_USERS, max(1, round(options.test_fraction * options.users)))
        self.test_features, self.test_labels = self.examples(np.arange(held_out) + _FIRST_TEST_USER)

    def index_of(self, user_id: str) -> int:
        """See `FederatedDataset.index_of`."""
        return self._ids.index_of(user_id)

    def sizes(self, users: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `FederatedDataset.sizes`."""
        words = self._size_draws.words(users, np.zeros((len(users), 1), dtype=np.int64))
        return self._sizes[sixteen_bits(words)[:, 0]]

    def examples(self, users: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """See `FederatedDataset.examples`."""
        sizes = self.sizes(users)
        owner = np.repeat(np.arange(len(users)), sizes)
        place = np.arange(owner.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        taste, centre = self._taste_and_centre(users)
        features = np.empty((owner.size, self._features), dtype=np.float32)
        labels = np.empty(owner.size, dtype=np.int64)
        for first in range(0, owner.size, _BLOCK):
            block = slice(first, first + _BLOCK)
            mine = owner[block]
            z = self._example_draws(users[mine], place[block])
            x = features[block]
            np.multiply(z[:, : self._features], self._scale, out=x)
            x += centre[mine]
            noise = z[:, self._features : self._features + self.classes]
            labels[block] = (self._scores(x, taste[mine]) + 0.1 * noise).argmax(axis=1)
        return torch.from_numpy(features).to(self._device), torch.from_numpy(labels).to(self._device)

    def _example_draws(self, users: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.float32]:
        """Normal numbers of single examples: features first, then the labels' noise."""
        words = -(-(self._features + self.classes) // 4)
        return normals(
            self._draws.words(users, (self._head_words + words * places)[:, None] + np.arange(words))
        )

    @property
    def _head_words(self) -> int:
        """Words in front of a user's examples: its cluster, then its own normal numbers."""
        return 1 + -(-(self._clusters + 1 + self._features) // 4)

    def _taste_and_centre(self, users: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        """μ_c + α·ε_k, shape (m, clusters), and v_k, shape (m, features)."""
        words = self._draws.words(
            users, np.broadcast_to(np.arange(self._head_words), (len(users), self._head_words))
        )
        cluster = sixteen_bits(words[:, :1])[:, 0].astype(np.int64) * self._clusters >> 16
        z = normals(words[:, 1:])
        s = self._clusters
        centre = z[:, s + 1 : s + 1 + self._features] + np.float32(self._beta) * z[:, s : s + 1]
        return self._means[cluster] + self._alpha * z[:, :s], centre.astype(np.float32)

    def _scores(self, x: NDArray[np.float32], taste: NDArray[np.float64]) -> NDArray[np.float64]:
        """w_kᵀ(1, x) in float64: its rounding, which depends on the block, decides no label in practice."""
        products = x.astype(np.float64) @ self._factors[1:] + self._factors[0]
        return np.einsum("esc,es->ec", products.reshape(len(x), self._clusters, self.classes), taste)

    def to(self, device: torch.device | str) -> Self:
        """See `FederatedDataset.to`; examples are still generated on the CPU."""
        moved = copy.copy(self)
        moved._device = torch.device(device)
        moved.test_features, moved.test_labels = self.test_features.to(device), self.test_labels.to(device)
        return moved


def _size_table(options: Synthetic) -> NDArray[np.int64]:
    levels, mean = quantile_levels(), options.examples_per_user
    if options.partition == "iid":
        return np.full(levels.size, mean, dtype=np.int64)
    return np.maximum(1, np.rint(pareto_quantiles(levels, mean, options.size_exponent))).astype(np.int64)
