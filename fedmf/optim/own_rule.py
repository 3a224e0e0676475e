"""An update rule of a user's own, held to what the server relies on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedmf.accounting import SecondForm
from fedmf.moments import SecondMoment
from fedmf.optim.server_optimizer import RoundRelease, ServerOptimizer


@dataclass(frozen=True, eq=False)
class OwnRule:
    """A rule that works on copies and whose results are checked.

    A round whose commit failed is made again with the same row of noise. Were its first sum left behind in
    parameters or state that the rule changed in place, both sums would meet in the next model, and their
    difference has no noise.

    Args:
        rule: what the user wrote.
    """

    rule: ServerOptimizer

    @property
    def second_moment(self) -> SecondMoment | None:
        """See `ServerOptimizer.second_moment`."""
        return self.rule.second_moment

    @property
    def second_form(self) -> SecondForm:
        """See `ServerOptimizer.second_form`."""
        return self.rule.second_form

    def init(self, parameters: Tensor) -> dict[str, Tensor]:
        """See `ServerOptimizer.init`.

        Raises:
            ValueError: a state that is not tensors by name.
        """
        return _checked_state(self.rule.init(parameters.clone()), "init")

    def step(
        self, t: int, parameters: Tensor, release: RoundRelease, state: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """See `ServerOptimizer.step`; ``parameters`` and ``state`` are never changed.

        Raises:
            ValueError: other parameters than a vector of the type and length of θ, or a state that is not
                tensors by name.
        """
        copies = {name: value.clone() for name, value in state.items()}
        stepped, state = self.rule.step(t, parameters.clone(), release, copies)
        if (
            not isinstance(stepped, Tensor)
            or stepped.shape != parameters.shape
            or stepped.dtype != parameters.dtype
        ):
            made = (
                f"{stepped.dtype} of shape {tuple(stepped.shape)}" if isinstance(stepped, Tensor) else stepped
            )
            raise ValueError(
                f"step (of {type(self.rule).__name__}) must return {parameters.dtype} parameters of shape "
                f"{tuple(parameters.shape)}; got {made}. Nothing was released."
            )
        return stepped.detach(), _checked_state(state, "step")


def _checked_state(state: Mapping[str, Tensor], method: str) -> dict[str, Tensor]:
    if not isinstance(state, Mapping) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise ValueError(
            f"{method} (of the optimizer) must return its state as tensors by name; got {state!r}."
        )
    return dict(state)
