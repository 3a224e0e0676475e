"""What a run sums of its users, and its second stream: from clipped updates to a private second moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from fedmf.accounting import SecondForm
from fedmf.moments import SecondMoment
from fedmf.noise import Domain, GaussianSource, KeySchedule, NoiseStream
from fedmf.optim import ServerOptimizer
from fedmf.parts import Part
from fedmf.runs.run import Run
from fedmf.statements import Plan
from fedmf.training import (
    FRACTION_BITS,
    ClippedSums,
    FixedPointSum,
    LocalTrainer,
    Task,
    clip_to_fixed_point,
    fixed_point_energies,
)


def sums_for(
    optimizer: ServerOptimizer, dimension: int, clip_norm: float, parts: Sequence[Part]
) -> ClippedSums:
    """What to sum over users: updates; features where the optimizer needs them, statistics where parts do."""
    summed = optimizer.second_form == "per-user"
    moment = optimizer.second_moment if summed else None
    statistics = dict.fromkeys(statistic for part in parts for statistic in part.statistics())
    return ClippedSums(dimension, clip_norm, moment, tuple(statistics))


def clipped_sums(run: Run, task: Task) -> ClippedSums:
    """What the workers of a run clip and sum."""
    optimizer = run.optimizer_source.build(task.model.shapes, run.cohorts.rounds)
    return sums_for(optimizer, task.model.dimension, run.privacy.clip_norm, run.parts)


def local_trainer(run: Run, task: Task) -> LocalTrainer:
    """What trains the users of a run.

    Args:
        run: says how.
        task: built from it, on the device where users are trained.
    """
    return LocalTrainer(task, run.client)


#: Of the stream, in checkpoints.
_NAME: Final = "second"


class NoSecondMoment:
    """The second stream of a run whose optimizer needs none."""

    def release(self, t: int, total: FixedPointSum) -> tuple[Tensor | None, float | None]:
        """Nothing."""
        del t, total
        return None, None

    def state_dict(self) -> dict[str, Any]:
        """Nothing that a checkpoint would hold."""
        return {}

    def load_state(self, saved: Mapping[str, Any], t: int) -> None:
        """Nothing to go on with."""


class SecondMomentRelease(NoSecondMoment):
    """Adds noise of its own to the second moment of every round.

    With m the planned cohort size and τ₂ = τ₁/√λ, round t releases

        q_t = (F_t + τ₂·[C₂⁻¹z']_t) / m,

    where F_t is Σ_u features(x_u) ("per-user"), or m times the features of the mean of the x_u, projected
    onto the ball of radius ζ ("squared-mean"); z' is independent of the noise of the sums.

    Args:
        plan: of a run with a second stream.
        second_moment: which features the optimizer needs, as the plan counted.
        form: how they are formed.
        keys: which key makes which row; those of the sums.
        device: where sums and noise live.

    Raises:
        ValueError: the plan has no second stream, or one for other features.
    """

    def __init__(
        self,
        plan: Plan,
        second_moment: SecondMoment,
        form: SecondForm,
        keys: KeySchedule,
        device: torch.device,
    ) -> None:
        planned = plan.second.require(form, second_moment.size)
        self._plan, self._moment, self._form = plan, second_moment, form
        self._row_variances = planned.factorization.noise_row_variances()
        source = GaussianSource(keys, second_moment.size, Domain.SECOND_MOMENT)
        inverse = planned.factorization.recurrence()
        self.noise = NoiseStream(source, inverse, plan.participation.rounds, device=device)

    def release(self, t: int, total: FixedPointSum) -> tuple[Tensor, float]:
        """q_t, float64 of shape (m,), and the variance of the noise in each of its entries."""
        m, std = self._plan.cohorts.users_per_round, self._plan.second_noise_std
        noisy = self._features(total)
        self.noise.seek(t)
        if std > 0:
            self.noise.add_(noisy, std)
        else:
            self.noise.skip()
        variance = (std / m) ** 2 * float(self._row_variances[t])
        return noisy / m, variance

    def _features(self, total: FixedPointSum) -> Tensor:
        """F_t without noise."""
        if self._form == "per-user":
            return total.second_total()
        m, zeta = self._plan.cohorts.users_per_round, self._plan.privacy.clip_norm
        point, _ = clip_to_fixed_point((total.total() / m)[None], zeta)
        features = fixed_point_energies(point, self._moment)[0].to(torch.float64)
        return features * (m * zeta**2 * 2.0**-FRACTION_BITS)

    def state_dict(self) -> dict[str, Any]:
        """Position and identity of the noise, JSON-able, by the name of the stream."""
        return {_NAME: self.noise.state_dict()}

    def load_state(self, saved: Mapping[str, Any], t: int) -> None:
        """Go to a saved position.

        Args:
            saved: the state of all streams of noise.
            t: where the first one is.

        Raises:
            ValueError: it is of other noise, or not where the first stream was.
        """
        self.noise.load_state(saved.get(_NAME, {}))
        if self.noise.t != t:
            raise ValueError(
                f"t (round of the saved second noise) must be {t}, that of the first; got {self.noise.t}. "
                "Restore checkpoint and ledger from the same copy."
            )


def second_stream(
    plan: Plan, optimizer: ServerOptimizer, keys: KeySchedule, device: torch.device
) -> NoSecondMoment:
    """What releases the second moment that an optimizer needs; nothing if it needs none.

    Raises:
        ValueError: as `SecondMomentRelease`.
    """
    second_moment = optimizer.second_moment
    if second_moment is None:
        return NoSecondMoment()
    return SecondMomentRelease(plan, second_moment, optimizer.second_form, keys, device)
