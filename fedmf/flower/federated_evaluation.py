"""Federated evaluation: the released model on the examples of the round's users. It is not private."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from flwr.app import ConfigRecord, Message, MessageType, MetricRecord, RecordDict

from fedmf.flower.asking import GridLink
from fedmf.flower.boundary import shown
from fedmf.flower.messages import RejectedReply, check_header, request_content
from fedmf.rounds import ByNode, CohortEvaluation, Request, check_possible
from fedmf.runs import Session
from fedmf.training import ExampleTotals, UserFailure

_METRICS, _CONFIG, _EXAMPLES = "metrics", "config", "examples"


class MessageEvaluation(CohortEvaluation):
    """See `CohortEvaluation`; users' examples are on nodes."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._awaited: dict[int, list[str]] = {}

    def ask(self, number: int, by_node: ByNode, link: GridLink) -> list[Message]:
        """One message for each node that serves users to ask about the released model."""
        self._awaited = {node: list(users) for node, users in by_node.items()}
        parameters = self.session.server.parameters
        return [
            Message(
                request_content(Request(parameters, number - 1, tuple(users), as_slice=True)),
                node,
                MessageType.EVALUATE,
                group_id=str(number),
            )
            for node, users in sorted(by_node.items())
        ]

    def totals(
        self, number: int, replies: Iterable[Message]
    ) -> tuple[list[ExampleTotals], list[UserFailure]]:
        """See `CohortEvaluation.totals`.

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
                    examples_of=self.session.examples_of,
                    lengths=self.session.task.term_lengths,
                )
                check_possible(part, self.session.task)
            except Exception as reason:  # whatever a stranger's bytes may cause
                failures.append(UserFailure("", "reply", f"evaluation, node {node}: {reason}"))
                continue
            totals.append(part)
            del self._awaited[node]
        self._awaited = {}
        return totals, failures


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
