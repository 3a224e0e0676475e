"""Simulated data: LEAF's synthetic task, with users that are generated on demand."""

from __future__ import annotations

import copy
import hashlib
from dataclasses import dataclass
from functools import cache
from typing import Annotated, ClassVar, Final, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor

from fedmf.data.dataset import Dataset, NumberedUsers
from fedmf.data.options import DatasetOptions, PublicInput, in_words
from fedmf.values import Field

#: Held-out users have numbers from here on, which no configuration reaches.
_FIRST_TEST_USER: Final = 1 << 40
_MOST_TEST_USERS: Final = 500
#: Examples computed at a time: intermediate results stay in the cache, and in memory already mapped.
_BLOCK: Final = 256
#: s, α and β of LEAF.
_CLUSTERS: Final = 2
_ALPHA: Final = 0.1
_BETA: Final = 1.0
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Synthetic(DatasetOptions):
    """Linear-softmax labels on Gaussian features, with models and features that differ between users.

    User k belongs to one of s = 2 clusters c, uniformly, and with LEAF's α = 0.1 and β = 1 draws
        its model       w_k = Q·(μ_c + α·ε_k),    Q of shape (features + 1, classes, s), ε_k ~ N(0, I_s),
        its features    x ~ N(v_k, Σ), v_k ~ N(B_k, I), B_k ~ N(0, β²), Σ = diag(j^−1.2),
        its labels      y = argmax(w_kᵀ(1, x) + 0.1·N(0, I)).
    Everybody owns equally many. Test examples come from users of their own, ``test_fraction`` times as many,
    at most 500.

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
    partition: Literal["iid"] = "iid"
    examples_per_user: Annotated[int, Field("number of examples of a user", ge=1)] = 20
    features: Annotated[int, Field("dimension of an example", ge=1)] = 60
    classes: Annotated[int, Field("number of classes", ge=2)] = 10

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


class SyntheticDataset(Dataset):
    """The users of `Synthetic`, who are computed when they are asked for.

    A user is a function of ``seed`` and its number alone: memory does not grow with the number of users, and
    user 7 is the same among 10 users as among 10⁶.

    Args:
        options: how many users of what law.
    """

    counts_are_exact: ClassVar[bool] = True

    def __init__(self, options: Synthetic) -> None:
        self._ids = NumberedUsers(options.users)
        self.user_ids, self.classes = self._ids, options.classes
        self._features, self._size = options.features, options.examples_per_user
        self._draws = KeyedDraws(options.seed, "synthetic")
        rng = np.random.default_rng([options.seed, 0x1EAF])
        self._factors = rng.standard_normal((options.features + 1, _CLUSTERS * options.classes))
        self._means = rng.standard_normal((_CLUSTERS, 1)) + rng.standard_normal((_CLUSTERS, _CLUSTERS))
        self._scale = (np.arange(1, options.features + 1) ** -0.6).astype(np.float32)
        self._device = torch.device("cpu")
        held_out = min(_MOST_TEST_USERS, max(1, round(options.test_fraction * options.users)))
        self.test_features, self.test_labels = self.examples(np.arange(held_out) + _FIRST_TEST_USER)

    def index_of(self, user_id: str) -> int:
        """See `Dataset.index_of`."""
        return self._ids.index_of(user_id)

    def sizes(self, users: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `Dataset.sizes`."""
        return np.full(len(users), self._size, dtype=np.int64)

    def examples(self, users: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """See `Dataset.examples`."""
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
        return 1 + -(-(_CLUSTERS + 1 + self._features) // 4)

    def _taste_and_centre(self, users: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        """μ_c + α·ε_k, shape (m, clusters), and v_k, shape (m, features)."""
        words = self._draws.words(
            users, np.broadcast_to(np.arange(self._head_words), (len(users), self._head_words))
        )
        cluster = sixteen_bits(words[:, :1])[:, 0].astype(np.int64) * _CLUSTERS >> 16
        z = normals(words[:, 1:])
        s = _CLUSTERS
        centre = z[:, s + 1 : s + 1 + self._features] + np.float32(_BETA) * z[:, s : s + 1]
        return self._means[cluster] + _ALPHA * z[:, :s], centre.astype(np.float32)

    def _scores(self, x: NDArray[np.float32], taste: NDArray[np.float64]) -> NDArray[np.float64]:
        """w_kᵀ(1, x) in float64: its rounding, which depends on the block, decides no label in practice."""
        products = x.astype(np.float64) @ self._factors[1:] + self._factors[0]
        return np.einsum("esc,es->ec", products.reshape(len(x), _CLUSTERS, self.classes), taste)

    def to(self, device: torch.device | str) -> Self:
        """See `Dataset.to`; examples are still generated on the CPU."""
        moved = copy.copy(self)
        moved._device = torch.device(device)
        moved.test_features, moved.test_labels = self.test_features.to(device), self.test_labels.to(device)
        return moved


class KeyedDraws:
    """Words of 64 random bits, addressed by user and counter.

    Only integers are computed, so that every machine draws the same bits for any set of users at once.
    These are not secret and never make noise for privacy.

    Args:
        seed: public seed.
        purpose: separates the draws of one seed.

    References:
        Steele, Lea, Flood (2014), "Fast splittable pseudorandom number generators": the mixing function.

    >>> draws = KeyedDraws(seed=3, purpose="example")
    >>> together = draws.words(np.array([8, 5]), np.arange(2)[None, :].repeat(2, axis=0))
    >>> bool((together[1] == draws.words(np.array([5]), np.arange(2)[None, :])).all())
    True
    """

    def __init__(self, seed: int, purpose: str) -> None:
        digest = hashlib.sha256(f"fedmf data|{purpose}|{seed}".encode()).digest()
        self._key = np.frombuffer(digest[:8], dtype="<u8")[0]

    def words(self, users: NDArray[np.int64], counters: NDArray[np.int64]) -> NDArray[np.uint64]:
        """One word for each counter; row i of ``counters``, shape (m, …), belongs to ``users[i]``."""
        starts = _mixed(_mixed(users.astype(np.uint64) * _GOLDEN + self._key) + self._key)
        offsets = counters.astype(np.uint64)
        offsets *= _GOLDEN
        offsets += starts.reshape(-1, *(1,) * (counters.ndim - 1))
        return _mixed(offsets)


def _mixed(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64, in place."""
    word ^= word >> np.uint64(30)
    word *= np.uint64(0xBF58476D1CE4E5B9)
    word ^= word >> np.uint64(27)
    word *= np.uint64(0x94D049BB133111EB)
    word ^= word >> np.uint64(31)
    return word


def sixteen_bits(words: NDArray[np.uint64]) -> NDArray[np.uint16]:
    """Four 16-bit numbers from each word, along the last axis."""
    return np.ascontiguousarray(words, dtype="<u8").view("<u2")


@cache
def _normal_quantiles() -> NDArray[np.float32]:
    return ndtri((np.arange(1 << 16) + 0.5) / (1 << 16)).astype(np.float32)


def normals(words: NDArray[np.uint64]) -> NDArray[np.float32]:
    """Four standard normal numbers from each word, along the last axis.

    They take the 65,536 midpoint quantiles of the normal law: good for data, |z| ≤ 4.33, variance 0.99997.
    """
    return np.take(_normal_quantiles(), sixteen_bits(words))
