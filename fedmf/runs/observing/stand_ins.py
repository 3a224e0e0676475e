"""What local training does to a model, seen on users who do not exist: nothing of real users is told."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import torch
from torch import Tensor

from fedmf.addresses import linked
from fedmf.data import InMemoryDataset, each, named
from fedmf.training import LocalSGD, LocalTrainer, Task

if TYPE_CHECKING:
    from fedmf.runs.session import Session


_STAND_INS: Final = 4
#: Most examples that a stand-in owns, whatever real users own: that is theirs alone to know.
_EXAMPLES: Final = 16
#: Features beyond are no numbers of size about 1.
_LARGE: Final = 30.0
#: An update so many times as long as the clip norm is next to nothing after the clip.
_KEPT: Final = 100.0
#: A loss has to rise by this at least to be called higher, whatever it was.
_LEAST_RISE: Final = 1e-3


@dataclass(frozen=True)
class LocalOutcome:
    """What local training did to the stand-ins.

    Args:
        rounds: released before.
        stand_ins: how many there are.
        clipped: of them, whose update is longer than ζ.
        diverged: of them, whose own loss is not finite after local training, or has risen above the higher of
            what it was before and what the untrained model's is by that much again.
        before: median of their losses before local training.
        after: and after; not finite if most are not.
        norm: median norm of their updates; not finite if most are not.
    """

    rounds: int
    stand_ins: int
    clipped: int
    diverged: int
    before: float
    after: float
    norm: float

    def beyond_the_clip(self, clip_norm: float) -> str | None:
        """One line where next to nothing of an update is left by the clip."""
        ratio = self.norm / clip_norm
        if not _KEPT <= ratio < math.inf:
            return None
        return (
            f"updates of stand-in users, made of the public test part, are {ratio:.2g} times as long as the "
            f"clip norm {clip_norm:g}, which keeps next to nothing of them. A clip norm near their length, "
            f"{self.norm:.2g}, lets the model move."
        )

    @property
    def diverges(self) -> bool:
        """Whether more than half diverged."""
        return 2 * self.diverged > self.stand_ins

    def warning(self, learning_rate: float) -> str:
        """One line."""
        after = f"{self.after:.3g}" if math.isfinite(self.after) else "not finite"
        return (
            f"local training diverges after round {self.rounds}: it leaves {self.diverged} of "
            f"{self.stand_ins} stand-in users, made of the public test part, with a loss worse than "
            f"untrained (median {self.before:.3g} before, {after} after). local.learning-rate "
            f"{learning_rate:g} is too high: of a long update the clip keeps no more than its direction, "
            "and one that is not finite counts as zero."
        )


class StandIns:
    """Users made of the public test part, of 16 examples each if it has so many.

    Args:
        task: whose test part is not that of training users, and not empty.
        local: local training.
        clip_norm: ζ > 0.

    Guarantees:
        Nothing of real users is looked at, not how many examples they own either. So what this finds is a
        function of the model that it is given, of public data and of nothing else.
    """

    def __init__(self, task: Task, local: LocalSGD, clip_norm: float) -> None:
        dataset, tests = task.dataset, len(task.dataset.test_labels)
        size = max(1, min(_EXAMPLES, tests // _STAND_INS))
        rows = np.random.default_rng(0).permutation(tests)
        self._owned = tuple(
            rows[first : first + size] for first in range(0, min(_STAND_INS, tests // size) * size, size)
        )
        self._names = tuple(f"stand-in {user}" for user in range(len(self._owned)))
        self._clip_norm = clip_norm
        self._task = replace(
            task,
            dataset=InMemoryDataset(
                features=dataset.test_features,
                labels=dataset.test_labels,
                owned=self._owned,
                user_ids=self._names,
                test_features=dataset.test_features,
                test_labels=dataset.test_labels,
            ),
        )
        self._trainer = LocalTrainer(self._task, replace(local, engine="loop"))

    @classmethod
    def of(cls, task: Task, local: LocalSGD, clip_norm: float) -> Self | None:
        """None where there is no public test part."""
        dataset = task.dataset
        public = dataset.test_owner != "training users" and len(dataset.test_labels) > 0
        return cls(task, local, clip_norm) if public else None

    @cached_property
    def _untrained(self) -> list[float]:
        theta = self._task.model.initial().to(self._task.device)
        return [self._loss(theta, user) for user in range(len(self._owned))]

    @torch.no_grad()
    def _loss(self, parameters: Tensor, user: int) -> float:
        dataset, task = self._task.dataset, self._task
        rows = torch.from_numpy(self._owned[user]).to(task.device)
        outputs = task.model.forward(parameters, each(lambda values: values[rows], dataset.test_features))
        return float(task.loss(outputs, dataset.test_labels[rows]).mean())

    def outcome(self, parameters: Tensor, rounds: int) -> LocalOutcome:
        """What local training makes of a model.

        Args:
            parameters: θ, shape (d,).
            rounds: released so far; it selects the shuffling.
        """
        theta, before, after, norms = parameters.to(self._task.device), [], [], list[float]()
        diverged = 0
        for user, name in enumerate(self._names):
            with torch.random.fork_rng(devices=[]):  # a module of a user's own may draw from it
                update = self._trainer.updates(theta, [name], rounds)[0]
            norms.append(float(torch.linalg.vector_norm(update.double())))
            before.append(self._loss(theta, user))
            after.append(self._loss(theta + update, user))
            worst = max(before[-1], self._untrained[user])
            rise = after[-1] - worst
            diverged += math.isfinite(worst) and not rise <= max(abs(worst), _LEAST_RISE)
        clipped = sum(norm > self._clip_norm for norm in norms)
        medians = (float(np.median(values)) for values in (before, after, norms))
        return LocalOutcome(rounds, len(self._names), clipped, diverged, *medians)

    def far_from_one(self) -> str | None:
        """One line where features of the public test part are so large that models learn badly from them."""
        largest = 0.0
        for values in named(self._task.dataset.test_features).values():
            if values.is_floating_point() and values.numel():
                largest = max(largest, float(values.abs().nan_to_num(0.0, 0.0, 0.0).max()))
        if largest <= _LARGE:
            return None
        return (
            f"features of the public test part reach {largest:.4g}: models learn badly from numbers that are "
            "not of size about 1. Scale them by public constants, training and test part alike; a data "
            f"contract does it for tables: {linked('docs/data-contract.md')}."
        )


class LocalCheck:
    """Looks now and then at what local training does, and says once if it diverges.

    Args:
        session: just opened.

    Attributes:
        outcome: of the last look; None where there is no public test part, or only clients know the task.
    """

    def __init__(self, session: Session) -> None:
        run = session.run
        self.outcome: LocalOutcome | None = None
        self._session, self._said = session, False
        self._stand_ins = (
            StandIns.of(session.task, run.local, run.privacy.clip_norm) if session.has_task else None
        )
        self._every = max(10, -(-session.server.horizon // 10))

    def look(self) -> str | None:
        """Look if it is time to: the warning, when there is one first, and what the first look finds.

        It is time when the run is opened, after about each tenth of its rounds, and not more often than every
        ten.
        """
        t = self._session.server.t
        due = self.outcome is None or (t % self._every == 0 and t != self.outcome.rounds)
        if self._stand_ins is None or not due:
            return None
        first = self.outcome is None
        self.outcome = self._stand_ins.outcome(self._session.server.parameters, t)
        lines = [] if self._said else [self.verdict()]
        self._said |= self.outcome.diverges
        if first:
            clip_norm = self._session.run.privacy.clip_norm
            lines += [self._stand_ins.far_from_one(), self.outcome.beyond_the_clip(clip_norm)]
        return " ".join(line for line in lines if line is not None) or None

    def verdict(self) -> str | None:
        """The warning, if the last look found that local training diverges."""
        if self.outcome is None or not self.outcome.diverges:
            return None
        return self.outcome.warning(self._session.run.local.learning_rate)
