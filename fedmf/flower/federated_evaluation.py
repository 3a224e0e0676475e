"""Federated evaluation: the released model on the examples of the round's users. It is not private."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from flwr.app import ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from torch import Tensor

from fedmf.flower.messages import RejectedReply, check_header, request_content
from fedmf.runs import FEDERATED_ACCURACY, FEDERATED_LOSS
from fedmf.training import ExampleTotals

__all__ = ["CohortEvaluation", "evaluation_reply", "read_evaluation_reply"]

_METRICS, _CONFIG = "metrics", "config"
_LOSS, _CORRECT, _EXAMPLES = "loss-sum", "correct", "examples"


class CohortEvaluation:
    """Mean loss and accuracy of a released model over the users whose updates are in it.

    Both are computed without noise from users' own examples, so they protect nobody and no ε counts them.
    Nobody is asked who is not on record as a participant of the round.

    Args:
        due: whether the model after so many rounds is evaluated.
        examples_of: the public number of examples that users own together: the weight of their answer.

    Attributes:
        metrics: of the last round; empty if it was not due or nobody gave a valid answer.
        rejected: one line for each answer of the last round that was refused.
    """

    def __init__(self, due: Callable[[int], bool], examples_of: Callable[[Sequence[str]], int]) -> None:
        self._due, self._examples_of = due, examples_of
        self._awaited: dict[int, set[str]] = {}
        self.metrics: dict[str, float] = {}
        self.rejected: list[str] = []

    def ask(self, t: int, parameters: Tensor, by_node: Mapping[int, Sequence[str]]) -> list[Message]:
        """One message for each node, if the model that round t (0-based) released is due.

        Args:
            t: the round.
            parameters: θ_{t+1}, shape (d,).
            by_node: the round's participants by the node that serves them.
        """
        self.metrics, self.rejected, self._awaited = {}, [], {}
        if not self._due(t + 1):
            return []
        self._awaited = {node: set(users) for node, users in by_node.items()}
        return [
            Message(
                request_content(parameters, t, users, as_slice=True),
                node,
                MessageType.EVALUATE,
                group_id=str(t + 1),
            )
            for node, users in sorted(by_node.items())
        ]

    def collect(self, t: int, replies: Iterable[Message]) -> dict[str, float]:
        """The metrics of round t over all valid answers; empty if there is none.

        An answer that is an error, of another round, for users not asked or asked before, or that is not
        made of possible numbers is left out.
        """
        totals: list[ExampleTotals] = []
        for reply in replies:
            node = reply.metadata.src_node_id
            awaited = self._awaited.get(node, set())
            try:
                found, users = read_evaluation_reply(reply, t=t, asked=awaited, examples_of=self._examples_of)
            except RejectedReply as reason:
                self.rejected.append(f"evaluation, node {node}: {reason}")
                continue
            totals.append(found)
            awaited.difference_update(users)
        self._awaited = {}
        self.metrics = _means(totals)
        return self.metrics


def _means(totals: Sequence[ExampleTotals]) -> dict[str, float]:
    """Means over examples; each sum is divided before they are added, so that none overflows."""
    examples = sum(part.examples for part in totals)
    if not examples:
        return {}
    return {
        FEDERATED_LOSS: sum(part.loss / examples for part in totals),
        FEDERATED_ACCURACY: sum(part.correct for part in totals) / examples,
    }


def evaluation_reply(request: Message, t: int, users: Sequence[str], totals: ExampleTotals) -> Message:
    """A node's answer: sums over the examples of its users."""
    config = ConfigRecord({"round": t, "users": list(users)})
    metrics = MetricRecord(
        {_LOSS: totals.loss, _CORRECT: totals.correct, _EXAMPLES: totals.examples},
    )
    return Message(RecordDict({_METRICS: metrics, _CONFIG: config}), reply_to=request)


def read_evaluation_reply(
    reply: Message, *, t: int, asked: Collection[str], examples_of: Callable[[Sequence[str]], int]
) -> tuple[ExampleTotals, tuple[str, ...]]:
    """The sums of an answer and whose examples they are over.

    Raises:
        RejectedReply: an error, another round, users that were not asked or nobody, a number that is missing,
            of another type or not finite, another number of examples than the users own, or more correct
            ones than there are.
    """
    users = check_header(reply, t, asked)
    if not users:
        raise RejectedReply("evaluation must be of at least one user; got none")
    if _METRICS not in reply.content.metric_records:
        raise RejectedReply("reply has no metric record")
    found = reply.content.metric_records[_METRICS]
    loss, correct, examples = found.get(_LOSS), found.get(_CORRECT), found.get(_EXAMPLES)
    if not isinstance(loss, float) or not math.isfinite(loss):
        raise RejectedReply(f"{_LOSS} must be a finite real number; got {loss!r}")
    owned = examples_of(users)
    if type(examples) is not int or examples != owned:
        raise RejectedReply(f"{_EXAMPLES} must be the {owned} that the users own; got {examples!r}")
    if type(correct) is not int or not 0 <= correct <= examples:
        raise RejectedReply(f"{_CORRECT} must be an integer in 0..{examples}; got {correct!r}")
    return ExampleTotals(loss, correct, examples), users
