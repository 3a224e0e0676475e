"""The noise plan of a run: C, its sensitivity, the units of its integers, σ, and the guarantee.

`Plan.calibrated` computes the noise that (ε, δ) needs. `Plan.allowed` computes it again from the
recorded plan before a statement is made. `PrivateServer` draws noise by a plan.
"""

from __future__ import annotations

import dataclasses
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Self

from fedmf.accounting.gaussian import (
    adjacency_factor,
    certified_epsilon,
    certified_sigma,
    gaussian_epsilon,
)
from fedmf.accounting.integer_noise import ideal_budget
from fedmf.accounting.queries import SecondStream, SumQuery, query_of
from fedmf.errors import LedgerError
from fedmf.matrices.factorization import BuiltMechanism, factorization_from_dict
from fedmf.matrices.sensitivity import Sensitivity
from fedmf.noise.units import FINEST, IntegerNoise, Part, Rounding, calibrated, rounding_of
from fedmf.noise.units import NOTHING as NO_ROUNDING
from fedmf.participation import Adjacency, Participation
from fedmf.release.statistics import ReleasedStatistic, check_statistics, update_factor

if TYPE_CHECKING:
    from fedmf.accounting.sampling import CohortLaw, RunAmplification

#: Relative, of sensitivities that are summed in different orders.
_TOLERANCE: Final = 1e-9
#: Rare failures of integer noise add far less to δ, and less than the accountants' margin.
_LEAST_DELTA: Final = 1e-40

_NO_SENSITIVITY: Final = Sensitivity(0.0, "exact", "")


