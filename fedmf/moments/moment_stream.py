"""Both moments of a stream, released one step after the other, in memory.

`MomentStream` is the estimator of the theory, without users, ledger or files; `StreamRun` releases
the same bits for rows of a file. `RunningMoments` is the post-processing that both share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch

from fedmf.clipping.clipped_rows import clip_factors
from fedmf.matrices.second_moment import SecondMoment
from fedmf.mechanisms.workload import ToeplitzWorkload
from fedmf.moments.methods import MomentMechanism
from fedmf.moments.running import RunningWorkload
from fedmf.noise.key import NoiseKey
from fedmf.noise.schedule import KeySchedule
from fedmf.release.private_stream import PrivateRows, restore_state, state_of

#: Rows this much over ζ, as float32 rounding makes them, are clipped to ζ instead of rejected.
_NORM_ROUNDING = 1e-6


@dataclass(frozen=True, eq=False)
class NoisyMomentSums:
    """The release of step t: noisy sums of rows and of their second moments, both private.

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
    """The releases of consecutive steps.

    Args:
        t: the first of them, 1 for the first step of the stream.
        first: Y_t, Y_{t+1}, …, shape (steps, d).
        second: S_t, S_{t+1}, … packed, shape (steps, size); `SecondMoment.unpack` shapes one of
            them.
    """

    t: int
    first: torch.Tensor
    second: torch.Tensor


@final
class MomentStream:
    """The running estimator: `release = stream.update(x)`.

    Rows are clipped to integers in units of ζ·2⁻ᴮ, their second moments to integers in a unit of
    their own. Sums of these, with integer noise added, are what leaves; everything else is a
    function of them.

    Args:
        mechanism: strategy matrices and noise levels, by `jme` or a method of `METHODS`; levels for
            real numbers are raised to those for integers (`MomentMechanism.of_integers`).
        second_moment: which second moment; its sensitivity dimension must not exceed the
            mechanism's.
        first_workload: A₁, n rounds.
        second_workload: A₂; None for A₁.
        key: the key of this stream, or the schedule of its keys; never used for another stream.

    Raises:
        ValueError: horizons or dimensions disagree.

    Guarantees:
        The two noises come from different domains of the key: no keystream block serves both.
        Released numbers are functions of `NoiseStream.release_rows` and of public values.
        Rows are rejected before anything changes; a rejected row consumes no step. After a step
        that was interrupted nothing more is released until a saved state is loaded. The caller must
        check participation: the noise is for users within (k, b), which `fedmf stream
        --user-column` ensures. Memory beyond the release: the state of the workloads and the noise
        buffers of C₁ and C₂.

    >>> from fedmf.mechanisms.closed_forms import identity
    >>> from fedmf.matrices.joint_sensitivity import UserRange
    >>> from fedmf.moments import FullMatrix, jme
    >>> from fedmf.participation import Participation
    >>> from fedmf.mechanisms.workload import average
    >>> C, part = identity(100), Participation(100, 1, 100)
    >>> mechanism = jme(C, C, part, UserRange(1.0, 2, "replace-one"), noise_multiplier=0.5)
    >>> stream = MomentStream(mechanism, FullMatrix(2), average(100), key=NoiseKey.from_seed(0))
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
        if second_workload is None:
            second_workload = first_workload
        for name, workload in {"A_1": first_workload, "A_2": second_workload}.items():
            if workload.rounds != mechanism.rounds:
                raise ValueError(
                    f"n (horizon) must be {mechanism.rounds} for {name} too; got {workload.rounds}."
                )
        if not mechanism.rounding.parts:
            mechanism = mechanism.of_integers(second_moment)
        self.mechanism = mechanism
        self.second_moment = second_moment
        self.first_workload = first_workload
        self.second_workload = second_workload
        self._rows = PrivateRows(mechanism.rows(second_moment), key)
        self._estimates = RunningMoments(mechanism, second_moment, first_workload, second_workload)
        self._t = 0
        self._whole = True  # False while a step is under way

    @property
    def t(self) -> int:
        """Steps released so far."""
        return self._t

    def update(self, x: torch.Tensor) -> NoisyMomentSums:
        """Take in the rows of one step and release both moments.

        Args:
            x: shape (d,), or (m, d) for m users in one step (their moments are summed); ‖row‖ ≤ ζ.

        Raises:
            ValueError: a shape, a NaN or infinity, a row longer than ζ, or the horizon is reached.
                Nothing was consumed.
        """
        if x.ndim == 1:
            x = x[None]
        self._check_bounded(x)
        block = self.release_sum(x)
        return NoisyMomentSums(block.t, block.first[0], self.second_moment.unpack(block.second[0]))

    def extend(self, x: torch.Tensor) -> MomentBlock:
        """Take in one row a step for as many steps as there are rows.

        Args:
            x: shape (steps, d); ‖row‖ ≤ ζ.

        Raises:
            ValueError: as `update`, for any of the rows. Nothing was consumed.

        Guarantees:
            The bits of `update(x[0])`, `update(x[1])`, …, in a fraction of the time for short rows.
        """
        self._check_bounded(x)
        return self.release_each(x)

    def release_sum(self, x: torch.Tensor) -> MomentBlock:
        """Take in the rows of one step, of any values: long ones are clipped, NaN counts as zeros.

        Args:
            x: shape (m, d).

        Returns:
            A block of one step.

        Raises:
            ValueError: a shape, or the horizon is reached. Nothing was consumed.
        """
        return self._release(x, 1)

    def release_each(self, x: torch.Tensor) -> MomentBlock:
        """Take in one row a step, as `release_sum` does.

        Args:
            x: shape (steps, d).

        Raises:
            ValueError: a shape, or the horizon is reached. Nothing was consumed.
        """
        return self._release(x, len(x))

    def _release(self, x: torch.Tensor, steps: int) -> MomentBlock:
        self._check_room(x, steps)
        sums = self._rows.clip_and_add(x, steps)
        self._whole = False
        noisy = self._rows.add_noise(sums)
        first, second = self._estimates.extend(noisy)
        self._t += steps
        self._whole = True
        return MomentBlock(self._t - steps + 1, first, second)

    def _check_room(self, x: torch.Tensor, steps: int) -> None:
        d = self.second_moment.dimension
        if x.ndim != 2 or x.shape[1] != d:
            raise ValueError(f"x (rows) must have shape (rows, {d}); got {tuple(x.shape)}.")
        if not self._whole:
            raise RuntimeError(
                f"t (step) must follow a finished step; step {self._t + 1} was interrupted, so"
                " noise and sums no longer match. Load a saved state."
            )
        if self._t + steps > self.mechanism.rounds:
            raise ValueError(
                f"t (step) must be at most n (horizon) = {self.mechanism.rounds}; got"
                f" {self._t + steps}. Plan a longer stream: noise past the horizon was never"
                " calibrated."
            )
        if len(x) > max(steps, 1) and not self.mechanism.method.second_noise:
            raise ValueError(
                f"x (rows) must be one row a step for post-processing; got {len(x)}. "
                "The square of a noisy sum is not the sum of squares."
            )

    def _check_bounded(self, x: torch.Tensor) -> None:
        """Reject rows that are not finite, or longer than ζ by more than rounding."""
        zeta = self.mechanism.users.norm_bound
        if x.ndim != 2:
            return  # `_check_room` rejects it
        rows = x.detach().to("cpu", torch.float64)
        if not torch.isfinite(rows).all():
            raise ValueError("x (row) must be finite; got NaN or infinity. No step was consumed.")
        factors = clip_factors(rows.numpy(), zeta)
        longest = zeta / float(factors.min(initial=1.0))
        if longest > zeta * (1 + _NORM_ROUNDING):
            raise ValueError(
                f"x (row) must have norm at most zeta = {zeta}; got {longest}. Clip rows first."
            )

    def state_dict(self, *, with_vectors: bool = False) -> dict[str, Any]:
        """Step, workload states (private outputs) and noise positions; never the key.

        Args:
            with_vectors: include the vectors of the noise, so that continuing needs no replay. They
                are past noise, to be kept as secret as the key.
        """
        return state_of(self._rows, self._estimates, with_vectors)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state: the noise continues with the rows it would have used.

        Raises:
            ValueError: the state is of another stream, or of noise from another key.
        """
        self._whole = False
        self._t = restore_state(self._rows, self._estimates, state)
        self._whole = True


