"""Which runs canaries can audit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedmf.accounting import NoPrivacy, Privacy
from fedmf.cohorts import CheckInCohorts, Cohorts
from fedmf.errors import ConfigError

if TYPE_CHECKING:  # accounting for a run needs no torch
    from fedmf.optim import ServerOptimizer
    from fedmf.parts import Part
    from fedmf.runs.mechanism import NoiseMechanism
    from fedmf.statements import Canaries


def check_canaries(
    canaries: Canaries, privacy: Privacy, cohorts: Cohorts, parts: Sequence[Part], noise: NoiseMechanism
) -> None:
    """Refuse canaries where no theorem says what guessing their coins shows.

    Raises:
        ValueError: a run without noise, amplified, of check-ins, with a moving clip norm or rounded noise.
    """
    if canaries.count == 0:
        return
    asked = f"count (of canaries) must be 0 {{}}; got {canaries.count}. "
    if isinstance(privacy, NoPrivacy):
        raise ValueError(asked.format("in a run without noise") + "It claims nothing that could be refuted.")
    if privacy.counts_sampling:
        raise ValueError(
            asked.format("in an amplified run")
            + "Canaries take part in known rounds, and no theorem here bounds secret ones."
        )
    if isinstance(cohorts, CheckInCohorts):
        raise ValueError(
            asked.format("with check-in cohorts") + "Canaries keep a plan, and nobody plans who checks in."
        )
    if any(part.moves_clip_norm for part in parts):
        raise ValueError(
            asked.format("where the clip norm adapts") + "No theorem here covers noise whose level moves."
        )
    if noise.storage.dtype != "float64":
        raise ValueError(
            asked.format(f"with noise stored as {noise.storage.dtype}")
            + "Rounded noise is not exactly Gaussian."
        )


def check_room(canaries: Canaries, optimizer: ServerOptimizer, dimension: int) -> None:
    """The same once the model is known.

    Raises:
        ConfigError: an optimizer with a second moment, or more canaries than parameters.
    """
    count = canaries.count
    if count and optimizer.second_moment is not None:
        raise ConfigError(
            f"count (of canaries) must be 0 with an optimizer that needs a second moment; got {count}. No "
            "theorem here covers features of canaries' updates."
        )
    if count > dimension:
        raise ConfigError(
            f"count (of canaries) must be at most d={dimension}, the parameters of the model; got {count}. "
            "Each has coordinates of its own."
        )
