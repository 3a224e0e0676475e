"""How a run is executed, cut by who reads it: messages, workers, waiting, rhythm, place."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from fedmf.values import Value


@dataclass(frozen=True)
class Messages:
    """What a reply holds. Read by whoever makes messages.

    Args:
        messages: "slice": a worker's reply is one sum over its users, whom it clips. "per-user": a reply is
            one row a user; the server clips each again.
        users_per_message: with messages "per-user": most users that one message asks a node for; unset: as
            many as have rows of 2^28 bytes together. 1 is a message a user.
    """

    messages: Literal["slice", "per-user"] = "slice"
    users_per_message: int | None = None

    def __post_init__(self) -> None:
        if self.messages not in ("slice", "per-user"):
            raise ValueError(f"messages must be 'slice' or 'per-user'; got {self.messages!r}.")
        if self.users_per_message is not None and not 1 <= self.users_per_message < 2**31:
            raise ValueError(
                f"users_per_message must be unset or an integer in 1..2^31-1; got {self.users_per_message!r}."
            )


@dataclass(frozen=True)
class Workers:
    """Who trains in a simulation. Read by its engines.

    Args:
        workers: how many slices a cohort is cut into; with Ray, actors.
        worker_gpus: GPUs that each Ray actor reserves; above 0 it trains on one.
        ray_address: of a Ray cluster; empty starts one on this machine.
    """

    workers: int = 1
    worker_gpus: float = 0.0
    ray_address: str = ""

    def __post_init__(self) -> None:
        _check_counts(self, "workers")
        _check_real(self, "worker_gpus", zero=True)


@dataclass(frozen=True)
class Waiting:
    """For whom, and how long, a round waits. Read by the loop of rounds, and by who believes nodes.

    Args:
        round_timeout: seconds to wait for the replies of a round with messages "per-user". Slices are waited
            for, so that one user's slow training cannot take others out of the sum.
        handshake_timeout: seconds before the first round in which nodes may say whom they serve; after that
            it begins with those that did, and later answers are taken in beside training. As long as no node
            serves anybody, ``round_timeout`` is waited, and in a simulation as long as a worker is silent.
        enrolment: of a SuperLink that authenticates its nodes over TLS: a file with a line for each user
            that a node may serve, the node's public key and the user's id, ``ecdsa-sha2-nistp384 AAAA… ID``.
            Other nodes, and other claims, are ignored. Empty believes nodes as they say.
        min_replies: with messages "per-user": after so many replies to a round, however many users each is
            for, the others are not waited for; 0 waits for all.

    Raises:
        ValueError: a value out of its range.
    """

    round_timeout: float = 600.0
    handshake_timeout: float = 60.0
    enrolment: str = ""
    min_replies: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.min_replies < 2**31:
            raise ValueError(f"min_replies must be an integer in 0..2^31-1; got {self.min_replies!r}.")
        _check_real(self, "round_timeout", "handshake_timeout")


@dataclass(frozen=True)
class Rhythm:
    """What happens in some rounds only. Read by a session.

    Args:
        evaluate_every: rounds between evaluations on the central test part.
        checkpoint_every: rounds between checkpoints; the work of the rounds since the last is lost when a run
            is interrupted, their privacy is spent.
    """

    evaluate_every: int = 1
    checkpoint_every: int = 1

    def __post_init__(self) -> None:
        _check_counts(self, "evaluate_every", "checkpoint_every")


@dataclass(frozen=True)
class Place:
    """Where a run lives, in which two processes of one run may differ. Read by the edge.

    Args:
        output_dir: run directory; absolute under ``flwr run``.
        resume: under ``flwr run``, go on with the run in ``output_dir``.
    """

    output_dir: str = ""
    resume: bool = False

    def __post_init__(self) -> None:
        """Every place will do; the edge looks whether it can be used."""


@dataclass(frozen=True)
class Execution(Place, Rhythm, Waiting, Workers, Messages, Value):
    """How a run is executed, on any engine.

    One table, as it is written down. Who reads it takes the part that it reads: `Messages`, `Workers`,
    `Waiting`, `Rhythm` or `Place`.

    Raises:
        ValueError: a value out of its range.
    """

    kind: ClassVar[str] = "flower"
    #: Fields in which two processes of one run may differ: they say where it is, not what it computes.
    PLACE: ClassVar[frozenset[str]] = frozenset(field.name for field in dataclasses.fields(Place))

    def __post_init__(self) -> None:
        for part in (Messages, Workers, Waiting, Rhythm, Place):
            part.__post_init__(self)
        if self.min_replies and self.messages == "slice":
            raise ValueError(
                f"min_replies must be 0 with messages 'slice'; got {self.min_replies!r}. One user's slow "
                "training would take others out of the sum."
            )


def _check_counts(part: object, *names: str) -> None:
    for name in names:
        if not 1 <= getattr(part, name) < 2**31:
            raise ValueError(f"{name} must be an integer in 1..2^31-1; got {getattr(part, name)!r}.")


def _check_real(part: object, *names: str, zero: bool = False) -> None:
    for name in names:
        value = getattr(part, name)
        if not (0 < value < math.inf or (zero and value == 0)):
            within = "finite and at least 0" if zero else "positive and finite"
            raise ValueError(f"{name} must be {within}; got {value!r}.")
