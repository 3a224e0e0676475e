"""Ways to carry one run out: which promise each other's bits, and how far the rest may be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from fedmf.training.local_sgd import LocalEngine

#: Distance that sums in another order may make in three rounds, in units in the last place
#: (float32) of the largest number of a release. The largest measured is 5; a user left out of one
#: sum makes 10^6.
BOUND: Final = 32.0

HOSTS: Final = {"wrapper": "CorrelatedNoise", "aggregator": "PrivateAggregator"}


@dataclass(frozen=True)
class Path:
    """Who computes updates, how they travel, and who asks for them.

    Args:
        engine: of local training.
        messages: a sum for a worker's users, a row per user, or a message per user.
        workers: nodes that a cohort is spread over.
        host: who drives the rounds: fedmf with users in its process; fedmf's strategy by Flower's
            messages; a Flower app around which `CorrelatedNoise` stands, a node a user; or a plain
            loop that brings updates to a `PrivateAggregator`.
        device: of training, sum, noise and release.
    """

    engine: LocalEngine = "loop"
    messages: Literal["aggregate", "per-user", "one-user"] = "aggregate"
    workers: int = 1
    host: Literal["fedmf", "messages", "wrapper", "aggregator"] = "fedmf"
    device: Literal["cpu", "cuda"] = "cpu"

    def __str__(self) -> str:
        if self.host in HOSTS:
            return f"{self.engine}, {HOSTS[self.host]}"
        kinds = {"aggregate": "slices", "per-user": "rows", "one-user": "rows of 1"}
        words = [self.engine, kinds[self.messages]]
        words += [f"messages to {self.workers}"] if self.host == "messages" else []
        return ", ".join(words + (["a GPU"] if self.device == "cuda" else []))

    @property
    def same_bits(self) -> Path | None:
        """The path whose bits this one promises to have; None for one that is compared within the
        bound.

        A user's update is a function of that user alone, and sums are of integers: neither
        grouping, nor workers, nor rows of other users in a message change a bit. Clients of an app
        send models, in float32, and so are updates rounded that are brought. A GPU sums products of
        matrices in an order of its own.
        """
        if self.host in HOSTS or self.engine == "vmap" or self.device == "cuda":
            return None
        plain = replace(self, workers=1, host="fedmf")
        if self.messages == "one-user":
            plain = replace(plain, messages="per-user")
        return None if plain == self else plain


#: What all are compared with: one user after another by torch, integers summed where users are
#: trained.
REFERENCE: Final = Path()
DEFAULT: Final = Path("auto")
#: Every subject is carried out on these.
PATHS: Final = (
    REFERENCE,
    DEFAULT,
    Path("auto", workers=2, host="messages"),
    Path("vmap"),
    Path("auto", "per-user"),
    Path("auto", "one-user"),
    Path("auto", "per-user", workers=2, host="messages"),
    Path("vmap", "per-user"),
    Path("loop", "per-user"),
)
WRAPPED: Final = Path("loop", "one-user", host="wrapper")
AGGREGATED: Final = Path("loop", "one-user", host="aggregator")
#: Where there is a GPU.
ON_GPU: Final = (
    Path("auto", device="cuda"),
    Path("auto", "per-user", device="cuda"),
    Path("vmap", device="cuda"),
    Path("loop", device="cuda"),
)
