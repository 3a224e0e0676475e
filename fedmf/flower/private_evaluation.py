"""Private evaluation: released models on users' own examples, summed with noise of their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, Literal

from flwr.app import Message, MessageType
from torch import Tensor

from fedmf.flower.compat import arrived
from fedmf.flower.messages import (
    Request,
    read_failures,
    read_slice_reply,
    read_user_reply,
    request_content,
    slice_reply,
    user_reply,
)
from fedmf.runs import PrivateEvaluator
from fedmf.training import FixedPointSum, Trainer, UserFailure

__all__ = ["PrivateCohortEvaluation", "private_reply"]


class PrivateCohortEvaluation:
    """Asks a cohort of its own what the released model is worth, and releases the answer with noise.

    Args:
        evaluator: noise and commit.
        cohort: users by index of an evaluation, those left out whose own budget forbids it.
        messages: as for training: sums of a node's users, or one reply a user, which is clipped again here.

    Attributes:
        metrics: the estimates of the last round; empty if none was due.
        failures: of the last round; the users' part in the sum is zero.
    """

    def __init__(
        self,
        evaluator: PrivateEvaluator,
        cohort: Callable[[int], Mapping[int, str]],
        messages: Literal["slice", "per-user"] = "slice",
    ) -> None:
        self._evaluator, self._cohort, self._messages = evaluator, cohort, messages
        self._e: int | None = None
        self._sent: list[tuple[Message, tuple[str, ...]]] = []
        self.metrics: dict[str, float] = {}
        self.failures: list[UserFailure] = []

    #: Whether silence of everybody is asked again: a row of noise is spent on the answer.
    retried: ClassVar[bool] = True

    def is_left(self, rounds: int) -> bool:
        """Whether the model after so many rounds should have been evaluated and was not."""
        return self._evaluator.due(rounds) is not None

    def asked(self, t: int, participants: Mapping[int, str]) -> Mapping[int, str]:
        """Whom to ask after round t (0-based), whoever took part in it; nobody if nothing is due."""
        del participants
        self.metrics, self.failures, self._sent = {}, [], []
        self._e = self._evaluator.due(t + 1)
        return {} if self._e is None else self._cohort(self._e)

    def ask(self, t: int, parameters: Tensor, by_node: Mapping[int, Sequence[str]]) -> list[Message]:
        """One message for each node, or for each user.

        Args:
            t: the round.
            parameters: θ_{t+1}, shape (d,).
            by_node: whom `asked` named, by the node that serves them.
        """
        as_slice, (_, _, bound) = self._messages == "slice", self._evaluator.plan.ranges[0]  # of the loss
        parts = [
            (node, tuple(part))
            for node, users in sorted(by_node.items())
            for part in ([users] if as_slice else [[user] for user in users])
        ]
        self._sent = [
            (
                Message(
                    request_content(parameters, t, users, as_slice, bound),
                    node,
                    MessageType.EVALUATE,
                    group_id=str(t + 1),
                ),
                users,
            )
            for node, users in parts
        ]
        return [message for message, _ in self._sent]

    def collect(self, t: int, replies: Iterable[Message]) -> dict[str, float]:
        """Release what was asked for after round t: the estimates, or nothing if nothing was due.

        Whose reply arrives took part, whatever it holds. The row of noise is spent in any case.
        """
        if self._e is None:
            return {}
        total, present = self._evaluator.new_sum(), list[str]()
        awaited = {message.metadata.message_id: users for message, users in self._sent}
        for reply in replies:
            users = awaited.pop(reply.metadata.reply_to_message_id, None)
            if users is not None and arrived(reply):
                present += users
                self._fold(total, t, reply, users)
        self.metrics = self._evaluator.release(self._e, total, sorted(present))
        self._e, self._sent = None, []
        return self.metrics

    def _fold(self, total: FixedPointSum, t: int, reply: Message, users: tuple[str, ...]) -> None:
        """Add one reply to the sum; zeros if there is anything wrong with it."""
        try:
            if self._messages == "slice":
                total.add_parts(read_slice_reply(reply, t=t, asked=users, lengths=total.lengths), len(users))
            else:
                row = read_user_reply(reply, t=t, asked=users, dimension=self._evaluator.dimension)
                total.add_updates(row[None].clamp(-1.0, 1.0))
        except Exception as reason:  # whatever a stranger's bytes may cause
            total.add_nothing(len(users))
            line = f"evaluation, node {reply.metadata.src_node_id}: {reason}"
            self.failures += [UserFailure(user, "reply", line) for user in users]
            return
        self.failures += read_failures(reply, users)


def private_reply(message: Message, request: Request, trainer: Trainer) -> Message:
    """A node's answer: the exact sum of its users' rows, or the row of the one user."""
    assert request.loss_bound is not None
    rows, failures = trainer.judge(request.parameters, request.users, request.loss_bound)
    if not request.as_slice:
        (user,) = request.users
        return user_reply(message, request.t, user, rows[0], failures)
    total = FixedPointSum(rows.shape[1], math.sqrt(rows.shape[1]))
    total.add_updates(rows)
    return slice_reply(message, request.t, request.users, total.parts, failures)
