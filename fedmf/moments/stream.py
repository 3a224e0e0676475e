"""Moments of a stream, released one step after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import torch

from fedmf.mechanisms.matrix import Factorization
from fedmf.mechanisms.second_moment import SecondMoment
from fedmf.mechanisms.workload import ToeplitzWorkload
from fedmf.moments.methods import MomentMechanism
from fedmf.moments.running import RunningWorkload
from fedmf.noise import Domain, KeySchedule, NoiseKey, NoiseStream
GaussianSource = None

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


@dataclass(frozen=True, eq=False)
class MomentBlock:
    """What consecutive steps release.

    Args:
        t: the first of them, 1 for the first step of the stream.
        first: Y_t, Y_{t+1}, …, shape (steps, d).
        second: S_t, S_{t+1}, … packed, shape (steps, size); `SecondMoment.unpack` shapes one of them.
    """

    t: int
    first: torch.Tensor
    second: torch.Tensor


@final
class MomentStream:
    """The running estimator: `release = stream.update(x)`.

    Args:
        mechanism: noise levels and strategy matrices, by `jme`, `ime`, `cs` or `pp`.
        second_moment: which second moment; its sensitivity dimension must not exceed the mechanism's.
        first_workload: A₁, n rounds.
        second_workload: A₂; None for A₁.
        key: the key of this stream, or the schedule of its keys; one key, one stream.

    Raises:
        ValueError: horizons or dimensions disagree.

    Guarantees:
        The two noises come from different domains of the key: no keystream block serves both.
        Rows are rejected before anything changes; a rejected row consumes no step. After a step that was
        interrupted nothing more is released until a saved state is loaded.
        The caller must check participation: the noise is for users within (k, b), which
        `fedmf stream --user-column` ensures.
        Memory beyond the release: the state of the workloads and the noise buffers of C₁ and C₂.

    >>> from fedmf.mechanisms.closed_forms import identity
    >>> from fedmf.mechanisms.joint import UserRange
    >>> from fedmf.moments import FullMatrix, jme
    >>> from fedmf.participation import Participation
    >>> from fedmf.mechanisms.workload import average
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
        first_workload: ToeplitzWorkload,
        second_workload: ToeplitzWorkload | None = None,
        *,
        key: NoiseKey | KeySchedule,
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
        n = mechanism.rounds
        self._first_noise = _noise(key, mechanism.first, second_moment.dimension, Domain.FIRST_MOMENT, n)
        self._second: _Noised | _Squared = _Squared(mechanism, second_moment)
        if mechanism.method.second_noise:
            C, std = mechanism.second_noise
            noise = _noise(key, C, second_moment.size, Domain.SECOND_MOMENT, n)
            self._second = _Noised(second_moment, noise, std)
        #: What draws noise, by its name in a saved state.
        self._noises = {"first_noise": self._first_noise, **self._second.noises}
        self._t = 0
        self._whole = True  # False while a step is under way

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
        block = self.sum_step(x)
        return MomentRelease(block.t, block.first[0], self.second_moment.unpack(block.second[0]))

    def sum_step(self, x: torch.Tensor) -> MomentBlock:
        """`update`, with the second moment packed as `extend` gives it: a block of one step."""
        rows = self._checked(x)
        self._whole = False
        first = rows.sum(0)
        self._first_noise.add_(first, self.mechanism.first_std)
        second = self._second.of_step(rows, first, self._t)
        released = self._running_first.update(first), self._running_second.update(second)
        self._t, self._whole = self._t + 1, True
        return MomentBlock(self._t, released[0][None], released[1][None])

    def extend(self, x: torch.Tensor) -> MomentBlock:
        """Take in one row a step for as many steps as there are rows.

        Args:
            x: shape (steps, d); ‖row‖ ≤ ζ.

        Raises:
            ValueError: as `update`, for any of the rows. Nothing was consumed.

        Guarantees:
            The bits of `update(x[0])`, `update(x[1])`, …, in a fraction of the time for short rows.
        """
        d = self.second_moment.dimension
        if x.ndim != 2 or x.shape[1] != d:
            raise ValueError(f"x (rows) must have shape (steps, {d}); got {tuple(x.shape)}.")
        first, steps = self._bounded(x), len(x)
        self._check_horizon(steps)
        self._whole = False
        private = first.clone()
        self._first_noise.add_rows_(private, self.mechanism.first_std)
        second = self._second.of_rows(first, private, self._t)
        released = (
            self._running_first.extend(private, owned=True),
            self._running_second.extend(second, owned=True),
        )
        self._t, self._whole = self._t + steps, True
        return MomentBlock(self._t - steps + 1, *released)

    def _checked(self, x: torch.Tensor) -> torch.Tensor:
        d = self.second_moment.dimension
        rows = x[None] if x.ndim == 1 else x
        if rows.ndim != 2 or rows.shape[1] != d:
            raise ValueError(f"x (row) must have shape ({d},) or (m, {d}); got {tuple(x.shape)}.")
        self._check_horizon(1)
        self._second.check(len(rows))
        return self._bounded(rows)

    def _check_horizon(self, steps: int) -> None:
        if not self._whole:
            raise RuntimeError(
                f"t (step) must follow a finished step; step {self._t + 1} was interrupted, so noise and "
                "sums no longer belong together. Load a saved state."
            )
        if self._t + steps > self.mechanism.rounds:
            raise ValueError(
                f"t (step) must be at most n (horizon) = {self.mechanism.rounds}; got {self._t + steps}. "
                "Plan a longer stream: noise past the horizon was never calibrated."
            )

    def _bounded(self, x: torch.Tensor) -> torch.Tensor:
        """The rows in float64, those longer than ζ by rounding alone scaled back to it."""
        zeta = self.mechanism.users.norm_bound
        rows = x.detach().to("cpu", torch.float64, copy=True).contiguous()
        if not torch.isfinite(rows).all():
            raise ValueError("x (row) must be finite; got NaN or infinity. No step was consumed.")
        norms = torch.linalg.vector_norm(rows, dim=1)
        longest = float(norms.max()) if len(rows) else 0.0
        if longest > zeta * (1 + _NORM_ROUNDING):
            raise ValueError(f"x (row) must have norm at most zeta = {zeta}; got {longest}. Clip rows first.")
        # A norm may be rounded otherwise among other rows: what is near the bound is measured alone.
        for i in torch.nonzero(norms > zeta * (1 - _NORM_ROUNDING)).flatten().tolist():
            rows[i] *= zeta / torch.linalg.vector_norm(rows[i]).clamp_min(zeta)
        return rows

    def state_dict(self, *, kept_vectors: bool = False) -> dict[str, Any]:
        """Step, workload states (private outputs) and noise positions; never the key.

        Args:
            kept_vectors: include the vectors of the noise, so that continuing needs no replay. They are past
                noise, to be kept as secret as the key.
        """
        return {
            "t": self._t,
            "first": self._running_first.state_dict(),
            "second": self._running_second.state_dict(),
            **{name: noise.state_dict(kept_vectors=kept_vectors) for name, noise in self._noises.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state: the noise continues with the rows it would have used.

        Raises:
            ValueError: the state is of another stream, or of noise from another key.
        """
        parts = [state[name] for name in ("first", "second", "first_noise", "second_noise") if name in state]
        if any(part["t"] != state["t"] for part in parts):
            raise ValueError(
                f"t (state) must be the same in all parts; got {state['t']} and "
                f"{', '.join(str(part['t']) for part in parts)}."
            )
        self._whole = False
        for name, noise in self._noises.items():
            noise.load_state(state[name])
        self._running_first.load_state_dict(state["first"])
        self._running_second.load_state_dict(state["second"])
        self._t, self._whole = int(state["t"]), True


class _Noised:
    """Second moments with noise of their own."""

    def __init__(self, moment: SecondMoment, noise: NoiseStream, std: float) -> None:
        self._moment, self._noise, self._std = moment, noise, std
        self.noises = {"second_noise": noise}

    def check(self, rows: int) -> None:
        """Any number of rows may come in a step."""

    def of_step(self, rows: torch.Tensor, private: torch.Tensor, t: int) -> torch.Tensor:
        """Of the rows of a step."""
        second = self._moment.features(rows)
        self._noise.add_(second, self._std)
        return second

    def of_rows(self, rows: torch.Tensor, private: torch.Tensor, t: int) -> torch.Tensor:
        """Of a row a step."""
        second = self._moment.features_of_each(rows)
        self._noise.add_rows_(second, self._std)
        return second


class _Squared:
    """Second moments of private rows, less their bias if the mechanism says so; no noise of their own."""

    def __init__(self, mechanism: MomentMechanism, moment: SecondMoment) -> None:
        self._moment, self._bias = moment, torch.zeros(mechanism.rounds, dtype=torch.float64)
        self.noises: dict[str, NoiseStream] = {}
        self._debiased = mechanism.debiased and not mechanism.method.second_noise
        if self._debiased:
            variances = mechanism.first.noise_row_variances().copy()
            self._bias = mechanism.first_std**2 * torch.from_numpy(variances)

    def check(self, rows: int) -> None:
        """One row a step, or a refusal."""
        if rows > 1:
            raise ValueError(
                f"x (rows) must be one row a step for post-processing; got {rows}. "
                "The square of a noisy sum is not the sum of squares."
            )

    def of_step(self, rows: torch.Tensor, private: torch.Tensor, t: int) -> torch.Tensor:
        """Of the private row of a step."""
        return self.of_rows(rows, private[None], t)[0]

    def of_rows(self, rows: torch.Tensor, private: torch.Tensor, t: int) -> torch.Tensor:
        """Of the private rows of the steps from t on."""
        features = self._moment.features_of_each(private)
        if not self._debiased:
            return features
        bias = self._bias[t : t + len(private), None]
        return features - bias * self._moment.of_isotropic_noise()


def _noise(
    key: NoiseKey | KeySchedule, C: Factorization, size: int, domain: Domain, rounds: int
) -> NoiseStream:
    return NoiseStream(GaussianSource(key, size, domain), C.recurrence(), rounds)
