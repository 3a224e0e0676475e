"""Private evaluation: released models on users' own examples, summed with noise of their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar

from flwr.app import Message, MessageType
from torch import Tensor

from fedmf.flower.asking import Asked, MessageForm
from fedmf.flower.boundary import Quarantine
from fedmf.flower.messages import Request, rows_reply, slice_reply
from fedmf.runs import PrivateEvaluator
from fedmf.training import FixedPointSum, Trainer, UserFailure


class PrivateCohortEvaluation:
    """Asks a cohort of its own what the released model is worth, and releases the answer with noise.

    Args:
        evaluator: noise and commit.
        cohort: users by index of an evaluation, those left out whose own budget forbids it.
        form: as for training: sums of a node's users, or one row a user, which is clipped again here.

    Attributes:
        metrics: the estimates of the last round; empty if none was due.
        failures: of the last round; the users' part in the sum is zero.
    """

    def __init__(
        self,
        evaluator: PrivateEvaluator,
        cohort: Callable[[int], Mapping[int, str]],
        form: MessageForm,
    ) -> None:
        self._evaluator, self._cohort, self._form = evaluator, cohort, form
        self._e: int | None = None
        self._asked: Asked | None = None
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
        self.metrics, self.failures, self._asked = {}, [], None
        self._e = self._evaluator.due(t + 1)
        return {} if self._e is None else self._cohort(self._e)

    def ask(self, t: int, parameters: Tensor, by_node: Mapping[int, Sequence[str]]) -> list[Message]:
        """The messages.

        Args:
            t: the round.
            parameters: θ_{t+1}, shape (d,).
            by_node: whom `asked` named, by the node that serves them.
        """
        (_, _, bound), parts = self._evaluator.plan.ranges[0], self._form.parts(by_node)  # of the loss
        self._asked = Asked(self._form, parts, parameters, t, MessageType.EVALUATE, bound)
        return self._asked.messages

    def collect(self, t: int, replies: Iterable[Message]) -> dict[str, float]:
        """Release what was asked for after round t: the estimates, or nothing if nothing was due.

        Whose reply arrives took part, whatever it holds. The row of noise is spent in any case.
        """
        asked = self._asked
        if self._e is None or asked is None:
            return {}
        total = self._evaluator.new_sum()
        present, self.failures = asked.fold(replies, total, Quarantine(0), "evaluation")
        self.metrics = self._evaluator.release(self._e, total, present)
        self._e, self._asked = None, None
        return self.metrics


def private_reply(message: Message, request: Request, trainer: Trainer) -> Message:
    """A node's answer: the exact sum of its users' rows, or the rows."""
    assert request.loss_bound is not None
    rows, failures = trainer.judge(request.parameters, request.users, request.loss_bound)
    if not request.as_slice:
        return rows_reply(message, request.t, request.users, rows, failures)
    total = FixedPointSum(rows.shape[1], math.sqrt(rows.shape[1]))
    total.add_updates(rows)
    return slice_reply(message, request.t, request.users, total.parts, failures)
