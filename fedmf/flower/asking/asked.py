"""Which users a message asks, and what the reply to it adds to a sum."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Self

import torch
from flwr.app import Message, MessageType
from torch import Tensor

from fedmf.cohorts import CheckInCohorts, Cohorts
from fedmf.errors import ConfigError
from fedmf.flower.boundary import Quarantine
from fedmf.flower.compat import arrived
from fedmf.flower.messages import read_failures, read_rows_reply, read_slice_reply, request_content
from fedmf.runs import Execution, Messages
from fedmf.training import FixedPointSum, UserFailure

_DAY: Final = 86_400.0


@dataclass(frozen=True)
class Timetable:
    """Rounds begin at whole multiples of a period since 1970, however long the last one took.

    If a round began when the one before it had ended, a device that is slow would put others, who check in
    later, into another round. What one user does must not decide in which round another takes part
    (docs/check-in.md, condition S).

    Args:
        seconds: the period; 0 for a run that waits for nothing.
    """

    seconds: float = 0.0

    @classmethod
    def of(cls, cohorts: Cohorts, execution: Execution) -> Self:
        """That of a run on nodes that come and go.

        Raises:
            ConfigError: a round may last longer than the time until the next.
        """
        if not (isinstance(cohorts, CheckInCohorts) and cohorts.live):
            return cls()
        period = _DAY / cohorts.rounds_per_day
        longest = math.inf if execution.messages == "slice" else execution.round_timeout
        if not longest < period:
            raise ConfigError(
                f"round_timeout must be below {period:g} s, the period of live rounds, with messages "
                f"'per-user'; got {longest:g} s with messages {execution.messages!r}. Longer waits would "
                "move the rounds of others."
            )
        return cls(period)

    def wait(
        self, clock: Callable[[], float] = time.time, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Until the next round may begin.

        A sleep is as long as it should be by another clock than this one. Where it ends too soon it goes on,
        else there would be two rounds at one multiple; a clock that is set back is waited for one period.

        >>> now = [7 * 3600 + 60.0]
        >>> Timetable(3600).wait(clock=lambda: now[-1], sleep=lambda seconds: now.append(now[-1] + seconds))
        >>> now[-1] / 3600
        8.0
        """
        if not self.seconds:
            return
        begin = (clock() // self.seconds + 1) * self.seconds
        while 0 < (left := begin - clock()) <= self.seconds:
            sleep(left)


#: Most bytes of the rows of a message with more than one user.
_MOST_ROW_BYTES: Final = 2**28

#: A node, and the users whom one message asks there.
Part = tuple[int, tuple[str, ...]]


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

    def parts(
        self,
        by_node: Mapping[int, Sequence[str]],
        is_alone: Callable[[int, str], bool] = lambda _node, _user: False,
    ) -> list[Part]:
        """Cut the users of each node into messages, in their order.

        Args:
            by_node: users by the node that serves them.
            is_alone: who gets a message of its own, unless contributions come summed.
        """
        parts: list[Part] = []
        for node, users in sorted(by_node.items()):
            if self.is_slice:
                parts.append((node, tuple(users)))
                continue
            parts += [(node, (user,)) for user in users if is_alone(node, user)]
            others = [user for user in users if not is_alone(node, user)]
            starts = range(0, len(others), self.most_users)
            parts += [(node, tuple(others[start : start + self.most_users])) for start in starts]
        return parts


class Exchange(ABC):
    """Messages of one attempt, whose reply is whose, and what a reply adds to a sum.

    Args:
        messages: to be sent; a grid gives each its id.
        parts: whom each asks.
    """

    def __init__(self, messages: list[Message], parts: Sequence[Part]) -> None:
        self.messages, self._parts = messages, parts
        self._open: dict[str, Part] | None = None

    @property
    def _unanswered(self) -> dict[str, Part]:
        """Parts by the id of their message, once messages were sent."""
        if self._open is None:
            ids = (message.metadata.message_id for message in self.messages)
            self._open = dict(zip(ids, self._parts, strict=True))
        return self._open

    def part_of(self, reply: Message) -> Part | None:
        """Whom the message asked that is answered; None for a second answer, or one to nothing."""
        return self._unanswered.pop(reply.metadata.reply_to_message_id, None)

    def bytes_of(self, message_id: str) -> int:
        """What the arrays of the reply to a message may take beyond what every reply may."""
        del message_id
        return 0

    @abstractmethod
    def add(self, reply: Message, users: tuple[str, ...], total: FixedPointSum) -> dict[str, str]:
        """Add the reply to the message that asked ``users`` to a sum, in which each of them is counted.

        Returns:
            Those of them whose contribution is the zero vector, and why.
        """

    def told(self, reply: Message, users: tuple[str, ...]) -> list[UserFailure]:
        """What a reply that was of use says itself of failures."""
        del reply, users
        return []

    def fold(
        self, replies: Iterable[Message], total: FixedPointSum, quarantine: Quarantine, stage: str = "reply"
    ) -> tuple[list[str], list[UserFailure]]:
        """Add replies to a sum as they come: who is present, and what failed.

        Whose reply arrives is present, whatever it holds. One that cannot be used is the zero vector of its
        users, so that nothing but a user's own contribution depends on what that user sent.

        Args:
            replies: to the messages.
            total: their contributions are added to it.
            quarantine: is told whose replies are refused and whose are used.
            stage: where that failed, for the operator.
        """
        present, failures = list[str](), list[UserFailure]()
        for reply in replies:
            part = self.part_of(reply)
            if part is None:
                node = reply.metadata.src_node_id
                failures.append(UserFailure("", stage, f"node {node}: nobody is asked for this reply"))
            elif arrived(reply):
                node, users = part
                present += users
                zeros = self.add(reply, users, total)
                failures += [UserFailure(user, stage, f"node {node}: {why}") for user, why in zeros.items()]
                failures += quarantine.refused(node, zeros)
                used = [user for user in users if user not in zeros]
                quarantine.accepted(node, used)
                failures += self.told(reply, users) if used else []
        return sorted(present), failures


class Asked(Exchange):
    """The messages to fedmf's own client app: rows, or exact sums over users.

    Args:
        form: of the messages.
        parts: whom each asks.
        parameters: of the model, shape (d,).
        t: 0-based round.
        message_type: training or evaluation.
        loss_bound: L, for private evaluation: rows are then float64 with entries clamped to [−1, 1].
        clip_norm: ζ_t, for training; None for that of the run.
    """

    def __init__(
        self,
        form: MessageForm,
        parts: Sequence[Part],
        parameters: Tensor,
        t: int,
        message_type: str = MessageType.TRAIN,
        loss_bound: float | None = None,
        clip_norm: float | None = None,
    ) -> None:
        self._form, self._t, self._dimension = form, t, parameters.numel()
        self._rows = ("float32", math.inf) if loss_bound is None else ("float64", 1.0)
        messages = [
            Message(
                request_content(parameters, t, users, form.is_slice, loss_bound, clip_norm),
                node,
                message_type,
                group_id=str(t + 1),
            )
            for node, users in parts
        ]
        super().__init__(messages, parts)

    def bytes_of(self, message_id: str) -> int:
        """See `Exchange.bytes_of`: twice what they take; slices hold up to four int64 a parameter."""
        _, users = self._unanswered.get(message_id, (0, ()))
        return 64 * self._dimension if self._form.is_slice else 8 * self._dimension * len(users)

    def add(self, reply: Message, users: tuple[str, ...], total: FixedPointSum) -> dict[str, str]:
        """See `Exchange.add`; every row is clipped again.

        A row that is not finite is one user's; whatever else is wrong with a reply is everybody's in it.
        """
        dtype, bound = self._rows
        lengths = total.lengths
        try:
            if self._form.is_slice:
                total.add_parts(read_slice_reply(reply, t=self._t, asked=users, lengths=lengths), len(users))
                return {}
            rows = read_rows_reply(reply, t=self._t, asked=users, dimension=lengths["sum"], dtype=dtype)
            if bound < math.inf:
                rows = torch.where(torch.isfinite(rows), rows.clamp(-bound, bound), torch.nan)
            finite = total.add_updates(rows).tolist()
        except Exception as reason:  # whatever a stranger's bytes may cause
            total.add_nothing(len(users))
            return dict.fromkeys(users, str(reason))
        return {
            user: "row holds NaN or infinity"
            for user, is_finite in zip(users, finite, strict=True)
            if not is_finite
        }

    def told(self, reply: Message, users: tuple[str, ...]) -> list[UserFailure]:
        """See `Exchange.told`."""
        return read_failures(reply, users)
