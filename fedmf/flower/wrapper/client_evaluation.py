"""What clients say of released models: nothing, or what the inner strategy makes of it without noise."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from flwr.app import Message
from flwr.serverapp.strategy import FedAvg

from fedmf.errors import ConfigError
from fedmf.flower.asking import GridLink
from fedmf.flower.messages import MessageDialogue
from fedmf.flower.wrapper.cohort_grid import CohortGrid, evaluation_messages_of
from fedmf.flower.wrapper.identity import UserIdentity
from fedmf.rounds import ByNode, ClientEvaluation, Judged, evaluation_of
from fedmf.runs import (
    CentralEvaluation,
    Evaluation,
    NotPrivateEvaluation,
    PrivateEvaluation,
    Ranges,
    Session,
)

ClientEvaluationKind = Literal["off", "not-private", "private"]

_log = logging.getLogger("fedmf")


class InnerEvaluation(ClientEvaluation):
    """As the inner strategy evaluates: without noise, and named so.

    Args:
        inner: the strategy.
        identity: which nodes serve users; others are not asked.
        dialogue: with the clients.
    """

    def __init__(self, inner: FedAvg, identity: UserIdentity, dialogue: MessageDialogue) -> None:
        self._inner, self._identity, self._dialogue = inner, identity, dialogue
        self._has_asked = False

    def due(self, number: int) -> bool:
        """After every round."""
        return True

    def users(self, number: int, participants: Mapping[int, str]) -> Mapping[int, str]:
        """Nobody by name: the inner strategy chooses among nodes."""
        return {}

    def ask(self, number: int, by_node: ByNode, link: GridLink) -> list[Message]:
        """The inner strategy's messages to nodes that serve users."""
        nodes = CohortGrid(link.grid, self._identity.nodes())
        arrays, config = self._dialogue.arrays, link.evaluate_config
        messages = evaluation_messages_of(self._inner, number, arrays, config, nodes)
        self._has_asked = bool(messages)
        return messages

    def collect(self, number: int, replies: Iterable[Message]) -> Judged:
        """The inner strategy's; replies that it cannot take never end the run. Not private, by name."""
        if not self._has_asked:
            return Judged()
        try:
            metrics = self._inner.aggregate_evaluate(number, list(replies))
        except Exception as error:
            _log.warning("round %d: client evaluation failed: %s", number, type(error).__name__)
            return Judged()
        named = {f"{name}_not_private": value for name, value in (metrics or {}).items()}
        return Judged(named, named)


@dataclass(frozen=True)
class AskedEvaluation:
    """How clients shall evaluate, as a user says it.

    Args:
        kind: "off", "not-private" or "private".
        metrics: what clients report and is released with noise, with public ranges; for "private" alone.
        private: share of the budget, rounds between evaluations and the rest, for "private" alone.

    Raises:
        ConfigError: values that do not fit together.
    """

    kind: ClientEvaluationKind
    metrics: Ranges
    private: PrivateEvaluation

    def __post_init__(self) -> None:
        if self.kind not in ("off", "not-private", "private"):
            raise ConfigError(
                f"client_evaluation must be 'off', 'not-private' or 'private'; got {self.kind!r}."
            )
        if (self.kind == "private") != bool(self.metrics):
            raise ConfigError(
                "evaluation_metrics (what clients report, with public ranges) must be given with "
                f"client_evaluation 'private' and with no other; got {dict(self.metrics)!r} with "
                f"{self.kind!r}. An example: {{'eval_loss': (0.0, 5.0), 'eval_acc': (0.0, 1.0)}}."
            )
        if self.private != PrivateEvaluation() and self.kind != "private":
            raise ConfigError(
                "private_evaluation must be left out unless client_evaluation is 'private'; got "
                f"{self.kind!r}."
            )
        if self.private.loss_bound != PrivateEvaluation.loss_bound:
            raise ConfigError(
                "loss_bound (of private_evaluation) must be left out: evaluation_metrics has a range for "
                f"every metric; got {self.private.loss_bound!r}."
            )
        if clash := {f"{name}_std" for name in self.metrics} & self.metrics.keys():
            raise ConfigError(
                f"evaluation_metrics must not name {min(clash)!r}: that is what the error bar is called."
            )

    @property
    def recorded(self) -> Evaluation:
        """What a run records."""
        known = {"off": CentralEvaluation(), "not-private": NotPrivateEvaluation(), "private": self.private}
        return known[self.kind]

    def of(
        self, session: Session, dialogue: MessageDialogue, inner: FedAvg, identity: UserIdentity
    ) -> ClientEvaluation:
        """What judges the models of an open run."""
        return evaluation_of(session, dialogue, lambda _: InnerEvaluation(inner, identity, dialogue))
