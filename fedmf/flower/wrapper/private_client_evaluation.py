"""Metrics of clients that know nothing of privacy: clipped to public ranges, summed, released with noise."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from torch import Tensor

from fedmf.flower.asking import Exchange, Persistence
from fedmf.flower.boundary import Quarantine, Wait, shown
from fedmf.flower.wrapper.client_evaluation import (
    AskedEvaluation,
    ClientEvaluation,
    InnerEvaluation,
    NoEvaluation,
)
from fedmf.flower.wrapper.cohort_grid import AppClients
from fedmf.runs import PrivateEvaluator
from fedmf.training import centred


class PrivateClientEvaluation(ClientEvaluation):
    """Means over users of the metrics that their clients report, with noise, under one ε with training.

    Of a reply the declared metrics count and nothing else, each clamped to its public range; every user
    counts once, whatever number of examples it reports. A reply that is wrong in any way is a row of zeros,
    the middle of every range. See docs/evaluation.md.

    Args:
        clients: of the app.
        evaluator: of the run: noise and commit.
    """

    def __init__(self, clients: AppClients, evaluator: PrivateEvaluator) -> None:
        self._clients, self._opened, self._evaluator = clients, clients.opened, evaluator
        self._e: int | None = None
        self._sent: Exchange | None = None
        self._may_wait = True

    def is_left(self, rounds: int) -> bool:
        """See `ClientEvaluation.is_left`: a process was stopped between a round and its evaluation."""
        return self._evaluator.due(rounds) is not None

    def released(self) -> dict[int, MetricRecord]:
        """See `ClientEvaluation.released`."""
        evaluator = self._evaluator
        return {evaluator.plan.after(e): self._metrics(e) for e in range(evaluator.released)}

    def configure(self, number: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> list[Message]:
        """The inner strategy's messages to the users that the evaluation after round ``number`` asks.

        ``arrays`` is not read: the committed model is what is sent.
        """
        self._e, self._sent = self._evaluator.due(number), None
        if self._e is None:
            return []
        judges = self._opened.judges(self._e)
        self._sent, self._may_wait = self._clients.asked("evaluate", number, judges, config, grid, self._row)
        return self._sent.messages

    def aggregate(self, number: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Clamp, sum, noise, commit. Whose reply arrived took part; the row of noise is spent in any case."""
        e, self._e = self._e, None
        if e is None or self._sent is None:
            return None
        total = self._evaluator.new_sum()
        present, failures = self._sent.fold(replies, total, Quarantine(0), "evaluation")
        self._evaluator.release(e, total, present)
        self._opened.note_failures(number - 1, failures)
        return self._metrics(e)

    def evaluate(
        self, number: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid, wait: Wait
    ) -> MetricRecord | None:
        """Ask, again if everybody is silent, and release; nothing if no evaluation is due."""
        if not self.is_left(number):
            return None
        replies = Persistence(wait, self._clients.retries).replies(
            f"the evaluation after round {number}",
            grid,
            self._clients.identity,
            lambda: self.configure(number, arrays, config, grid),
            lambda: self._may_wait,
        )
        return self.aggregate(number, replies or ())

    def _row(self, reply: Message) -> Tensor:
        """The user's row in [−1, 1]^q, float64.

        Raises:
            ValueError, OverflowError: a reply that does not hold every metric as a finite number.
        """
        if reply.has_error():
            raise ValueError(f"client error {reply.error.code}")
        records = list(reply.content.metric_records.values())
        if len(records) != 1:
            raise ValueError(f"reply must hold one metric record; got {len(records)}")
        ranges = self._evaluator.plan.ranges
        entries = [centred(_number(records[0], name), low, high) for name, low, high in ranges]
        return torch.tensor(entries, dtype=torch.float64)

    def _metrics(self, e: int) -> MetricRecord:
        record = MetricRecord()
        for name, (value, std) in self._evaluator.shown(e).items():
            record[name], record[f"{name}_std"] = value, std
        return record


def _number(record: MetricRecord, name: str) -> float:
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"metric {shown(name)} must be a finite number; got {shown(value)}")
    return float(value)


def evaluation_of(asked: AskedEvaluation, clients: AppClients) -> ClientEvaluation:
    """What evaluates the models of an open run."""
    if clients.opened.evaluator is not None:
        return PrivateClientEvaluation(clients, clients.opened.evaluator)
    if asked.kind == "not-private":
        return InnerEvaluation(clients.inner, clients.identity)
    return NoEvaluation()
