"""Moments of a stream, released one step after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch

from fedmf.factorization import Factorization
from fedmf.moments.mechanism import MomentMechanism
from fedmf.moments.running import MatrixWorkload, RunningWorkload
from fedmf.moments.second_moment import SecondMoment
from fedmf.noise import CorrelatedNoise, Domain, GaussianSource, NoiseKey
from fedmf.workload import ToeplitzWorkload

__all__ = ["MomentRelease", "MomentStream"]

Workload = ToeplitzWorkload | MatrixWorkload
#: Rows this much over ζ, as float32 rounding makes them, are scaled back to ζ instead of refused.
_NORM_ROUNDING = 1e-6


@dataclass(frozen=True, eq=False)
class MomentRelease:
    """What step t releases; everything in it is private.

    Args:
        t: 1 for the first step.
        first: Y_t = Σ_{i ≤ t} [A₁]_{ti} x_i + noise, shape (d,).
        second: S_t, unpacked: (d, d) for a full matrix, (size,) otherwise.
    """

    t: int
    first: torch.Tensor
    second: torch.Tensor


@final
class MomentStream:
    """The running estimator: `release = stream.update(x)`.

    Args:
        mechanism: noise levels and strategy matrices, by `jme`, `ime`, `cs` or `pp`.
        second_moment: which second moment; its sensitivity dimension must not exceed that of the mechanism.
        first_workload: A₁, n rounds.
        second_workload: A₂; None for A₁.
        key: the key of this stream; one key, one stream.

    Raises:
        ValueError: horizons or dimensions disagree.

    Guarantees:
        The two noises come from different domains of the key: no keystream block serves both.
        Rows are refused before anything changes; a refused row consumes no step.
        Memory beyond the release: the state of the workloads and the noise buffers of C₁ and C₂.

    >>> from fedmf.factorization import identity
    >>> from fedmf.moments import FullMatrix, UserRange, jme
    >>> from fedmf.participation import Participation
    >>> from fedmf.workload import average
    >>> C, part = identity(100), Participation(100, 1, 100)
    >>> made = jme(C, C, part, UserRange(1.0, 2, "replace-one"), noise_multiplier=0.5)
    >>> stream = MomentStream(made, FullMatrix(2), average(100), key=NoiseKey.from_seed(0))
    >>> release = stream.update(torch.tensor([0.6, 0.8]))
    >>> release.t, release.first.shape, release.second.shape
    (1, torch.Size([2]), torch.Size([2, 2]))
    """

    def __init__(
        self,
        mechanism: MomentMechanism,
        second_moment: SecondMoment,
        first_workload: Workload,
        second_workload: Workload | None = None,
        *,
        key: NoiseKey,
    ) -> None:
        second_workload = first_workload if second_workload is None else second_workload
        for name, rounds in (("A_1", first_workload.rounds), ("A_2", second_workload.rounds)):
            if rounds != mechanism.rounds:
                raise ValueError(f"n (horizon) must be {mechanism.rounds} for {name} too; got {rounds}.")
        wanted, given = min(second_moment.sensitivity_dimension, 2), min(mechanism.users.dimension, 2)
        if wanted > given:
            raise ValueError(
                f"d (sensitivity dimension) must be at least {wanted} for this second moment; got {given}. "
                "Make the mechanism with a UserRange of that dimension."
            )
        self.mechanism, self.second_moment = mechanism, second_moment
        self.first_workload, self.second_workload = first_workload, second_workload
        self._running_first = RunningWorkload(first_workload, second_moment.dimension)
        self._running_second = RunningWorkload(second_workload, second_moment.size)
        n, first, second = mechanism.rounds, mechanism.first, mechanism.second
        self._first_noise = _noise(key, first, second_moment.dimension, Domain.FIRST_MOMENT, n)
        self._second_noise = None
        if second is not None:
            self._second_noise = _noise(key, second, second_moment.size, Domain.SECOND_MOMENT, n)
        self._bias_rows = first.noise_row_variances() if mechanism.name == "pp-debiased" else None
        self._t = 0

    @property
    def t(self) -> int:
        """Steps released so far."""
        return self._t

    def update(self, x: torch.Tensor) -> MomentRelease:
        """Take in the rows of one step and release both moments.

        Args:
            x: shape (d,), or (m, d) for m users in one step (their moments are summed); ‖row‖ ≤ ζ.

        Raises:
            ValueError: a shape, a NaN or infinity, a row longer than ζ, or the horizon is reached.
                Nothing was consumed.
        """
        rows = self._checked(x)
        first = rows.sum(0)
        self._first_noise.add_(first, self.mechanism.first_std)
        if self._second_noise is None:
            second = self._squared(first)
        else:
            assert self.mechanism.second_std is not None
            second = self.second_moment.features(rows)
            self._second_noise.add_(second, self.mechanism.second_std)
        self._t += 1
        released = self._running_first.update(first), self._running_second.update(second)
        return MomentRelease(self._t, released[0], self.second_moment.unpack(released[1]))

    def _squared(self, private: torch.Tensor) -> torch.Tensor:
        features = self.second_moment.features(private[None])
        if self._bias_rows is not None:
            variance = self.mechanism.first_std**2 * float(self._bias_rows[self._t])
            features = features - variance * self.second_moment.of_isotropic_noise()
        return features

    def _checked(self, x: torch.Tensor) -> torch.Tensor:
        d, zeta = self.second_moment.dimension, self.mechanism.users.norm_bound
        rows = x.detach().to(torch.float64, copy=True)
        rows = rows[None] if rows.ndim == 1 else rows
        if rows.ndim != 2 or rows.shape[1] != d:
            raise ValueError(f"x (row) must have shape ({d},) or (m, {d}); got {tuple(x.shape)}.")
        if self._t >= self.mechanism.rounds:
            raise ValueError(
                f"t (step) must be at most n (horizon) = {self.mechanism.rounds}; got {self._t + 1}. "
                "Plan a longer stream: noise past the horizon was never calibrated."
            )
        if self.mechanism.second is None and rows.shape[0] > 1:
            raise ValueError(
                f"x (rows) must be one row a step for post-processing; got {len(rows)}. "
                "The square of a noisy sum is not the sum of squares."
            )
        values = rows.numpy()
        norms = np.sqrt(np.einsum("ij,ij->i", values, values))
        longest = float(norms.max(initial=0.0))
        if not longest <= zeta * (1 + _NORM_ROUNDING):
            if not torch.isfinite(rows).all():
                raise ValueError("x (row) must be finite; got NaN or infinity. No step was consumed.")
            raise ValueError(f"x (row) must have norm at most zeta = {zeta}; got {longest}. Clip rows first.")
        if longest > zeta:
            values *= (zeta / np.maximum(norms, zeta))[:, None]
        return rows

    def state_dict(self) -> dict[str, Any]:
        """Step, workload states (private outputs) and noise positions; never the key."""
        return {
            "t": self._t,
            "first": self._running_first.state_dict(),
            "second": self._running_second.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state: the noise goes on with the rows it would have used.

        Raises:
            ValueError: the state is of another stream.
        """
        self._running_first.load_state_dict(state["first"])
        self._running_second.load_state_dict(state["second"])
        self._t = int(state["t"])
        self._first_noise.seek(self._t)
        if self._second_noise is not None:
            self._second_noise.seek(self._t)


def _noise(key: NoiseKey, C: Factorization, size: int, domain: Domain, rounds: int) -> CorrelatedNoise:
    return CorrelatedNoise(GaussianSource(key, size, domain), C.recurrence(), rounds)
