"""Noisy sums of a run: an integer sum plus an integer row of noise, and only then numbers.

`PrivateServer` has a `NoisyParts` for each part of its plan: sums of updates, statistics and second
moments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmf.clipping.clipped_rows import clip_to_fixed_point
from fedmf.clipping.clipped_sum import ClippedSum
from fedmf.clipping.features import fixed_point_energies
from fedmf.clipping.memory import in_parts, new_vector
from fedmf.matrices.second_moment import SecondMoment
from fedmf.noise.jit import compiled_for
from fedmf.noise.key import Domain
from fedmf.noise.noise_stream import NoiseStream
from fedmf.noise.schedule import KeySchedule
from fedmf.noise.units import IntegerNoise, Part
from fedmf.release.plan import Plan
from fedmf.release.statistics import ReleasedStatistic


@compiled_for(("float32", "float64"), "void({0}[::1], int64[::1], float64)")
def _scale(values: Any, integers: Any, factor: float) -> None:
    """Set values to integers·factor, rounded to float64 and then to the type of the values."""
    for i in range(values.size):
        values[i] = np.float64(integers[i]) * factor


@dataclass(frozen=True, eq=False)
class NoisySum:
    """A private sum: o = G + X. All that is computed from it is post-processing.

    Args:
        integers: o, int64, shape (d,).
        unit: value of an integer of 1.
    """

    integers: Tensor
    unit: float

    def mean(self, size: float, dtype: torch.dtype = torch.float64) -> Tensor:
        """Return o·(unit/size) as a new vector.

        Args:
            size: m > 0, the divisor of the sum.
            dtype: float32 or float64; products are rounded to float64 first.
        """
        factor = self.unit / size
        if self.integers.device.type != "cpu":
            return (self.integers.to(torch.float64) * factor).to(dtype)
        mean = new_vector(self.integers.numel(), dtype, self.integers.device)
        values = mean.numpy()
        integers = self.integers.numpy()
        in_parts(lambda part: _scale(values[part], integers[part], factor), mean)
        return mean


class NoisyParts:
    """The noise of one part of a release: sums of updates, second moments, or a statistic.

    Args:
        keys: the key of each row.
        domain: of the part.
        part: its C and size.
        noise: its unit and standard deviation; None for a release without noise.
    """

    def __init__(
        self, keys: KeySchedule, domain: Domain, part: Part, noise: IntegerNoise | None
    ) -> None:
        C = part.factorization
        std = 0.0
        if noise is not None:
            std = noise.std
        self.noise = noise
        self.stream = NoiseStream(keys, domain, C.streaming_inverse(), C.rounds, part.size, std)

    def release(self, t: int, total: Tensor, unit: float) -> NoisySum:
        """Turn the sum of round t into its release, in place.

        Args:
            t: round, from 0.
            total: G_t, int64, shape (size,).
            unit: value of an integer of 1.
        """
        self.stream.seek(t)
        self.stream.release(total)
        return NoisySum(total, unit)

    def check(self, saved: Mapping[str, Any]) -> None:
        """Check that the noise is that of a saved state; without noise any key is accepted.

        Raises:
            ValueError: it is other noise.
        """
        if self.noise is not None:
            self.stream.load_state(saved)


class NoisyStatistic:
    """A statistic with its noise: Σ_u s_u + noise in every round.

    Args:
        statistic: s, of absolute value at most c.
        plan: of the run.
        keys: the key of each row.
    """

    def __init__(self, statistic: ReleasedStatistic, plan: Plan, keys: KeySchedule) -> None:
        self.name = statistic.name
        self._summed = statistic.summed()
        index = plan.index_of(statistic)
        domain = Domain.of_statistic(statistic.name)
        self.noisy = NoisyParts(keys, domain, plan.parts[index], plan.noise_of(index))
        # Without noise nothing is rounded, and fine units of a large statistic might overflow.
        self._bits = 0
        if self.noisy.noise is not None:
            self._bits = plan.bits_of(index)

    def release(self, t: int, total: ClippedSum) -> NoisySum:
        """Return the noisy sum of round t."""
        integers = torch.tensor([total.scalar(self._summed) << self._bits], dtype=torch.int64)
        return self.noisy.release(t, integers, 2.0**-self._bits)


class NoisySecondMoment:
    """The second moment with its noise, for an optimizer that needs it: m·q_t = F_t + noise.

    F_t is Σ_u features(x_u) ("per-user"), or m times the features of the mean of the x_u, projected
    onto the ball of radius ζ ("squared-mean"); in integers in either case.

    Args:
        plan: of a run with a second stream.
        moment: the features that the optimizer needs, as planned.
        keys: the key of each row, as for the sums.
    """

    def __init__(self, plan: Plan, moment: SecondMoment, keys: KeySchedule) -> None:
        assert plan.second is not None
        self._moment = moment
        self._form = plan.second.form
        self._size = plan.users_per_round
        self._std = plan.second_noise_std
        self._row_variances = plan.second.factorization.noise_row_variances()
        self._bits = plan.bits_of(0)
        self._feature_bits = plan.bits_of(1)
        self._unit = plan.clip_norm**2 * 2.0**-self._feature_bits
        self.noisy = NoisyParts(keys, Domain.SECOND_MOMENT, plan.parts[1], plan.noise_of(1))

    def release(self, t: int, total: ClippedSum) -> tuple[NoisySum, float]:
        """Return m·q_t and the variance of the noise in each entry of q_t."""
        if self._form == "per-user":
            features = total.second_fixed_point
        else:
            features = self._squared_mean(total)
        noisy = self.noisy.release(t, features, self._unit)
        return noisy, (self._std / self._size) ** 2 * float(self._row_variances[t])

    def _squared_mean(self, total: ClippedSum) -> Tensor:
        """Return m times the features of G/m.

        G/m is clipped like an update: the mean of more than m users may be longer.
        """
        mean = total.fixed_point.to(torch.float64) / self._size
        integers, _ = clip_to_fixed_point(mean[None], 2.0**self._bits, self._bits)
        features = fixed_point_energies(integers, self._moment, self._bits, self._feature_bits)
        return features[0] * self._size
