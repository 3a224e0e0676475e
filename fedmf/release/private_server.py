"""The private server: the only place where a sum of clipped updates becomes a new model.

A round is checks, then noise, then the step, then the commit (`PrivateServer.release`). The session
of a run passes sums and users to it; only afterwards does anything else see the model.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fedmf.clipping.clipped_sum import ClippedSum, SumSpec
from fedmf.errors import LedgerError
from fedmf.ledger.ledger import INLINE, Ledger
from fedmf.ledger.packed import pack, unpack
from fedmf.ledger.released_integers import DIGESTS, ReleasedIntegers, records_of
from fedmf.noise.key import Domain, NoiseKey
from fedmf.noise.schedule import KeySchedule
from fedmf.noise.units import FINEST
from fedmf.release.checkpoints import CheckpointInterval
from fedmf.release.noisy_sum import NoisyParts, NoisySecondMoment, NoisyStatistic, NoisySum
from fedmf.release.plan import Plan
from fedmf.release.round_release import RoundRelease, ServerOptimizer
from fedmf.release.statistics import ReleasedStatistic


@dataclass(frozen=True, eq=False)
class ServerState:
    """The server after t rounds; a function of their releases.

    Args:
        t: number of rounds released.
        parameters: θ_t, shape (d,).
        optimizer: state of the update rule.
        statistics: state of each statistic, by name.
        program: values that the program around the server keeps with each commit.
    """

    t: int
    parameters: Tensor
    optimizer: Mapping[str, Tensor]
    statistics: Mapping[str, Mapping[str, Any]]
    program: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class NoisedRound:
    """All that a round releases.

    Args:
        release: the input of the update rule.
        statistics: (sum + noise)/m of each statistic, by name.
        integers: o of every part of the plan, from which the other two follow.
    """

    release: RoundRelease
    statistics: Mapping[str, float]
    integers: Sequence[Tensor]


class PrivateServer:
    """Adds correlated noise to sums of clipped updates and steps the model, exactly once a round.

    Round t turns the sum G_t of clipped updates into

        u_t = (G_t + ζ·σ·sens(C)·[C⁻¹z]_t) / m,        θ_{t+1} = optimizer(θ_t, u_t),

    with m the planned cohort size, however many users replied. Where a statistic sets ζ it is ζ_t,
    and u_t may be in units of it. Each statistic of the plan, and the second moment of an optimizer
    that needs one, is released with noise of its own. The new model, the optimizer state and the
    participations are committed to the ledger in one durable step before ``release`` returns.

    Args:
        plan: the calibrated mechanism.
        ledger: of the run, open for writing.
        key: of the noise of the run.
        initial: θ_0, shape (d,), float32.
        optimizer: the update rule; it sees the noisy mean and the variance of its noise.
        device: of sum, noise and model.
        checkpoint_every: rounds between recorded states; 1 if released integers are written; 0 to
            choose them by `CheckpointInterval`.
        released_integers: file of released integers, written after every commit; None for none.

    Raises:
        LedgerError: the plan states less sensitivity or noise than it needs.
        ValueError: θ_0 or the second moment of the optimizer is not as planned.

    Attributes:
        sums: description of the sum of the next round, with ζ_t.
        lost: rounds lost in an interruption: they were released after the last checkpoint. Their
            rows of noise are never used again.
        program_state: called after each step; its values, which `pack` must be able to write, are
            committed with the round, and `program` has them again after `restore`.

    Guarantees:
        With a secret key each process draws the rows it releases with a key of its own, from random
        bits that are durable before the first of them, so copies of a directory add independent
        noise; past rows that later ones need are drawn again with the keys that made them. With a
        public key a resumed run continues with the same noise as an uninterrupted one. Checkpoints
        hold the position of the noise and digests that identify it, and no past noise, which would
        have to be guarded like the key: it is computed again.
    """

    def __init__(
        self,
        plan: Plan,
        ledger: Ledger,
        key: NoiseKey,
        initial: Tensor,
        optimizer: ServerOptimizer,
        device: torch.device | str = "cpu",
        checkpoint_every: int = 1,
        released_integers: ReleasedIntegers | None = None,
    ) -> None:
        plan.check_noise()
        if initial.numel() != plan.dimension:
            raise ValueError(
                f"θ_0 must have d = {plan.dimension} entries, as planned; got {initial.numel()}."
            )
        _check_second_moment(plan, optimizer)
        self.plan = plan
        self.ledger = ledger
        self.device = torch.device(device)
        self.lost = range(0)
        self.program_state: Callable[[], Mapping[str, Any]] = dict
        self._optimizer = optimizer
        self._interval = CheckpointInterval(checkpoint_every, INLINE)
        self._released_integers = released_integers
        self._row_variances = plan.mechanism.factorization.noise_row_variances()
        bits = plan.bits_of(0)
        feature_bits = FINEST
        if plan.second is not None:
            feature_bits = plan.bits_of(1)
        sums = sums_for(optimizer, plan.dimension, plan.clip_norm, plan.statistics)
        self.sums = sums.in_units(bits, feature_bits)
        self.keys = KeySchedule.of_record(key, ledger, ledger.released)
        self._updates = NoisyParts(self.keys, Domain.TRAINING, plan.parts[0], plan.noise_of(0))
        self._second: NoisySecondMoment | None = None
        if optimizer.second_moment is not None:
            self._second = NoisySecondMoment(plan, optimizer.second_moment, self.keys)
        self._statistics = [NoisyStatistic(each, plan, self.keys) for each in plan.statistics]
        parameters = initial.to(self.device)
        statistics = {each.name: each.begin(plan.clip_norm) for each in plan.statistics}
        self._state = ServerState(0, parameters, optimizer.init(parameters), statistics)
        # The last round after which the ledger needs no further state of this process.
        self._durable_until = ledger.released

    def restore(self) -> None:
        """Continue where the ledger ends; to be called before the first round of a process.

        Raises:
            LedgerError: the ledger holds rounds and no state, or released integers are missing.
            ValueError: the checkpoint was written with other noise than this plan and key make.
        """
        released = self.ledger.released
        last = b""
        if released:
            content = self.ledger.state()
            if content is None:
                raise LedgerError(
                    f"the ledger must hold a state after {released} rounds; it holds none."
                )
            checkpoint = unpack(content)
            self._load(checkpoint)
            if self._released_integers is not None:
                last = records_of(checkpoint["released"])
            self.lost = range(self._state.t, released)
            self._state = replace(self._state, t=released)
            self._set_clip_norm()
        elif self._interval.fixed != 1:  # the first rounds may be committed without a state
            self.ledger.keep_state(self._packed(self._state))
        if self._released_integers is not None:
            digests = self.ledger.about.get(DIGESTS, {})
            self._released_integers.restore(released, last, digests)

    def keep_state(self) -> None:
        """Make the state after the last round durable if its commit did not, before a stop.

        Raises:
            LedgerError: a release failed before, or the disk fails now.
        """
        if self._durable_until < self.t:
            self.ledger.keep_state(self._packed(self._state))
            self._durable_until = self.t

    def _load(self, checkpoint: Mapping[str, Any]) -> None:
        """Take the state of a checkpoint, after a check that its noise is that of this server."""
        noise: Mapping[str, Any] = checkpoint["noise"]
        self._updates.check(noise)
        if self._second is not None:
            self._second.noisy.check(noise["second"])
        for each in self._statistics:
            each.noisy.check(noise[each.name]["noise"])
        optimizer = dict[str, Tensor]()
        for name, value in checkpoint["optimizer"].items():
            optimizer[name] = value.to(self.device)
        self._state = ServerState(
            t=int(noise["t"]),
            parameters=checkpoint["parameters"].to(self.device),
            optimizer=optimizer,
            statistics={each.name: noise[each.name]["state"] for each in self._statistics},
            program=checkpoint.get("program", {}),
        )

    @property
    def t(self) -> int:
        """The next round, which is the number of rounds released."""
        return self._state.t

    @property
    def parameters(self) -> Tensor:
        """θ_t, shape (d,)."""
        return self._state.parameters

    @property
    def dimension(self) -> int:
        """d, the number of parameters."""
        return self.plan.dimension

    @property
    def horizon(self) -> int:
        """n, the number of rounds that can ever be released."""
        return self.plan.participation.rounds

    @property
    def statistics(self) -> Mapping[str, Mapping[str, Any]]:
        """The state of each statistic, by name."""
        return self._state.statistics

    def statistic_std(self, statistic: ReleasedStatistic) -> float:
        """Return the standard deviation of the noise of the last released mean of a statistic."""
        std = self.plan.relative_noise_std * statistic.factor * statistic.summed().bound
        variance = float(self._row_variances[max(self.t - 1, 0)])
        return std * math.sqrt(variance) / self.plan.users_per_round

    @property
    def program(self) -> Mapping[str, Any]:
        """The values of `program_state` in the last state; empty before the first round."""
        return self._state.program

    @property
    def clip_norm(self) -> float:
        """ζ_t of the next round."""
        return self.sums.clip_norm

    @property
    def bits(self) -> tuple[int, int]:
        """B and F of the units of sums and of second moments."""
        return self.sums.bits, self.sums.feature_bits

    def new_sum(self) -> ClippedSum:
        """Return an empty sum for the next round."""
        return self.sums.empty(self.device)

    def release(self, total: ClippedSum, users: Sequence[str]) -> Tensor:
        """Release round t: add its row of noise, step, commit.

        Every round releases its sum plus noise, even without replies: leaving the noise out would
        reveal that there were none.

        Args:
            total: the sum of the clipped updates of ``users``, from `new_sum`.
            users: ids of the users in the sum.

        Returns:
            θ_{t+1}, shape (d,). It was committed before this returns.

        Raises:
            ValueError: the sum holds another number of updates than users are listed, or is in
                other units than the plan's; nothing is released.
            HorizonExceededError: all rounds are spent.
            ParticipationViolation: a user may not take part in this round; nothing is released.
            LedgerError: a release failed, now or before, so that this process releases nothing
                more. The round counts if it is whole in the record when that is opened again.
        """
        self._check(total, users)
        with self.ledger.guard.releasing(f"round {self.t + 1}"):
            self.keys.ensure_opened(self.ledger)
            noised = self._add_noise(total)
            after = self._step(noised)
            self._commit(after, users, noised.integers)
        return self.parameters

    def _check(self, total: ClippedSum, users: Sequence[str]) -> None:
        """Reject a sum before its row of noise is drawn, after which an error ends all releases."""
        if total.users != len(users):
            raise ValueError(
                f"sum must hold exactly the listed users; got {total.users} updates for"
                f" {len(users)} users."
            )
        if total.units != self.sums.units:
            raise ValueError(
                f"sum must be in the units of this round, {self.sums.units}; got {total.units}. Its"
                " noise would be too small: make it with new_sum()."
            )
        self.ledger.check_round(self.t, users)

    def _add_noise(self, total: ClippedSum) -> NoisedRound:
        """Add noise to all parts of a round, and divide them by m.

        The second moment comes first: that of a mean needs the sum without noise, and noise is
        added in place.
        """
        t = self.t
        users = self.plan.users_per_round
        second = None
        second_variance = None
        parts = list[NoisySum]()
        if self._second is not None:
            noisy, second_variance = self._second.release(t, total)
            second = noisy.mean(users)
            parts.append(noisy)
        noisy = self._updates.release(t, total.fixed_point, total.unit)
        parts.insert(0, noisy)
        m = users * self.plan.mean_unit(self.clip_norm)
        mean = noisy.mean(m, self.parameters.dtype)
        variance = (self.plan.noise_std_at(self.clip_norm) / m) ** 2 * float(self._row_variances[t])
        release = RoundRelease(mean, variance, second, second_variance)
        statistics = dict[str, float]()
        for each in self._statistics:
            noisy = each.release(t, total)
            statistics[each.name] = float(noisy.mean(users))
            parts.append(noisy)
        return NoisedRound(release, statistics, [part.integers for part in parts])

    def _step(self, noised: NoisedRound) -> ServerState:
        """Return the server after the round, a function of its releases."""
        state = self._state
        parameters, optimizer = self._optimizer.step(
            state.t, state.parameters, noised.release, state.optimizer
        )
        statistics = dict[str, Mapping[str, Any]]()
        for each in self.plan.statistics:
            mean = noised.statistics[each.name]
            statistics[each.name] = each.after(state.t, mean, state.statistics[each.name])
        program = self.program_state()
        return ServerState(state.t + 1, parameters, optimizer, statistics, program)

    def _commit(self, after: ServerState, users: Sequence[str], integers: Sequence[Tensor]) -> None:
        """Make the round final, with a checkpoint if one is due; then write its integers."""
        began = time.perf_counter()
        packed = None
        since = after.t - self._durable_until
        if after.t == self.horizon or self._interval.due(after.t, since):
            packed = self._packed(after, integers)
        about = dict[str, Any]()
        records = b""
        if self._released_integers is not None:
            records = records_of(integers)
            about[DIGESTS] = self._released_integers.digests(records)
        self.ledger.commit_round(self.t, users, packed, about)
        self._interval.note(time.perf_counter() - began, len(packed or b""))
        self._state = after
        if packed is not None:
            self._durable_until = after.t
        self._set_clip_norm()
        if self._released_integers is not None:
            self._released_integers.append(records)

    def _set_clip_norm(self) -> None:
        """Clip the updates of the next round to the norm that a statistic sets, if one does."""
        for each in self.plan.statistics:
            clip_norm = each.clip_norm(self._state.statistics[each.name])
            self.sums = self.sums.with_clip_norm(clip_norm)

    def _packed(self, state: ServerState, integers: Sequence[Tensor] = ()) -> bytes:
        """Return a checkpoint after a round.

        It holds θ, the states of the optimizer and the statistics, and the positions of the streams
        of noise. Past noise, which is as secret as the key, is computed again from there. If
        released integers are written, it also holds those of the round.
        """
        noise = self._updates.stream.state_dict()
        if self._second is not None:
            noise["second"] = self._second.noisy.stream.state_dict()
        for each in self._statistics:
            noise[each.name] = {
                "state": dict(state.statistics[each.name]),
                "noise": each.noisy.stream.state_dict(),
            }
        checkpoint = {
            "parameters": state.parameters,
            "optimizer": dict(state.optimizer),
            "noise": noise,
        }
        if state.program:
            checkpoint["program"] = dict(state.program)
        if self._released_integers is not None:
            checkpoint["released"] = list(integers)
        return pack(checkpoint)


def _check_second_moment(plan: Plan, optimizer: ServerOptimizer) -> None:
    """Reject an optimizer that needs another second moment than the noise was calibrated for."""
    needed = None
    moment = optimizer.second_moment
    if moment is not None:
        needed = (optimizer.second_form, moment.described, moment.size)
    planned = None
    if plan.second is not None:
        planned = (plan.second.form, plan.second.moment, plan.second.features)
    if needed != planned:
        raise ValueError(
            f"second moment of the optimizer must be {planned}, as planned; got {needed}."
        )


def sums_for(
    optimizer: ServerOptimizer,
    dimension: int,
    clip_norm: float,
    statistics: Sequence[ReleasedStatistic],
) -> SumSpec:
    """Describe the sum over users: updates, features if the optimizer needs them, statistics."""
    moment = None
    if optimizer.second_form == "per-user":
        moment = optimizer.second_moment
    scalars = dict.fromkeys(statistic.summed() for statistic in statistics)
    return SumSpec(dimension, clip_norm, moment, tuple(scalars))
