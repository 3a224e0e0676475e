"""What a run of somebody's own Flower app learns, as far as records go."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fedmf.data import PublicInput
from fedmf.errors import ConfigError
from fedmf.flower.messages import roster_digest
from fedmf.flower.wrapper.execution import UNREAD
from fedmf.flower.wrapper.layout import ArrayLayout
from fedmf.runs import Ranges
from fedmf.training import LocalSGD, Task


@dataclass(frozen=True, eq=False)
class FlowerAppTask:
    """The task of a Flower app, which its clients know and the server does not.

    Args:
        layout: of the model's arrays.
        roster: ids of all users in their order.
        identity: how users are told apart, in words.
        ranges: of the metrics that clients report and private evaluation releases, by name.
    """

    layout: ArrayLayout
    roster: Sequence[str]
    identity: str
    ranges: Ranges
    kind: ClassVar[str] = "flower-app"
    #: Training is the clients' own.
    unread: ClassVar[Mapping[str, Collection[str]]] = {
        "local": {field.name for field in dataclasses.fields(LocalSGD)},
        "execution": UNREAD.keys(),
    }

    @property
    def users(self) -> int:
        """N."""
        return len(self.roster)

    def build(self) -> Task:
        """There is none on the server.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("the task of a Flower app is its clients' own; continue it with CorrelatedNoise.")

    @property
    def unit(self) -> str:
        """Clients are users."""
        return "user"

    def public_inputs(self) -> tuple[PublicInput, ...]:
        """See `TaskSource.public_inputs`."""
        arrays = f"{len(self.layout.names)} arrays, {self.layout.dimension} numbers trained"
        ranges = ", ".join(f"{name} in [{low:g}, {high:g}]" for name, (low, high) in self.ranges.items())
        frozen = ", ".join(sorted(self.layout.kept)) or "none"
        return (
            PublicInput("users", str(self.users), "argument num_users"),
            PublicInput("user ids", self.identity, "the app"),
            PublicInput("model", arrays, "argument initial_arrays"),
            PublicInput("arrays that stay", frozen, "named frozen, or of whole numbers"),
            *([PublicInput("ranges of metrics", ranges, "argument evaluation_metrics")] if ranges else []),
        )

    def undeclared(self) -> tuple[str, ...]:
        """Nothing is read off anybody's examples."""
        return ()

    def to_dict(self) -> dict[str, Any]:
        """What a record keeps."""
        return {
            "kind": self.kind,
            "name": "clients of a Flower app",
            "users": self.users,
            "roster": roster_digest(self.roster),
            "identity": self.identity,
            "arrays": self.layout.whole.fingerprint(),
            "ranges": [[name, float(low), float(high)] for name, (low, high) in self.ranges.items()],
        }
