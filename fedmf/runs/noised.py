"""What a round releases: integer sums plus integer rows of noise, and only then numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmf.clipping import ClippedSum, clip_to_fixed_point, fixed_point_energies, in_parts, new_vector
from fedmf.matrices.second_moment import SecondMoment
from fedmf.noise import Domain, KeySchedule, NoiseStream
from fedmf.noise.loops import compiled
from fedmf.noise.units import IntegerNoise
from fedmf.runs.plan import Plan
from fedmf.runs.statistics import Statistic


@compiled("void(int64[::1], float64, float32[::1])", "void(int64[::1], float64, float64[::1])")
def _scale(integers: Any, factor: float, values: Any) -> None:
    """values = integers·factor, rounded to float64 and then to their own type."""
    for i in range(values.size):
        values[i] = np.float64(integers[i]) * factor


@dataclass(frozen=True, eq=False)
class NoisySum:
    """A private sum: o = G + X. Everything that is made of it is post-processing.

    Args:
        integers: o, int64, shape (d,).
        unit: what one of them stands for.
    """

    integers: Tensor
    unit: float

    def mean(self, size: float, dtype: torch.dtype = torch.float64) -> Tensor:
        """o·(unit/size) as a new vector.

        Args:
            size: m > 0, by which the sum is divided.
            dtype: float32 or float64; products are rounded to float64 first.
        """
        factor = self.unit / size
        if self.integers.device.type != "cpu":
            return (self.integers.to(torch.float64) * factor).to(dtype)
        mean = new_vector(self.integers.numel(), dtype, self.integers.device)
        values = mean.numpy()
        integers = self.integers.numpy()
        in_parts(lambda part: _scale(integers[part], factor, values[part]), mean)
        return mean


class NoisyParts:
    """The noise of one part of a run's rounds: sums of updates, second moments, or a statistic.

    Args:
        keys: which key makes which row.
        domain: of the part.
        plan: of the run.
        index: the part's place among `Plan.parts`.
    """

    def __init__(self, keys: KeySchedule, domain: Domain, plan: Plan, index: int) -> None:
        part = plan.parts[index]
        C = part.factorization
        self.noise: IntegerNoise | None = plan.noise_of(index)
        std = 0.0 if self.noise is None else self.noise.std
        self.stream = NoiseStream(keys, domain, C.recurrence(), C.rounds, part.size, std)

    def release(self, t: int, total: Tensor, unit: float) -> NoisySum:
        """Turn the sum of round t into its release, in place.

        Args:
            t: 0-based round.
            total: G_t, int64, shape (size,).
            unit: what one of its integers stands for.
        """
        self.stream.seek(t)
        self.stream.release(total)
        return NoisySum(total, unit)

    def check(self, saved: Mapping[str, Any]) -> None:
        """Reject other noise than the saved; without noise any key will do.

        Raises:
            ValueError: it is another.
        """
        if self.noise is not None:
            self.stream.load_state(saved)


class StatisticRelease:
    """(Σ_u s_u + noise)/m in round t.

    Args:
        statistic: s, of absolute value at most c.
        plan: of the run.
        keys: which key makes which row.

    Attributes:
        state: of the statistic, after the last round that is final.
    """

    def __init__(self, statistic: Statistic, plan: Plan, keys: KeySchedule) -> None:
        self.statistic = statistic
        self._summed = statistic.summed()
        self._size = plan.cohorts.users_per_round
        index = plan.index_of(statistic)
        self._noisy = NoisyParts(keys, Domain.of_part(statistic.name), plan, index)
        # Without noise nothing is rounded, and fine units of a large statistic might overflow.
        self._bits = 0 if self._noisy.noise is None else plan.bits_of(index)
        self.state = statistic.begin(plan.privacy.clip_norm)

    def after(self, t: int, total: ClippedSum) -> Mapping[str, Any]:
        """Release the statistic of round t, and return the state after it."""
        integers = torch.tensor([total.scalar(self._summed) << self._bits], dtype=torch.int64)
        noisy = self._noisy.release(t, integers, 2.0**-self._bits)
        return self.statistic.after(t, float(noisy.mean(self._size)), self.state)

    def state_dict(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return a state with the position and identity of the noise, for a checkpoint."""
        return {"state": dict(state), "noise": self._noisy.stream.state_dict()}

    def load_state(self, saved: Mapping[str, Any]) -> None:
        """Continue where a checkpoint was made.

        Raises:
            ValueError: it was made with other noise.
        """
        self._noisy.check(saved["noise"])
        self.state = saved["state"]


class SecondMomentRelease:
    """The second moment of every round, of an optimizer that needs it: q_t = (F_t + noise)/m.

    F_t is Σ_u features(x_u) ("per-user"), or m times the features of the mean of the x_u, projected onto the
    ball of radius ζ ("squared-mean"); in integers in either case.

    Args:
        plan: of a run with a second stream.
        moment: which features the optimizer needs, as the plan counted.
        keys: which key makes which row; the same as for the sums.
    """

    def __init__(self, plan: Plan, moment: SecondMoment, keys: KeySchedule) -> None:
        assert plan.second is not None
        self._moment = moment
        self._form = plan.second.form
        self._size = plan.cohorts.users_per_round
        self._std = plan.second_noise_std
        self._row_variances = plan.second.factorization.noise_row_variances()
        self._bits = plan.bits_of(0)
        self._feature_bits = plan.bits_of(1)
        self._unit = plan.privacy.clip_norm**2 * 2.0**-self._feature_bits
        self.noisy = NoisyParts(keys, Domain.SECOND_MOMENT, plan, 1)

    def release(self, t: int, total: ClippedSum) -> tuple[Tensor, float]:
        """Return q_t, float64 of shape (m,), and the variance of the noise in each of its entries."""
        features = total.second_fixed_point if self._form == "per-user" else self._squared_mean(total)
        noisy = self.noisy.release(t, features, self._unit)
        return noisy.mean(self._size), (self._std / self._size) ** 2 * float(self._row_variances[t])

    def _squared_mean(self, total: ClippedSum) -> Tensor:
        """m times the features of G/m, clipped like an update: a mean of more users may be longer."""
        mean = total.fixed_point.to(torch.float64) / self._size
        integers, _ = clip_to_fixed_point(mean[None], 2.0**self._bits, self._bits)
        features = fixed_point_energies(integers, self._moment, self._bits, self._feature_bits)
        return features[0] * self._size
