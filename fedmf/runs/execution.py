"""How a run is executed, on any engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from fedmf.values import Field, Value


@dataclass(frozen=True)
class Execution(Value):
    """Messages, workers, waiting, evaluation and place of a run.

    Slices are waited for, so that one user's slow training cannot take others out of the sum: only rounds
    with ``per-user`` messages end at ``round_timeout``. As long as no node serves anybody, that is waited
    for nodes, then ``handshake_timeout``; later answers are taken in during training.

    Raises:
        ValueError: a value out of its range.
    """

    kind: ClassVar[str] = "flower"
    #: Fields in which two processes of one run may differ: they say where it is, not what it computes.
    PLACE: ClassVar[frozenset[str]] = frozenset({"output_dir"})

    messages: Annotated[
        Literal["aggregate", "per-user"],
        Field(
            "aggregate: a reply is one sum over users, clipped there; per-user: a row a user, clipped again"
        ),
    ] = "aggregate"
    users_per_message: Annotated[
        int | None, Field("most users of a message per-user; default: rows of 2^28 bytes together", ge=1)
    ] = None
    workers: Annotated[int, Field("slices of a cohort in a simulation; with Ray, actors", ge=1)] = 1
    worker_gpus: Annotated[float, Field("GPUs of each Ray actor, which trains on them", ge=0)] = 0.0
    round_timeout: Annotated[
        float, Field("seconds to wait for replies of a round with messages per-user", gt=0)
    ] = 600.0
    handshake_timeout: Annotated[
        float, Field("seconds before the first round in which nodes may say whom they serve", gt=0)
    ] = 60.0
    enrolment: Annotated[
        str, Field("file of public keys of nodes and ids of their users, on a SuperLink with authentication")
    ] = ""
    evaluate_every: Annotated[int, Field("rounds between evaluations on the central test part", ge=1)] = 1
    checkpoint_every: Annotated[
        int, Field("rounds between checkpoints; an interruption loses the work since the last", ge=1)
    ] = 1
    output_dir: Annotated[
        str, Field("run directory; absolute under flwr run, which continues a run there")
    ] = ""
