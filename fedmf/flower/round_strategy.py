"""Server strategies whose rounds are those of `fedmf.rounds`, under fedmf's loop and under Flower's."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedmf.flower.asking import GridLink
from fedmf.flower.messages import MessageDialogue
from fedmf.rounds import Rounds


class RoundStrategy(Strategy):
    """A server strategy whose four methods are steps of `Rounds`, so that Flower's loop drives them too.

    Attributes:
        rounds: of its run; None before it began.
    """

    rounds: Rounds | None = None

    def begun(self, arrays: ArrayRecord | None) -> Rounds:
        """The rounds, begun from this model if they are not yet."""
        del arrays
        assert self.rounds is not None
        return self.rounds

    @property
    @abstractmethod
    def dialogue(self) -> MessageDialogue:
        """With its clients."""

    def carry_out(
        self,
        link: GridLink,
        result: Result,
        num_rounds: int | None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None,
    ) -> None:
        """`Rounds.carry_out`; what ``evaluate_fn`` says goes into the result.

        Raises:
            Exception: see there.
        """

        def evaluate(number: int) -> None:
            assert evaluate_fn is not None
            metrics = evaluate_fn(number, self.dialogue.arrays)
            if metrics is not None:
                result.evaluate_metrics_serverapp[number] = metrics

        self.begun(None).carry_out(link, num_rounds, None if evaluate_fn is None else evaluate)

    def link(
        self,
        grid: Grid,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
    ) -> GridLink:
        """The way to the clients on a grid; the arguments are those of Flower's ``start``."""
        return GridLink(
            grid,
            self.dialogue.nodes,
            self.begun(None).waiting,
            self.dialogue.most_bytes,
            timeout,
            train_config or ConfigRecord(),
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """The messages of a round to its cohort.

        ``arrays`` is not read once the run has begun: the model of the private server is what is sent,
        committed if it leaves the process.

        Raises:
            RuntimeError: an inner strategy asks other nodes, or one twice.
        """
        rounds = self.begun(arrays)
        return rounds.ask(server_round, self.link(grid, train_config=config))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Any]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Clip, sum, noise, step, commit. Whose reply arrived is present, whatever it holds."""
        rounds = self.begun(None)
        rounds.release(server_round, replies)
        return self.dialogue.arrays, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Nobody is asked: what clients say of a model has no noise."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Any]) -> MetricRecord | None:
        """Nobody was asked."""
        return None
