"""How clients judge released models: not at all, with noise of its own, or without any."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from fedmf.rounds.clients import ByNode, Dialogue, Exchange, Quarantine
from fedmf.runs import PrivateEvaluator, Session, not_private
from fedmf.training import METRICS, ExampleTotals, Task, UserFailure

_log = logging.getLogger("fedmf")
#: What sums of shares may be off by.
_ROUNDING: Final = 1e-9
_SHOWN: Final = 80


@dataclass(frozen=True)
class Judged:
    """What clients said of a released model.

    Attributes:
        columns: by columns of the metrics table.
        named: the same, as the host's result names it.
        failures: answers that count for nothing, for the operator.
    """

    columns: Mapping[str, Any] = field(default_factory=dict)
    named: Mapping[str, Any] = field(default_factory=dict)
    failures: Sequence[UserFailure] = ()


class ClientEvaluation(ABC):
    """A way in which clients judge released models."""

    #: Whether silence of everybody is asked again.
    retried: ClassVar[bool] = False

    @abstractmethod
    def due(self, number: int) -> bool:
        """Whether the model after so many rounds is to be judged."""

    def is_left(self, number: int) -> bool:
        """Whether the model that a process before released should have been judged, and was not."""
        del number
        return False

    def shown(self) -> dict[int, Mapping[str, Any]]:
        """What is on record, as the host's result names it, by the round after which it was released."""
        return {}

    @abstractmethod
    def users(self, number: int, participants: Mapping[int, str]) -> Mapping[int, str]:
        """Whom to ask about the model after round ``number``, ids by index.

        Args:
            number: of the round.
            participants: who took part in it.
        """

    @abstractmethod
    def ask(self, number: int, by_node: ByNode, link: Any) -> list[Any]:
        """The messages, to those of the users who are served."""

    @abstractmethod
    def collect(self, number: int, replies: Iterable[Any]) -> Judged:
        """What the replies say, once."""


class NoEvaluation(ClientEvaluation):
    """Nobody is asked."""

    def due(self, number: int) -> bool:
        """Never."""
        return False

    def users(self, number: int, participants: Mapping[int, str]) -> Mapping[int, str]:
        """Nobody."""
        return {}

    def ask(self, number: int, by_node: ByNode, link: Any) -> list[Any]:
        """Nothing."""
        return []

    def collect(self, number: int, replies: Iterable[Any]) -> Judged:
        """Nothing."""
        return Judged()


class PrivateJudgement(ClientEvaluation):
    """A cohort of its own says what the model is worth; the sum is released with noise of its own.

    Whose reply arrives took part, whatever it holds. The row of noise is spent in any case.

    Args:
        session: of the run.
        evaluator: its noise and commit.
        dialogue: with its clients.
    """

    retried: ClassVar[bool] = True  # a row of noise is spent on the answer

    def __init__(self, session: Session, evaluator: PrivateEvaluator, dialogue: Dialogue) -> None:
        self._session, self._evaluator, self._dialogue = session, evaluator, dialogue
        self._exchange: Exchange | None = None

    def due(self, number: int) -> bool:
        """See `ClientEvaluation.due`."""
        return self._evaluator.due(number) is not None

    def is_left(self, number: int) -> bool:
        """See `ClientEvaluation.is_left`: a process was stopped between a round and its evaluation."""
        return self.due(number)

    def shown(self) -> dict[int, Mapping[str, Any]]:
        """See `ClientEvaluation.shown`."""
        evaluator, named = self._evaluator, self._dialogue.named
        return {evaluator.plan.after(e): named(evaluator, e) for e in range(evaluator.released)}

    def users(self, number: int, participants: Mapping[int, str]) -> Mapping[int, str]:
        """The cohort of the evaluation, whoever took part in the round."""
        e = self._evaluator.due(number)
        return {} if e is None else self._session.judges(e)

    def ask(self, number: int, by_node: ByNode, link: Any) -> list[Any]:
        """See `ClientEvaluation.ask`; what is sent is the committed model."""
        self._exchange = self._dialogue.judging(number, by_node, link, self._evaluator)
        return self._exchange.messages

    def collect(self, number: int, replies: Iterable[Any]) -> Judged:
        """Clamp, sum, noise, commit."""
        e, exchange, self._exchange = self._evaluator.due(number), self._exchange, None
        if e is None or exchange is None:
            return Judged()
        total = self._evaluator.new_sum()
        present, failures = exchange.fold(replies, total, Quarantine(0), "evaluation")
        columns = self._evaluator.release(e, total, present)
        return Judged(columns, self._dialogue.named(self._evaluator, e), failures)


class CohortEvaluation(ClientEvaluation):
    """Mean loss and metrics of a released model over the users whose updates are in it.

    Both are computed without noise from users' own examples, so they protect nobody and no ε counts them.
    Nobody is asked who is not on record as a participant of the round.

    Args:
        session: of the run: which models are evaluated, how many examples users own (public: the weight of
            their answer), and the task, whose metrics are computed beside the loss.

    Logs once that what is shown is not private.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        _log.warning(
            "federated evaluation: metrics on users' own examples are computed without noise. They "
            "are not private and no epsilon counts them: do not publish them."
        )

    def due(self, number: int) -> bool:
        """See `ClientEvaluation.due`."""
        return self.session.evaluation_due(number)

    def users(self, number: int, participants: Mapping[int, str]) -> Mapping[int, str]:
        """Those who took part, if the model is due."""
        return participants if self.due(number) else {}

    @abstractmethod
    def totals(self, number: int, replies: Iterable[Any]) -> tuple[list[ExampleTotals], list[UserFailure]]:
        """The sums of all valid answers about the model after round ``number``, and what the others are."""

    def collect(self, number: int, replies: Iterable[Any]) -> Judged:
        """The metrics over all valid answers; empty if there is none."""
        totals, failures = self.totals(number, replies)
        metrics = _values(totals, self.session.task)
        return Judged(metrics, metrics, failures)


def evaluation_of(
    session: Session, dialogue: Dialogue, cohort: Callable[[Session], ClientEvaluation]
) -> ClientEvaluation:
    """How the clients of a run judge its models.

    Args:
        session: of the run.
        dialogue: with its clients.
        cohort: how those of a round are asked without noise.
    """
    return session.evaluator.judge(
        lambda evaluator: PrivateJudgement(session, evaluator, dialogue),
        lambda: cohort(session) if session.run.evaluation.without_noise else NoEvaluation(),
    )


def check_possible(totals: ExampleTotals, task: Task) -> None:
    """Refuse sums of which no metric can be made, such as a negative one of squares, or impossible counts.

    Raises:
        ValueError: such sums.
    """
    try:
        values = task.values(totals.sums, totals.examples)
    except (ArithmeticError, ValueError) as error:
        sums = ascii(dict(totals.sums))[:_SHOWN]
        raise ValueError(f"sums must be those of examples; got {sums}: {error}") from None
    for metric in task.metrics:
        share = values[metric.name]
        if (
            metric in METRICS
            and metric.is_share
            and not (math.isnan(share) or -_ROUNDING <= share <= 1 + _ROUNDING)
        ):
            raise ValueError(f"{metric.name} must be a share, in 0..1; got {share!r}")


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
