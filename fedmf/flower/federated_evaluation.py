"""Federated evaluation: the released model on the examples of the round's users. It is not private."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from flwr.app import ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid

from fedmf.flower.boundary import shown
from fedmf.flower.dialogue import ByNode, ClientEvaluation, Judged
from fedmf.flower.messages import RejectedReply, check_header, request_content
from fedmf.runs import Session, not_private
from fedmf.training import METRICS, ExampleTotals, Task, UserFailure

_METRICS, _CONFIG, _EXAMPLES = "metrics", "config", "examples"
#: What sums of shares may be off by.
_ROUNDING: Final = 1e-9


class CohortEvaluation(ClientEvaluation):
    """Mean loss and metrics of a released model over the users whose updates are in it.

    Both are computed without noise from users' own examples, so they protect nobody and no ε counts them.
    Nobody is asked who is not on record as a participant of the round.

    Args:
        session: of the run: which models are evaluated, how many examples users own (public: the weight of
            their answer), and the task, whose metrics are computed beside the loss.
    """

    def __init__(self, session: Session) -> None:
        self._session, self._task = session, session.task
        self._awaited: dict[int, list[str]] = {}

    def due(self, number: int) -> bool:
        """See `ClientEvaluation.due`."""
        return self._session.evaluation_due(number)

    def users(self, number: int, participants: Mapping[int, str]) -> Mapping[int, str]:
        """Those who took part, if the model is due."""
        return participants if self.due(number) else {}

    def ask(self, number: int, by_node: ByNode, config: ConfigRecord, grid: Grid) -> list[Message]:
        """One message for each node that serves users to ask about the released model."""
        self._awaited = {node: list(users) for node, users in by_node.items()}
        parameters = self._session.server.parameters
        return [
            Message(
                request_content(parameters, number - 1, users, as_slice=True),
                node,
                MessageType.EVALUATE,
                group_id=str(number),
            )
            for node, users in sorted(by_node.items())
        ]

    def collect(self, number: int, replies: Iterable[Message]) -> Judged:
        """The metrics over all valid answers; empty if there is none.

        An answer that is an error, of another round, for users not asked or asked before, or that is not
        made of possible numbers is left out.
        """
        totals, failures = list[ExampleTotals](), list[UserFailure]()
        for reply in replies:
            node = reply.metadata.src_node_id
            try:
                part = read_evaluation_reply(
                    reply,
                    t=number - 1,
                    asked=self._awaited.get(node, []),
                    examples_of=self._session.examples_of,
                    lengths=self._task.term_lengths,
                )
                _check_possible(part, self._task)
            except Exception as reason:  # whatever a stranger's bytes may cause
                failures.append(UserFailure("", "reply", f"evaluation, node {node}: {reason}"))
                continue
            totals.append(part)
            del self._awaited[node]
        self._awaited = {}
        metrics = _values(totals, self._task)
        return Judged(metrics, metrics, failures)


def _values(totals: Sequence[ExampleTotals], task: Task) -> dict[str, float]:
    """Loss and metrics over all examples; sums are divided before they are added: none overflows."""
    examples = sum(part.examples for part in totals)
    if not examples:
        return {}
    shares = {
        name: tuple(sum(part.sums[name][i] / examples for part in totals) for i in range(length))
        for name, length in task.term_lengths.items()
    }
    return {not_private(name): value for name, value in task.values(shares, 1).items()}


def _check_possible(totals: ExampleTotals, task: Task) -> None:
    """Refuse sums of which no metric can be made, such as a negative one of squares, or impossible counts."""
    try:
        values = task.values(totals.sums, totals.examples)
    except (ArithmeticError, ValueError) as error:
        sums = shown(str(dict(totals.sums)))
        raise RejectedReply(f"sums must be those of examples; got {sums}: {error}") from None
    for metric in task.metrics:
        share = values[metric.name]
        if (
            metric in METRICS
            and metric.is_share
            and not (math.isnan(share) or -_ROUNDING <= share <= 1 + _ROUNDING)
        ):
            raise RejectedReply(f"{metric.name} must be a share, in 0..1; got {share!r}")


def evaluation_reply(request: Message, t: int, users: Sequence[str], totals: ExampleTotals) -> Message:
    """A node's answer: sums over the examples of its users."""
    config = ConfigRecord({"round": t, "users": list(users)})
    sums = {name: list(terms) for name, terms in totals.sums.items()}
    metrics = MetricRecord({**sums, _EXAMPLES: totals.examples})
    return Message(RecordDict({_METRICS: metrics, _CONFIG: config}), reply_to=request)


def read_evaluation_reply(
    reply: Message,
    *,
    t: int,
    asked: Sequence[str],
    examples_of: Callable[[Sequence[str]], int],
    lengths: Mapping[str, int],
) -> ExampleTotals:
    """The sums of an answer over the examples of the users asked.

    Raises:
        RejectedReply: an error, another round, other users than those asked, or nobody, another number of
            examples than the users own, or sums that are missing, of another type or length, or not finite.
    """
    check_header(reply, t, asked)
    if not asked:
        raise RejectedReply("evaluation must be of at least one user; got none")
    if _METRICS not in reply.content.metric_records:
        raise RejectedReply("reply has no metric record")
    record = reply.content.metric_records[_METRICS]
    owned, examples = examples_of(asked), record.get(_EXAMPLES)
    if type(examples) is not int or examples != owned:
        raise RejectedReply(f"{_EXAMPLES} must be the {owned} that the users own; got {shown(examples)}")
    sums = {name: _sums(record, name, length) for name, length in lengths.items()}
    return ExampleTotals(sums, examples)


def _sums(record: MetricRecord, name: str, length: int) -> tuple[float, ...]:
    """Finite real numbers of a reply, as many as there should be."""
    terms = record.get(name)
    if (
        not isinstance(terms, list)
        or len(terms) != length
        or not all(isinstance(term, float) and math.isfinite(term) for term in terms)
    ):
        raise RejectedReply(f"{name} must be a list of {length} finite real numbers; got {shown(terms)}")
    return tuple(terms)