@final
class RunningMoments:
    """Post-processing of the noisy sums of a stream: both workloads, applied step by step.

    A method without noise for second moments squares the noisy sums, and subtracts the bias of
    these squares if it is debiased.

    Args:
        mechanism: strategy matrices and noise levels.
        second_moment: which second moment.
        first_workload: A₁.
        second_workload: A₂.
    """

    def __init__(
        self,
        mechanism: MomentMechanism,
        second_moment: SecondMoment,
        first_workload: ToeplitzWorkload,
        second_workload: ToeplitzWorkload,
    ) -> None:
        self._moment = second_moment
        self._first = RunningWorkload(first_workload, second_moment.dimension)
        self._second = RunningWorkload(second_workload, second_moment.size)
        self._bias = torch.zeros(mechanism.rounds, dtype=torch.float64)
        self._debiased = mechanism.debiased and not mechanism.method.second_noise
        if self._debiased:
            variances = mechanism.first.noise_row_variances().copy()
            self._bias = mechanism.first_std**2 * torch.from_numpy(variances)

    def extend(self, noisy: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Y_t and the packed S_t of some steps, shapes (steps, d) and (steps, size).

        Args:
            noisy: sums of rows with noise, shape (steps, d), and of second moments where these have
                noise of their own, shape (steps, size); changed.
        """
        if len(noisy) == 1:
            noisy = [noisy[0], self._squared(noisy[0])]
        first, second = noisy
        return self._first.extend(first, owned=True), self._second.extend(second, owned=True)

    def _squared(self, noisy: torch.Tensor) -> torch.Tensor:
        features = self._moment.features_of_each(noisy)
        if not self._debiased:
            return features
        t = self._first.t
        bias = self._bias[t : t + len(noisy), None]
        return features - bias * self._moment.of_isotropic_noise()

    def state_dict(self) -> dict[str, Any]:
        """States of the workloads, which are private outputs."""
        return {"first": self._first.state_dict(), "second": self._second.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""
        self._first.load_state_dict(state["first"])
        self._second.load_state_dict(state["second"])
