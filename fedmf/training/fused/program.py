"""Which models and users compiled local steps are for."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedmf.data import TensorStructure
from fedmf.training.barrier import Group, add_users
from fedmf.training.blocks import Examples, Rule
from fedmf.training.clipping import Into, UpdateSum
from fedmf.training.compilable import chain_of, compilable, rule_of
from fedmf.training.fused.layout import Layout, laid_out
from fedmf.training.fused.steps import train_and_sum
from fedmf.training.fused.values import work
from fedmf.training.local_sgd import LocalSGD
from fedmf.training.task import Task


class ReceivedModel:
    """A model at the received parameters.

    Args:
        layout: its stages.
        rule: of local SGD.
        origin: θ_t as the layout holds it.
    """

    def __init__(self, layout: Layout, rule: Rule, origin: NDArray[np.float32]) -> None:
        self._layout, self._rule, self._origin = layout, rule, origin

    def add_to(self, total: UpdateSum, group: Group) -> Iterator[tuple[int, tuple[str, str]]]:
        """See `add_users`."""
        return add_users(total, group, self._compute)

    def _compute(
        self,
        examples: Examples,
        outcome: NDArray[np.int64],
        clip_norm: float,
        scale: float,
        into: Into,
    ) -> None:
        plain = self._rule.momentum == 0.0 and self._rule.proximal == 0.0
        plan, width = self._layout.plan, examples.rows.shape[2]
        most = int(np.diff(examples.edges).max(initial=0))
        memory = work(plan, self._origin.size, width, most, plain, into.total.size)
        train_and_sum(plan, self._rule, self._origin, examples, memory, clip_norm, scale, into, outcome)


class FusedProgram:
    """Local SGD of chains of convolutions and dense layers under cross-entropy, from examples to the integers
    of clipped updates: one user after another, all steps in one compiled call. Dense layers may be frozen, or
    have peft's low-rank adapters, which alone are trained then.

    Guarantees:
        A user's integers are a function of its own examples and the received model, to the bit, whoever is
        trained beside it, in whatever groups and threads. They enter the sum as every user's do.

    Args:
        layout: the model's stages.
        local: local SGD.
    """

    def __init__(self, layout: Layout, local: LocalSGD) -> None:
        self._layout, self._local = layout, local

    @classmethod
    def of(cls, task: Task, local: LocalSGD) -> FusedProgram | None:
        """The program for a task's model, None if that is no such chain or is to be computed otherwise."""
        features = task.structure.features
        if not (compilable(task, local) and isinstance(features, TensorStructure)):
            return None
        layout = laid_out(list(chain_of(task.model.module)), features.shape)
        if layout is None or layout.dimension != task.model.dimension:
            return None
        return cls(layout, local)

    def received(self, origin: Tensor) -> ReceivedModel:
        """The model of a round: θ_t, shape (d,), float32."""
        held = self._layout.packed(origin.detach().numpy())
        return ReceivedModel(self._layout, rule_of(self._local), held)
