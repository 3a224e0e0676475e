"""What differs between clients: the messages to them, what a reply adds, how they judge models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from fedmf.flower.asking import Exchange
from fedmf.flower.boundary import Quarantine, ServedUsers
from fedmf.runs import PrivateEvaluator, Session
from fedmf.training import UserFailure

#: Users, given as ids, by the node to ask for them.
ByNode = Mapping[int, Sequence[str]]


class Dialogue(ABC):
    """With the clients of a run: by which messages they are asked, and what a reply adds.

    Whom to ask, when to ask again, what is released, kept and told is the loop's: `Rounds`.

    Args:
        served: which node serves whom.
        refusals: after so many useless replies in a row a node is not asked for a user any more; 0: never.
        most_bytes: of a reply, beside what its `Exchange` allows.

    Attributes:
        quarantine: whom which node is not asked for any more.
    """

    #: Whether training waits for every reply, however long that takes.
    patient: bool = False

    def __init__(self, served: ServedUsers, refusals: int, most_bytes: int) -> None:
        self.served, self.quarantine, self.most_bytes = served, Quarantine(refusals), most_bytes

    @property
    @abstractmethod
    def arrays(self) -> ArrayRecord:
        """The released model, as Flower's result and functions of the caller hold it."""

    @abstractmethod
    def training(self, number: int, by_node: ByNode, config: ConfigRecord, grid: Grid) -> Exchange:
        """The messages of round ``number`` to its cohort, by what the server sums of it."""

    @abstractmethod
    def judging(self, number: int, by_node: ByNode, config: ConfigRecord, grid: Grid) -> Exchange:
        """The messages of the private evaluation after round ``number``, by the rows that it sums."""

    def named(self, evaluator: PrivateEvaluator, e: int) -> dict[str, float]:
        """What private evaluation e showed, by the names that Flower's result has for it."""
        return evaluator.estimate(e)


@dataclass(frozen=True)
class Judged:
    """What clients said of a released model.

    Attributes:
        columns: by columns of the metrics table.
        named: the same, as Flower's result names it.
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
        """What is on record, as Flower's result names it, by the round after which it was released."""
        return {}

    @abstractmethod
    def users(self, number: int, participants: Mapping[int, str]) -> Mapping[int, str]:
        """Whom to ask about the model after round ``number``, ids by index.

        Args:
            number: of the round.
            participants: who took part in it.
        """

    @abstractmethod
    def ask(self, number: int, by_node: ByNode, config: ConfigRecord, grid: Grid) -> list[Message]:
        """The messages, to those of the users who are served."""

    @abstractmethod
    def collect(self, number: int, replies: Iterable[Message]) -> Judged:
        """What the replies say, once."""


class NoEvaluation(ClientEvaluation):
    """Nobody is asked."""

    def due(self, number: int) -> bool:
        """Never."""
        return False

    def users(self, number: int, participants: Mapping[int, str]) -> Mapping[int, str]:
        """Nobody."""
        return {}

    def ask(self, number: int, by_node: ByNode, config: ConfigRecord, grid: Grid) -> list[Message]:
        """Nothing."""
        return []

    def collect(self, number: int, replies: Iterable[Message]) -> Judged:
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

    def ask(self, number: int, by_node: ByNode, config: ConfigRecord, grid: Grid) -> list[Message]:
        """See `ClientEvaluation.ask`; what is sent is the committed model."""
        self._exchange = self._dialogue.judging(number, by_node, config, grid)
        return self._exchange.messages

    def collect(self, number: int, replies: Iterable[Message]) -> Judged:
        """Clamp, sum, noise, commit."""
        e, exchange, self._exchange = self._evaluator.due(number), self._exchange, None
        if e is None or exchange is None:
            return Judged()
        total = self._evaluator.new_sum()
        present, failures = exchange.fold(replies, total, Quarantine(0), "evaluation")
        columns = self._evaluator.release(e, total, present)
        return Judged(columns, self._dialogue.named(self._evaluator, e), failures)