@dataclass(frozen=True)
class AllowedEpsilon:
    """ε of the worst user that a contract allows, after T rounds of a plan; infinite without noise.

    Args:
        epsilon: at the full horizon; with amplification only while the cohorts stay secret.
        epsilon_known_cohorts: at the full horizon, against an observer who knows in which rounds
            each user took part.
        epsilon_so_far: of the rounds released; infinite if these are all, when `epsilon` says it.
        known_so_far: of the rounds released, against such an observer.
    """

    epsilon: float
    epsilon_known_cohorts: float
    epsilon_so_far: float
    known_so_far: float


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """A mechanism with its noise, which is calibrated once and recorded.

    With τ the standard deviation of the z that are streamed through C⁻¹ into the sum, per unit clip
    norm of a user's whole vector, and W what rounding to integers costs, 1/σ = μ =
    (sensitivity·(adjacency factor) + W)/τ; those of a second stream have τ over √λ.

    Args:
        epsilon: ε of the whole run; None for a release without noise.
        delta: δ.
        adjacency: "zero-out" or "replace-one".
        clip_norm: ζ; that of round 0 if a statistic sets it.
        users: N, the number of users that can take part.
        users_per_round: m, the planned cohort size, by which sums are divided.
        participation: the (n, k, b) contract.
        mechanism: name, parameters and factorization C.
        dimension: d, the number of trained parameters.
        second: the stream of second moments; None where sums alone are released.
        statistics: statistics that are released under the same ε.
        normalized: whether means are released in units of the clip norm of their round.
        unit: the unit of protection: "user" or "example".
        sensitivity: of `release` under the contract, exact or an upper bound, per unit clip norm
            and unit of `adjacency_factor`; sens_{k,b}(C) of a single stream.
        noise_multiplier: σ ≥ 0 for sensitivity 1; 0 in a run without privacy.
        relative_noise_std: τ of a user's whole vector (a·x/ζ, b₁·s₁/c₁, …); that of updates is
            `noise_std`.
        rounding: the units of `parts`, and W.
        amplification: how the noise was calibrated for secret cohorts; None without such a claim.

    The last five follow from the others; `calibrated` computes them.
    """

    epsilon: float | None
    delta: float
    adjacency: Adjacency
    clip_norm: float
    users: int
    users_per_round: int
    participation: Participation
    mechanism: BuiltMechanism
    dimension: int
    second: SecondStream | None = None
    statistics: tuple[ReleasedStatistic, ...] = ()
    normalized: bool = False
    unit: str = "user"
    sensitivity: Sensitivity = _NO_SENSITIVITY
    noise_multiplier: float = 0.0
    relative_noise_std: float = 0.0
    rounding: Rounding = NO_ROUNDING
    amplification: RunAmplification | None = None

    def calibrated(self, law: CohortLaw | None = None, seed: int | None = None) -> Self:
        """Return the plan with the noise that ε needs, and its units.

        The sensitivity of a pair of streams depends on its units, and these on the sensitivity.

        Args:
            law: of secret cohorts, if the noise relies on it.
            seed: of the random numbers of the accountant of cohorts; a new one by default.

        Raises:
            ValueError: the accountant does not cover the mechanism, or δ is too small.
        """
        check_statistics(self.statistics, law is not None, self.second is not None)
        plan = self
        while True:
            sensitivity = plan.release.stated(plan.participation)
            plan = dataclasses.replace(plan, sensitivity=sensitivity)
            multiplier, amplification = plan._multiplier(law, seed)
            reach = sensitivity.value * adjacency_factor(plan.adjacency)
            std, rounding = calibrated(plan.parts, reach, multiplier)
            before = plan._pair_bits
            plan = dataclasses.replace(
                plan,
                noise_multiplier=multiplier,
                relative_noise_std=std,
                rounding=rounding,
                amplification=amplification,
            )
            if plan.second is None or plan._pair_bits == before:
                return plan

    def _multiplier(
        self, law: CohortLaw | None, seed: int | None
    ) -> tuple[float, RunAmplification | None]:
        """Return σ for sensitivity 1 that gives ε, and the claim of amplification, if any.

        Without amplification it is the Gaussian mechanism at the worst pattern that (k, b) allows,
        which holds for every outcome of a random schedule. Otherwise it relies on the law by which
        the cohorts will be drawn.
        """
        if self.epsilon is None:
            return 0.0, None
        plain = certified_multiplier(self.epsilon, self.delta)
        if law is None:
            return plain, None
        try:
            return self._amplified(self.epsilon, law, seed, plain)
        except ValueError as error:
            why = f"the accountant of {law.accountant} cannot calibrate this run: {error}"
            raise ValueError(why) from None

    def _amplified(
        self, epsilon: float, law: CohortLaw, seed: int | None, plain: float
    ) -> tuple[float, RunAmplification]:
        """Return σ for secret cohorts, and its claim; ``plain`` is σ without amplification."""
        # Other releases need no accountant of cohorts.
        from fedmf.accounting.sampling import amplified_run

        if seed is None:
            seed = secrets.randbits(63)
        C = self.mechanism.factorization
        sensitivity = self.sensitivity.value
        reach = sensitivity * adjacency_factor(self.adjacency)
        least = plain * reach / 4  # sampling seldom lets noise be smaller
        ratio = rounding_of(self.parts, reach, least).movement / least
        while True:
            budget = ideal_budget(epsilon, self.delta, self.adjacency, ratio)
            noise, claim = amplified_run(law, C, sensitivity, self.adjacency, *budget, seed)
            std, rounding = calibrated(self.parts, reach, noise / reach)
            if rounding.movement <= ratio * std:
                return noise / reach, dataclasses.replace(claim, rounding=ratio)
            ratio = 2 * rounding.movement / std

    @property
    def release(self) -> SumQuery:
        """The query whose sensitivity counts: the sums, or the pair of streams."""
        return query_of(
            self.mechanism.factorization,
            self.second,
            self.clip_norm,
            self.adjacency,
            self.users_per_round,
            self._pair_bits,
        )

    @property
    def parts(self) -> tuple[Part, ...]:
        """The sums that a round releases: of updates, of second moments if any, of statistics.

        Of one user, updates are in units of ζ, second moments of ζ², and statistics are numbers.
        """
        C = self.mechanism.factorization
        updates = Part(C, self.dimension, self.users, update_factor(self.statistics))
        parts = [updates]
        if self.second is not None:
            ratio = 1 / (math.sqrt(self.second.weight) * self.clip_norm)
            parts.append(Part(self.second.factorization, self.second.features, self.users, ratio))
        for statistic in self.statistics:
            bound = statistic.summed().bound
            parts.append(Part(C, 1, self.users * bound, statistic.factor * bound))
        return tuple(parts)

    def index_of(self, statistic: ReleasedStatistic) -> int:
        """Return the index of a statistic among `parts`."""
        return len(self.parts) - len(self.statistics) + self.statistics.index(statistic)

    def noise_of(self, index: int) -> IntegerNoise | None:
        """Return the noise of one of the parts; None in a run without noise."""
        if not self.rounding.parts:
            return None
        return self.rounding.parts[index]

    def bits_of(self, index: int) -> int:
        """Return B of one of the parts, whose unit is 2⁻ᴮ of its bound."""
        if index >= len(self.rounding.parts):
            return FINEST
        return self.rounding.parts[index].bits

    @property
    def _pair_bits(self) -> tuple[int, int]:
        """B of the sums, and of the second moments if any."""
        return self.bits_of(0), self.bits_of(1)

    @property
    def _movement(self) -> float:
        """W per unit of the adjacency factor, as sensitivities are."""
        return self.rounding.movement / adjacency_factor(self.adjacency)

    def moved(self, sensitivities: Any) -> Any:
        """Return sensitivities with the W that rounding to integers adds."""
        return sensitivities + self._movement

    @property
    def noise_std(self) -> float:
        """τ₁, the absolute standard deviation of the z that enter the sum; for ζ of round 0."""
        return self.noise_std_at(self.clip_norm)

    def noise_std_at(self, clip_norm: float) -> float:
        """Return τ₁ for rounds with updates clipped to ζ_t."""
        return clip_norm * self.relative_noise_std * update_factor(self.statistics)

    @property
    def second_noise_std(self) -> float:
        """τ₂ = τ₁/√λ, for the z that enter m times the second moment; 0 without one."""
        if self.second is None:
            return 0.0
        return self.second.noise_std(self.noise_std)

    def mean_unit(self, clip_norm: float) -> float:
        """Return the unit in which the server sees the mean of updates clipped to this norm."""
        return clip_norm if self.normalized else 1.0

    def multiplier_after(self, rounds: int) -> float:
        """Return σ of a Gaussian mechanism as private as the first ``rounds`` ≥ 1 rounds.

        It is that of the worst user, whose sensitivity follows from the leading block of C.
        """
        k = self.participation.max_participations
        b = self.participation.min_separation
        block = Participation(
            rounds, min(k, Participation.as_many_as_fit(rounds, b).max_participations), b
        )
        spent = min(self.release.leading(rounds).stated(block).value, self.sensitivity.value)
        return self.noise_multiplier * self.moved(self.sensitivity.value) / self.moved(spent)

    @cached_property
    def _epsilons(self) -> dict[int, float]:
        return {0: 0.0}

    def known_epsilon_after(self, rounds: int) -> float:
        """Return ε that the worst allowed user has spent after ``rounds`` rounds.

        It holds against an observer who knows in which rounds each user took part, without
        amplification, and never exceeds that of the whole run. Without noise it is infinite.
        """
        if self.noise_multiplier == 0 and rounds > 0:
            return math.inf
        if rounds not in self._epsilons:
            self._epsilons[rounds] = gaussian_epsilon(self.multiplier_after(rounds), self.delta)
        return self._epsilons[rounds]

    def epsilon_after(self, rounds: int) -> float:
        """Return ε spent while cohorts stay secret: at most ε of the run if that is amplified."""
        known = self.known_epsilon_after(rounds)
        if self.amplification is None or self.epsilon is None:
            return known
        return min(known, self.epsilon)

    def allowed(self, released: int, law: CohortLaw | None = None) -> AllowedEpsilon:
        """Compute ε of the worst allowed user after so many rounds, from C and the noise again.

        Args:
            released: T ≤ n.
            law: of the cohorts, if amplification is claimed.

        Raises:
            LedgerError: the noise is too small for what the plan claims.
            RuntimeError: two accountants disagree.
        """
        self.check_noise()
        noisy = self.noise_multiplier > 0
        known = math.inf
        if noisy:
            known = certified_epsilon(self.noise_multiplier, self.delta, self.epsilon)
        epsilon = self._claimed(known, law)
        if released >= self.participation.rounds:
            return AllowedEpsilon(epsilon, known, math.inf, known)
        if released == 0:
            known_so_far = 0.0
        elif noisy:
            so_far = certified_epsilon(self.multiplier_after(released), self.delta)
            known_so_far = min(known, so_far)
        else:
            known_so_far = math.inf
        secret = epsilon
        if self.amplification is not None:
            secret = min(epsilon, self.epsilon_after(released))
        return AllowedEpsilon(epsilon, known, min(known_so_far, secret), known_so_far)

    def check_noise(self) -> None:
        """Compute sensitivity, units and noise again, and reject a plan that states less.

        Raises:
            LedgerError: sensitivity, W, τ or a unit is smaller than it must be.
        """
        n = self.participation.rounds
        σ = self.noise_multiplier
        if self.release.rounds != n:
            raise LedgerError(
                f"the header's factorization has n={self.release.rounds} rounds; training was"
                f" planned for {n}."
            )
        if not 0 <= σ < math.inf:
            raise LedgerError(
                f"σ (noise_multiplier of the header) must be finite and at least 0; got {σ!r}."
            )
        stated = self.sensitivity.value
        recomputed = self.release.stated(self.participation).value
        if not stated >= recomputed * (1 - _TOLERANCE):
            raise LedgerError(
                f"the header states sensitivity {stated!r}, below the {recomputed!r} of its"
                " factorization. The noise was too small for the requested ε."
            )
        reach = self.sensitivity.value * adjacency_factor(self.adjacency)
        rounding = rounding_of(self.parts, reach, self.relative_noise_std)
        needed = σ * (reach + rounding.movement)
        enough = self.relative_noise_std >= needed * (1 - _TOLERANCE)
        if not enough or not self._rounds_as(rounding):
            raise LedgerError(
                f"the header states noise {self.relative_noise_std!r} in units"
                f" {self.rounding.bits}, and {needed!r} in units {rounding.bits} follow from its"
                " plan. The noise was too small, or the record was altered."
            )

    def _rounds_as(self, needed: Rounding) -> bool:
        """Return True if the plan has the needed units, with as much noise and as large a W."""
        if self.rounding.bits != needed.bits:
            return False
        for stated, part in zip(self.rounding.parts, needed.parts, strict=True):
            if not stated.std >= part.std * (1 - _TOLERANCE):
                return False
        return self.rounding.movement >= needed.movement * (1 - _TOLERANCE)

    def _claimed(self, known: float, law: CohortLaw | None) -> float:
        """Return ε while the cohorts stay secret, after a check that the noise suffices for it.

        Args:
            known: ε against an observer who knows the cohorts.
            law: of the cohorts.
        """
        claim = self.amplification
        epsilon = self.epsilon
        if claim is None:
            return known
        if epsilon is None or self.noise_multiplier == 0:
            raise LedgerError(
                "the header claims amplification for a run without noise or without epsilon."
            )
        # Other releases need no accountant of cohorts.
        from fedmf.accounting.sampling import check_run

        try:
            check_statistics(self.statistics, True, self.release.paired)
            self.release.check_secret_cohorts()
            if law is None:
                raise ValueError(
                    "cohorts must be drawn at random by a law that an accountant knows."
                )
            if (claim.accountant, claim.probability) != (law.accountant, law.probability):
                raise ValueError(
                    f"accountant and q (probability) must be as for the cohorts, {law.accountant!r}"
                    f" and {law.probability!r}; got {claim.accountant!r} and {claim.probability!r}."
                )
            C = self.mechanism.factorization
            std = self.relative_noise_std
            if self.rounding.movement > claim.rounding * std:
                raise ValueError(
                    "rounding (W/tau that was allowed for) must be at least "
                    f"{self.rounding.movement / std!r}; got {claim.rounding!r}."
                )
            budget = ideal_budget(epsilon, self.delta, self.adjacency, claim.rounding)
            check_run(claim, law, C, std, self.adjacency, *budget)
        except ValueError as error:
            raise LedgerError(f"the header's amplification does not hold: {error}") from None
        if claim.method == "none needed":  # sampling gains nothing over the noise without it
            return known
        return min(known, epsilon)

    def to_dict(self) -> dict[str, Any]:
        """Return the record of the plan in addition to that of the run, JSON-able.

        A round is a list of streams: the sums of updates, then second moments if any. Floats
        survive JSON bit for bit.
        """
        updates = {
            "stream": "updates",
            "mechanism": self.mechanism.name,
            "params": dict(self.mechanism.params),
            "factorization": self.mechanism.factorization.to_dict(),
        }
        streams = [updates]
        if self.second is not None:
            streams.append({"stream": "second moments", **self.second.to_dict()})
        amplification = None
        if self.amplification is not None:
            amplification = self.amplification.to_dict()
        return {
            "unit": self.unit,
            "users": self.users,
            "participation": dataclasses.asdict(self.participation),
            "streams": streams,
            "sensitivity": dataclasses.asdict(self.sensitivity),
            "noise_multiplier": self.noise_multiplier,
            "dimension": self.dimension,
            "relative_noise_std": self.relative_noise_std,
            "rounding": dataclasses.asdict(self.rounding),
            "amplification": amplification,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], **fields_of_run: Any) -> Self:
        """Read a record that `to_dict` wrote.

        The factorization is the recorded one and is never optimized again: the optimizer of another
        machine could end at slightly different coefficients, and the noise would no longer be that
        of the rounds released.

        Args:
            values: the record.
            fields_of_run: the fields that `to_dict` does not write, since the run has them.

        Raises:
            KeyError, TypeError, ValueError: a field is missing, unknown or out of its range.
        """
        streams = [dict(stream) for stream in values["streams"]]
        names = [stream.pop("stream") for stream in streams]
        if names not in (["updates"], ["updates", "second moments"]):
            raise ValueError(
                f"streams (of a round) must be updates and second moments; got {names}."
            )
        first = streams[0]
        C = factorization_from_dict(first["factorization"])
        second = None
        if len(streams) == 2:
            second = SecondStream.from_dict(streams[1])
        return cls(
            **fields_of_run,
            users=int(values["users"]),
            participation=Participation(**values["participation"]),
            mechanism=BuiltMechanism(first["mechanism"], first["params"], C),
            sensitivity=Sensitivity(**values["sensitivity"]),
            noise_multiplier=float(values["noise_multiplier"]),
            dimension=int(values["dimension"]),
            relative_noise_std=float(values["relative_noise_std"]),
            rounding=Rounding.from_dict(values["rounding"]),
            amplification=_claim_of(values["amplification"]),
            second=second,
            unit=str(values["unit"]),
        )


def certified_multiplier(epsilon: float, delta: float) -> float:
    """Return σ for sensitivity 1 that gives (ε, δ), for a release of integers.

    Raises:
        ValueError: δ is too small, so that rare failures of integer noise would count.
    """
    if delta < _LEAST_DELTA:
        raise ValueError(f"δ (delta) must be at least {_LEAST_DELTA:g}; got {delta:g}.")
    return certified_sigma(epsilon, delta)


def _claim_of(recorded: Mapping[str, Any] | None) -> RunAmplification | None:
    if recorded is None:
        return None
    # Other releases need no accountant of cohorts.
    from fedmf.accounting.sampling import RunAmplification

    return RunAmplification.from_dict(recorded)
