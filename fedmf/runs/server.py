"""The private server: the one place where a sum of clipped updates becomes a new model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedmf.clipping import ClippedSum, SumSpec
from fedmf.ledger.packed import pack, unpack
from fedmf.noise import Domain, KeySchedule
from fedmf.noise.units import FINEST
from fedmf.optim import RoundRelease, ServerOptimizer
from fedmf.runs.directory import RunDirectory
from fedmf.runs.noised import NoisyParts, SecondMomentRelease, StatisticRelease
from fedmf.runs.plan import Plan
from fedmf.runs.run import Run
from fedmf.runs.statistics import Statistic
from fedmf.training import Task


class PrivateServer:
    """Adds correlated noise to sums of clipped updates and steps the model, exactly once a round.

    Round t turns the sum G_t of clipped updates into

        u_t = (G_t + ζ·σ·sens(C)·[C⁻¹z]_t) / m,        θ_{t+1} = optimizer(θ_t, u_t),

    with m the planned cohort size, however many users replied. Where a statistic moves ζ it is ζ_t, and u_t
    may be in units of it. Each statistic of the plan is released with noise of its own. An optimizer that
    needs a second moment gets one with noise of its own (`SecondMomentRelease`). The new model, the
    optimizer state and the participations are committed to the ledger in one durable step before
    ``release`` returns.

    Args:
        plan: the calibrated mechanism.
        directory: an open run directory; a run that was stopped continues where its ledger ends.
        initial: θ_0, shape (d,), float32.
        optimizer: the update rule; it sees the noisy mean and the variance of its noise.
        device: where sum, noise and model live.
        checkpoint_every: rounds between states kept.

    Raises:
        ValueError: the checkpoint was written with other noise than this plan and key make.

    Attributes:
        keys: which key makes which row of noise.
        sums: how the updates of the next round are clipped, to ζ_t, and summed.
        lost: rounds lost in an interruption: they were released after the last checkpoint. Their rows
            of noise are never used again.

    Guarantees:
        With a secret key each process draws the rows it releases with a key of its own, from random bits that
        are durable before the first of them, so copies of a directory add independent noise; past rows that
        later ones need are drawn again with the keys that made them. With a public key a resumed run
        continues with the very noise of an uninterrupted one. Checkpoints hold the position of the noise and
        digests that identify it; kept vectors are replayed, since past noise on disk would have to be guarded
        like the key.
    """

    def __init__(
        self,
        plan: Plan,
        directory: RunDirectory,
        initial: Tensor,
        optimizer: ServerOptimizer,
        device: torch.device | str = "cpu",
        checkpoint_every: int = 1,
    ) -> None:
        self.plan, self.directory, self.device = plan, directory, torch.device(device)
        self._optimizer, self._checkpoint_every = optimizer, checkpoint_every
        self._row_variances = plan.mechanism.factorization.noise_row_variances()
        self._t = directory.ledger.released
        kept = directory.ledger.state() if self._t else None
        self.keys = KeySchedule.of_record(directory.key, directory.ledger, self._t)
        if initial.numel() != plan.dimension:
            raise ValueError(
                f"θ_0 must have d = {plan.dimension} entries, as planned; got {initial.numel()}."
            )
        self._noisy = NoisyParts(self.keys, Domain.TRAINING, plan, 0)
        sums = sums_for(optimizer, initial.numel(), plan.privacy.clip_norm, plan.statistics)
        self.sums = sums.in_units(plan.bits_of(0), FINEST if plan.second is None else plan.bits_of(1))
        self._statistics = [StatisticRelease(statistic, plan, self.keys) for statistic in plan.statistics]
        moment = optimizer.second_moment
        self._second = None if moment is None else SecondMomentRelease(plan, moment, self.keys)
        if kept is None:
            self.lost = range(0)
            self._parameters = initial.to(self.device)
            self._state: Mapping[str, Tensor] = self._optimizer.init(self._parameters)
            if checkpoint_every > 1:  # the first rounds are committed without a state
                states = [released.state for released in self._statistics]
                directory.ledger.keep_state(self._packed(self._parameters, self._state, states))
        else:
            state = unpack(kept)
            noise: Mapping[str, Any] = state["noise"]
            self._noisy.check(noise)
            if self._second is not None:
                self._second.noisy.check(noise["second"])
            for released in self._statistics:
                released.load_state(noise[released.statistic.name])
                self._follow(released)
            self.lost = range(int(noise["t"]), self._t)
            self._parameters = state["parameters"].to(self.device)
            self._state = {name: value.to(self.device) for name, value in state["optimizer"].items()}

    @property
    def t(self) -> int:
        """The next round; as many rounds were released."""
        return self._t

    @property
    def parameters(self) -> Tensor:
        """θ_t, shape (d,)."""
        return self._parameters

    @property
    def dimension(self) -> int:
        """d, the number of parameters."""
        return self._parameters.numel()

    @property
    def horizon(self) -> int:
        """n, the number of rounds that can ever be released."""
        return self.plan.participation.rounds

    def statistics(self) -> dict[str, float]:
        """What the statistics of the run released last, by their columns of the metrics table."""
        return {
            column: value
            for released in self._statistics
            for column, value in released.statistic.metrics(released.state).items()
        }

    def _follow(self, released: StatisticRelease) -> None:
        """Clip the updates of the next round as a statistic says."""
        self.sums = self.sums.with_clip_norm(released.statistic.clip_norm(released.state))

    @property
    def clip_norm(self) -> float:
        """ζ_t of the next round."""
        return self.sums.clip_norm

    @property
    def bits(self) -> tuple[int, int]:
        """B and F of the units of sums and of second moments."""
        return self.sums.bits, self.sums.feature_bits

    def new_sum(self) -> ClippedSum:
        """An empty sum for the coming round."""
        return self.sums.empty(self.device)

    def release(self, total: ClippedSum, users: Sequence[str]) -> Tensor:
        """Release round t: add its row of noise, step, commit.

        Every round releases its sum plus noise, even without replies: leaving the noise out would reveal
        that there were none.

        Args:
            total: the sum of the clipped updates of ``users``, made by `new_sum`.
            users: ids of the users in the sum.

        Returns:
            θ_{t+1}, shape (d,). It was committed before this returns.

        Raises:
            ValueError: the sum holds another number of updates than users are listed; nothing is released.
            HorizonExceededError: all rounds are spent.
            ParticipationViolation: a user may not take part in this round; nothing is released.
            LedgerError: the disk failed, now or before: this process releases nothing more. The round counts
                if it is whole in the record when that is opened again.
        """
        self._check(total, users)
        t = self._t
        with self.directory.ledger.right.exercise(f"round {t + 1}"):
            self.keys.open_in(self.directory.ledger)
            parameters, state = self._stepped(total)
            states = [released.after(t, total) for released in self._statistics]
            due = t + 1 == self.horizon or (t + 1) % self._checkpoint_every == 0
            kept = self._packed(parameters, state, states) if due else None
            self.directory.ledger.commit_round(t, users, kept)
            self._t, self._parameters, self._state = t + 1, parameters, state
            for released, after in zip(self._statistics, states, strict=True):
                released.state = after
                self._follow(released)
        return parameters

    def _check(self, total: ClippedSum, users: Sequence[str]) -> None:
        """Refuse what cannot be released before its row of noise is drawn, after which all must end well."""
        if total.users != len(users):
            raise ValueError(
                f"sum must hold exactly the listed users; got {total.users} updates for {len(users)} users."
            )
        self.directory.ledger.check_round(self._t, users)

    def _stepped(self, total: ClippedSum) -> tuple[Tensor, Mapping[str, Tensor]]:
        """θ_{t+1}, and the optimizer's state after its step on sums and noise divided by m.

        The second moment comes first: that of a mean needs the sum without noise, which ends here.
        """
        t = self._t
        second, of_second = (None, None) if self._second is None else self._second.release(t, total)
        noisy = self._noisy.release(t, total.fixed_point, total.unit)
        m = self.plan.cohorts.users_per_round * self.plan.unit(self.clip_norm)
        mean = noisy.mean(m, self._parameters.dtype)
        variance = (self.plan.noise_std_at(self.clip_norm) / m) ** 2 * float(self._row_variances[t])
        release = RoundRelease(mean, variance, second, of_second)
        return self._optimizer.step(t, self._parameters, release, self._state)

    def _packed(
        self, parameters: Tensor, state: Mapping[str, Tensor], states: Sequence[Mapping[str, Any]]
    ) -> bytes:
        """What a checkpoint holds: θ, the optimizer's state, where each stream of noise stands, and the
        statistics after a round. Past noise, which is as secret as the key, is made again from there."""
        noise = self._noisy.stream.state_dict()
        if self._second is not None:
            noise["second"] = self._second.noisy.stream.state_dict()
        for released, after in zip(self._statistics, states, strict=True):
            noise[released.statistic.name] = released.state_dict(after)
        return pack({"parameters": parameters, "optimizer": dict(state), "noise": noise})


def sums_for(
    optimizer: ServerOptimizer, dimension: int, clip_norm: float, statistics: Sequence[Statistic]
) -> SumSpec:
    """What to sum over users: updates; features where the optimizer needs them; statistics."""
    moment = optimizer.second_moment if optimizer.second_form == "per-user" else None
    summed = dict.fromkeys(statistic.summed() for statistic in statistics)
    return SumSpec(dimension, clip_norm, moment, tuple(summed))


def clipped_sums(run: Run, task: Task) -> SumSpec:
    """What the workers of a run clip and sum."""
    optimizer = run.optimizer_source.build(task.model.shapes, run.cohorts.rounds)
    return sums_for(optimizer, task.model.dimension, run.privacy.clip_norm, run.statistics)
