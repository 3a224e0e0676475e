"""The private server: the one place where a sum of clipped updates becomes a new model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedmf.accounting import Clipping, NormCourse, Plan
from fedmf.noise import BlockedNoise, Domain, GaussianSource, KeySchedule, NoiseStorage
from fedmf.optim import RoundRelease, ServerOptimizer
from fedmf.runs.clip_norm import QuantileRelease
from fedmf.runs.directory import RunDirectory
from fedmf.runs.run import Run
from fedmf.runs.second_release import SecondMomentRelease
from fedmf.training import ClippedSums, FixedPointSum, IsolatedTrainer, LocalTrainer, Task, Trainer

__all__ = ["BudgetExhaustedError", "PrivateServer", "clipped_sums", "local_trainer", "sums_for"]


class BudgetExhaustedError(RuntimeError):
    """The round would take a user that the contract allows past max_epsilon."""


class PrivateServer:
    """Adds correlated noise to sums of clipped updates and steps the model, exactly once a round.

    Round t turns the sum G_t of clipped updates into

        u_t = (G_t + ζ·σ·sens(C)·[C⁻¹z]_t) / m,        θ_{t+1} = optimizer(θ_t, u_t),

    with m the planned cohort size, however many users replied. Where ζ adapts (`QuantileRelease`) it is ζ_t,
    and u_t may be in units of it. An optimizer that needs a second moment gets one with noise of its own
    (`SecondMomentRelease`). The new model, the optimizer state and the
    participations are committed to the ledger in one durable step before ``release`` returns.

    Args:
        plan: the calibrated mechanism.
        directory: an open run directory; a run that was stopped continues where its ledger ends.
        initial: θ_0, shape (d,), float32.
        optimizer: the update rule; it sees the noisy mean and the variance of its noise.
        device: where sum, noise and model live.
        checkpoint_every: rounds between states kept.
        storage: what the noise of the sums keeps between rounds, and in which precision.

    Raises:
        ValueError: the checkpoint was written with other noise than this plan and key make, or the plan has
            no noise for the second moment that the optimizer needs.

    Attributes:
        t: the next round; as many rounds were released.
        keys: which key makes which row of noise.
        parameters: θ_t, shape (d,).
        sums: how the updates of the next round are clipped, to ζ_t, and summed.
        lost: rounds whose work an interruption cost: they were released after the last checkpoint. Their rows
            of noise are never used again.

    Guarantees:
        With a secret key each process draws the rows it releases with a key of its own, from random bits that
        are durable before the first of them, so copies of a directory add independent noise; past rows that
        later ones need are drawn again with the keys that made them. With a public key a resumed run goes on
        with the very noise of an uninterrupted one. Checkpoints hold the position of the noise and digests
        that identify it; kept vectors are replayed, since past noise on disk would have to be guarded like
        the key.
    """

    def __init__(
        self,
        plan: Plan,
        directory: RunDirectory,
        initial: Tensor,
        optimizer: ServerOptimizer,
        device: torch.device | str = "cpu",
        checkpoint_every: int = 1,
        storage: NoiseStorage | None = None,
    ) -> None:
        self.plan, self.directory, self.device = plan, directory, torch.device(device)
        self._optimizer, self._checkpoint_every = optimizer, checkpoint_every
        self._row_variances = plan.mechanism.factorization.noise_row_variances()
        restored = directory.restore()
        self.t = 0 if restored is None else restored[0]
        self.keys = KeySchedule.of_record(directory.key, directory.ledger, self.t)
        self._noise = self._noise_stream(initial.numel(), storage or NoiseStorage())
        self.sums = sums_for(optimizer, initial.numel(), plan.privacy.clip_norm, plan.clipping)
        self._quantile = QuantileRelease(plan, self.keys) if plan.clipping.adapts else None
        moment = optimizer.second_moment
        self._second = (
            None
            if moment is None
            else SecondMomentRelease(plan, moment, optimizer.second_form, self.keys, self.device)
        )
        if restored is None:
            self.lost = range(0)
            self.parameters = initial.to(self.device)
            self._state = self._optimizer.init(self.parameters)
            if checkpoint_every > 1:
                directory.keep_initial(self.parameters, self._state, self._noise_state(self.course))
        else:
            _, parameters, state, noise = restored
            self._check_noise(noise)
            if self._quantile is not None:
                self._quantile.load_state(noise["clipping"])
                self.sums = self.sums.at(self._quantile.course.norm)
            self.lost = self._lost_rounds(noise)
            self.parameters = parameters.to(self.device)
            self._state = {name: value.to(self.device) for name, value in state.items()}

    def _noise_stream(self, dimension: int, storage: NoiseStorage) -> BlockedNoise:
        source = GaussianSource(self.keys, dimension, Domain.TRAINING)
        inverse = self.plan.mechanism.factorization.recurrence()
        return BlockedNoise(
            source,
            inverse,
            self.plan.participation.rounds,
            storage=storage,
            inflation=self.plan.inflation,
            device=self.device,
        )

    def _lost_rounds(self, saved: Mapping[str, Any]) -> range:
        """The rounds that were released after the state at hand was kept: spent, and not in the model."""
        first, every = int(saved["t"]), self._checkpoint_every
        if not self.t - every < first <= self.t:
            expected = f"{self.t}" if every == 1 else f"in {max(0, self.t - every + 1)}..{self.t}"
            raise ValueError(
                f"t (round of the saved noise) must be {expected}, as {self.t} rounds were released; "
                f"got {first}. Restore checkpoint and ledger from the same copy."
            )
        return range(first, self.t)

    def _check_noise(self, saved: Mapping[str, Any]) -> None:
        """Refuse to go on with other noise than the saved; without noise any key will do."""
        if self.plan.noise_std > 0:
            self._noise.load_state(saved)
            if self._second is not None:
                self._second.load_state(saved.get("second", {}), int(saved["t"]))

    @property
    def dimension(self) -> int:
        """d, the number of parameters."""
        return self.parameters.numel()

    @property
    def horizon(self) -> int:
        """n, the number of rounds that can ever be released."""
        return self.plan.participation.rounds

    @property
    def course(self) -> NormCourse | None:
        """What ζ did so far, where it adapts."""
        return None if self._quantile is None else self._quantile.course

    @property
    def clip_norm(self) -> float:
        """ζ_t of the next round."""
        return self.sums.clip_norm

    def new_sum(self) -> FixedPointSum:
        """An empty sum for the coming round."""
        return self.sums.empty(self.device)

    def release(self, total: FixedPointSum, users: Sequence[str]) -> Tensor:
        """Release round t: add its row of noise, step, commit.

        Every round releases its sum plus noise, also one in which nobody replied: leaving the noise out
        would tell that nobody did.

        Args:
            total: the sum of the clipped updates of ``users``, made by `new_sum`.
            users: ids of the users in the sum.

        Returns:
            θ_{t+1}, shape (d,). It was committed before this returns.

        Raises:
            ValueError: the sum holds another number of updates than users are listed; nothing is released.
            BudgetExhaustedError: the round would exceed max_epsilon; nothing is released.
            HorizonExceededError: all rounds are spent.
            ParticipationViolation: a user may not take part in this round; nothing is released.
            LedgerError: the disk failed; nothing is released.
        """
        if total.users != len(users):
            raise ValueError(
                f"sum must hold exactly the listed users; got {total.users} updates for {len(users)} users."
            )
        if self.plan.allowed_rounds <= self.t < self.plan.participation.rounds:
            raise BudgetExhaustedError(
                f"t (round) must be below {self.plan.allowed_rounds} to keep max_epsilon; got {self.t}. "
                "Nothing was released."
            )
        self.keys.open_in(self.directory.ledger)
        released = self._release_of(total)
        parameters, state = self._optimizer.step(self.t, self.parameters, released, self._state)
        course = None if self._quantile is None else self._quantile.after(self.t, total)
        self._commit(users, parameters, state, course)
        self.t, self.parameters, self._state = self.t + 1, parameters, state
        if self._quantile is not None and course is not None:
            self._quantile.course, self.sums = course, self.sums.at(course.norm)
        return parameters

    def _release_of(self, total: FixedPointSum) -> RoundRelease:
        """What the optimizer sees of round t: sums and noise, divided by m, in the unit that is asked for."""
        unit = self.plan.clipping.unit(self.clip_norm)
        m, std = self.plan.cohorts.size * unit, self.plan.noise_std_at(self.clip_norm)
        mean = torch.empty_like(self.parameters)
        self._noise.seek(self.t)
        for part, noise in self._noise.blocks():
            noisy = total.part(part)
            if std > 0:
                noise.add_(noisy, std)
            else:
                noise.skip()
            mean[part] = noisy.div_(m)
        variance = (std * self.plan.inflation / m) ** 2 * float(self._row_variances[self.t])
        second = (None, None) if self._second is None else self._second.release(self.t, total)
        return RoundRelease(mean, variance, *second)

    def _noise_state(self, course: NormCourse | None = None) -> dict[str, Any]:
        """Where each stream of noise stands, and ζ after a round."""
        state = self._noise.state_dict()
        if self._second is not None:
            state["second"] = self._second.state_dict()
        if self._quantile is not None and course is not None:
            state["clipping"] = self._quantile.state_dict(course)
        return state

    def _commit(
        self,
        users: Sequence[str],
        parameters: Tensor,
        state: Mapping[str, Tensor],
        course: NormCourse | None,
    ) -> None:
        """Make the round final; its state is kept if it is due or nothing may follow."""
        released = self.t + 1
        last = released in (self.plan.allowed_rounds, self.horizon)
        if last or released % self._checkpoint_every == 0:
            self.directory.commit(self.t, users, parameters, state, self._noise_state(course))
        else:
            self.directory.commit_row(self.t, users)


def sums_for(optimizer: ServerOptimizer, dimension: int, clip_norm: float, clipping: Clipping) -> ClippedSums:
    """What to sum over users: updates; features where the optimizer needs them, signs where ζ does."""
    summed = optimizer.second_form == "per-user"
    moment = optimizer.second_moment if summed else None
    return ClippedSums(dimension, clip_norm, moment, clipping.adapts)


def clipped_sums(run: Run, task: Task) -> ClippedSums:
    """What the workers of a run clip and sum."""
    optimizer = run.optimizer_source.build(task.model.shapes, run.cohorts.rounds)
    return sums_for(optimizer, task.model.dimension, run.privacy.clip_norm, run.clipping)


def local_trainer(run: Run, task: Task) -> Trainer:
    """What trains the users of a run, in this process or in others.

    Args:
        run: says how, and within which limits.
        task: built from it, on the device where users are trained.
    """
    limits = run.execution.user_limits
    if run.execution.isolation == "process":
        return IsolatedTrainer(task, run.task_source.build, run.local, limits)
    return LocalTrainer(task, run.local, limits=limits)
