"""The second moment of a run: its noisy release in each round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedmf.accounting import SecondForm
from fedmf.moments import SecondMoment
from fedmf.noise import Domain, GaussianSource, KeySchedule, NoiseStream
from fedmf.runs.plan import Plan
from fedmf.training import FRACTION_BITS, FixedPointSum, clip_to_fixed_point, fixed_point_energies


class SecondMomentRelease:
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
        planned = plan.second
        if planned is None or (planned.form, planned.features) != (form, second_moment.size):
            known = "none" if planned is None else f"{planned.features} of form {planned.form!r}"
            raise ValueError(
                f"second moment (of the optimizer) must be the planned one ({known}); got "
                f"{second_moment.size} features of form {form!r}. Plan the run with its optimizer."
            )
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
        """Position and identity of the noise, JSON-able."""
        return self.noise.state_dict()

    def load_state(self, saved: Mapping[str, Any], t: int) -> None:
        """Go to a saved position.

        Args:
            saved: its state.
            t: where the first one is.

        Raises:
            ValueError: it is of other noise, or not where the first stream was.
        """
        self.noise.load_state(saved)
        if self.noise.t != t:
            raise ValueError(
                f"t (round of the saved second noise) must be {t}, that of the first; got {self.noise.t}. "
                "Restore checkpoint and ledger from the same copy."
            )
