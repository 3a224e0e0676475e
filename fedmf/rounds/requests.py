"""What a node is asked about some users, its answer (rows of theirs, or one exact sum)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Self

from torch import Tensor

from fedmf.rounds.clients import Part
from fedmf.runs import Messages
from fedmf.training import ClippedSums, FixedPointSum, LocalTrainer, UserFailure, checked_sum

#: Most bytes of the rows of a message with more than one user.
_MOST_ROW_BYTES: Final = 2**28


@dataclass(frozen=True)
class MessageForm:
    """What a message asks of a node's users: one exact sum over all of them, or one row of each.

    Args:
        kind: "slice" or "per-user", as `Messages`.
        most_users: r ≥ 1, in a message that asks for rows.
    """

    kind: Literal["slice", "per-user"]
    most_users: int

    @classmethod
    def of(cls, messages: Messages, dimension: int) -> Self:
        """That of a run with d parameters: rows of a message take at most 2²⁸ bytes, unless it is one row."""
        fit = max(1, _MOST_ROW_BYTES // (4 * max(1, dimension)))
        return cls(messages.messages, min(fit, messages.users_per_message or fit))

    @property
    def is_slice(self) -> bool:
        """Whether contributions come summed."""
        return self.kind == "slice"

    def parts(self, by_node: Mapping[int, Sequence[str]]) -> list[Part]:
        """Cut the users of each node into messages, in their order.

        Args:
            by_node: users by the node that serves them.
        """
        parts: list[Part] = []
        for node, users in sorted(by_node.items()):
            most = max(1, len(users)) if self.is_slice else self.most_users
            parts += [(node, tuple(users[start : start + most])) for start in range(0, len(users), most)]
        return parts


@dataclass(frozen=True)
class Request:
    """Train ``users`` from ``parameters`` in round ``t`` (0-based).

    Args:
        parameters: of the model, shape (d,); who answers may write into them.
        t: the round.
        users: whom.
        as_slice: whether their contributions are summed; otherwise there is one row of each.
        clip_norm: ζ_t of the round; None for that of the run.
    """

    parameters: Tensor
    t: int
    users: tuple[str, ...]
    as_slice: bool
    clip_norm: float | None = None


@dataclass(frozen=True, eq=False)
class Answer:
    """What a request gave.

    Args:
        held: the rows, shape (r, d), in the order of the request, or the exact sums by name, int64.
        failures: who failed, and why: what they count for is zero.
    """

    held: Tensor | Mapping[str, Tensor]
    failures: Sequence[UserFailure]

    def add_to(self, total: FixedPointSum, users: Sequence[str]) -> dict[str, str]:
        """Add it to a sum, in which each of the users is counted; every row is clipped again.

        Args:
            total: of the round.
            users: whom the request named.

        Returns:
            Those whose row is not finite, and so is zero.

        Raises:
            ValueError: exact sums that no clipped contributions have.
        """
        if not isinstance(self.held, Tensor):
            total.add_parts(self.held, len(users))
            return {}
        finite = total.add_updates(self.held).tolist()
        return {
            user: "row holds NaN or infinity" for user, good in zip(users, finite, strict=True) if not good
        }


def trained(request: Request, trainer: LocalTrainer, sums: ClippedSums) -> Answer:
    """Train the users, clip what they changed.

    Raises:
        UnsoundSumError: a contribution above the clip norm, a mistake of fedmf.
    """
    sums = sums.at(request.clip_norm)
    if request.as_slice:
        total, failures = checked_sum(trainer, sums, request.parameters, request.users, request.t)
        return Answer(total.parts, failures)
    return Answer(*trainer.clipped_rows(request.parameters, request.users, request.t, sums.clip_norm))
