"""The noise plan of a release: C, its sensitivity, the units of its integers, σ, and what that
guarantees.
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
#: Far above what rare failures of integer noise add to δ, and what they add is below the
#: accountants' margin.
_LEAST_DELTA: Final = 1e-40

_NO_SENSITIVITY: Final = Sensitivity(0.0, "exact", "")


@dataclass(frozen=True)
class Allowed:
    """ε of the worst user that a contract allows, after T rounds of a plan; infinite without noise.

    Args:
        epsilon: at the full horizon; with amplification only while the cohorts stay secret.
        epsilon_known_cohorts: the same against an observer who knows in which rounds each user took
            part.
        epsilon_so_far: of the rounds released; infinite once all are, as nothing more is said then.
        known_so_far: of the rounds released, against such an observer.
    """

    epsilon: float
    epsilon_known_cohorts: float
    epsilon_so_far: float
    known_so_far: float


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """A mechanism with its noise: calibrated once (`calibrated`), recorded, and read by everybody.

    With τ the standard deviation of the z that are streamed through C⁻¹ into the sum, per unit clip
    norm of a user's whole vector, and W what rounding to integers costs, 1/σ = μ =
    (sensitivity·(adjacency factor) + W)/τ; those of a second stream have τ over √λ.

    Args:
        epsilon: ε that is asked for; None for a release without noise.
        delta: δ.
        adjacency: "zero-out" or "replace-one".
        clip_norm: ζ, of round 0 where a statistic moves it.
        users: N, how many users can take part.
        users_per_round: m, the planned cohort size, by which sums are divided.
        participation: the (n, k, b) contract.
        mechanism: name, parameters and factorization C.
        dimension: d, the number of trained parameters.
        second: the stream of second moments; None where sums alone are released.
        statistics: what else is released under the same ε.
        normalized: whether means are released in units of the clip norm of their round.
        unit: the unit of protection: "user" or "example".
        sensitivity: of `release` under the contract, exact or an upper bound, per unit clip norm
            and unit of `adjacency_factor`; sens_{k,b}(C) of a single stream.
        noise_multiplier: σ ≥ 0 for sensitivity 1; 0 in a run without privacy.
        relative_noise_std: τ. Of a user's whole vector (a·x/ζ, b₁·s₁/c₁, …): what updates take is
            `noise_std`.
        rounding: the units of `parts`, and W.
        amplification: how the noise was calibrated for secret cohorts; None where nothing is
            claimed.

    The last five follow from the others, and have no noise until `calibrated` found them.
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

        The units of a pair of streams move its sensitivity, and its sensitivity moves them.

        Args:
            law: how secret cohorts are drawn, where the noise relies on it; None otherwise.
            seed: of the random numbers of its accountant; new ones by default.

        Raises:
            ValueError: a mechanism that the accountant does not cover, or δ is too small.
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
        """σ for sensitivity 1 that gives ε, and how it was found.

        Without amplification it is the Gaussian mechanism at the worst pattern that (k, b) allows,
        which holds for every outcome of a random schedule. Otherwise it relies on the very law by
        which the cohorts will be drawn.
        """
        if self.epsilon is None:
            return 0.0, None
        if self.delta < _LEAST_DELTA:
            raise ValueError(f"δ (delta) must be at least {_LEAST_DELTA:g}; got {self.delta:g}.")
        plain = certified_sigma(self.epsilon, self.delta)
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
        """σ for secret cohorts; ``plain`` is the one without amplification."""
        from fedmf.accounting.sampling import (
            amplified_run,
        )  # other releases need no accountant of cohorts

        seed = secrets.randbits(63) if seed is None else seed
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
        """What the run releases, as far as privacy is concerned: the sums, or the pair of
        streams.
        """
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
        """What is released in a round: sums of updates, second moments if there are any,
        statistics.

        Of one user, updates are in units of ζ, second moments of ζ², and statistics are numbers.
        """
        C = self.mechanism.factorization
        updates = Part(C, self.dimension, self.users, update_factor(self.statistics))
        parts = [updates]
        if self.second is not None:
            ratio = 1 / (math.sqrt(self.second.weight) * self.clip_norm)
            parts.append(Part(self.second.factorization, self.second.features, self.users, ratio))
        for statistic in self.statistics:
            most = statistic.summed().bound
            parts.append(Part(C, 1, self.users * most, statistic.factor * most))
        return tuple(parts)

    def index_of(self, statistic: ReleasedStatistic) -> int:
        """The place of a statistic among `parts`."""
        return len(self.parts) - len(self.statistics) + self.statistics.index(statistic)

    def noise_of(self, index: int) -> IntegerNoise | None:
        """The noise of one of the parts; None in a run without noise."""
        return self.rounding.parts[index] if self.rounding.parts else None

    def bits_of(self, index: int) -> int:
        """The unit of one of the parts is 2⁻ᴮ of its bound; B."""
        known = index < len(self.rounding.parts)
        return self.rounding.parts[index].bits if known else FINEST

    @property
    def _pair_bits(self) -> tuple[int, int]:
        """B of the sums and of the second moments, if there are any."""
        return self.bits_of(0), self.bits_of(1)

    @property
    def _movement(self) -> float:
        """W per unit of the adjacency factor, as sensitivities are."""
        return self.rounding.movement / adjacency_factor(self.adjacency)

    def moved(self, sensitivities: Any) -> Any:
        """Sensitivities with what rounding to integers adds."""
        return sensitivities + self._movement

    @property
    def noise_std(self) -> float:
        """τ₁, absolute standard deviation of the z that enter the sum; where ζ adapts, for
        round 0.
        """
        return self.noise_std_at(self.clip_norm)

    def noise_std_at(self, clip_norm: float) -> float:
        """The same for rounds with updates clipped to ζ_t."""
        return clip_norm * self.relative_noise_std * update_factor(self.statistics)

    @property
    def second_noise_std(self) -> float:
        """τ₂ = τ₁/√λ, for the z that enter m times the second moment; 0 without one."""
        return 0.0 if self.second is None else self.second.noise_std(self.noise_std)

    def mean_unit(self, clip_norm: float) -> float:
        """In what unit the server sees the mean of updates clipped to this norm."""
        return clip_norm if self.normalized else 1.0

    def multiplier_after(self, rounds: int) -> float:
        """σ of a Gaussian mechanism as private as the first ``rounds`` ≥ 1 rounds, for the worst
        user.

        Their sensitivity follows from the leading block of C.
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
        """ε spent by the worst allowed user once ``rounds`` rounds are released; infinite without
        noise.

        Against an observer who knows in which rounds each user took part: never amplified. It never
        exceeds the whole run's.
        """
        if self.noise_multiplier == 0 and rounds > 0:
            return math.inf
        if rounds not in self._epsilons:
            self._epsilons[rounds] = gaussian_epsilon(self.multiplier_after(rounds), self.delta)
        return self._epsilons[rounds]

    def epsilon_after(self, rounds: int) -> float:
        """The same while cohorts stay secret: at most ε where amplification is claimed."""
        known = self.known_epsilon_after(rounds)
        if self.amplification is None or self.epsilon is None:
            return known
        return min(known, self.epsilon)

    def allowed(self, released: int, law: CohortLaw | None = None) -> Allowed:
        """What the plan allows the worst user once so many rounds are released; from C and the
        noise again.

        Args:
            released: T ≤ n.
            law: of the cohorts, where amplification is claimed.

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
            return Allowed(epsilon, known, math.inf, known)
        known_so_far = math.inf if released else 0.0
        if noisy and released:
            known_so_far = min(
                known, certified_epsilon(self.multiplier_after(released), self.delta)
            )
        secret = epsilon
        if self.amplification is not None:
            secret = min(epsilon, self.epsilon_after(released))
        return Allowed(epsilon, known, min(known_so_far, secret), known_so_far)

    def check_noise(self) -> None:
        """Compute sensitivity, units and noise again, and reject a plan that states less of any of
        them.

        Raises:
            LedgerError: it does.
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
        again = rounding_of(self.parts, reach, self.relative_noise_std)
        needed = σ * (reach + again.movement)
        enough = self.relative_noise_std >= needed * (1 - _TOLERANCE)
        same = again.bits == self.rounding.bits and all(
            mine.std >= part.std * (1 - _TOLERANCE)
            for mine, part in zip(self.rounding.parts, again.parts, strict=True)
        )
        if not (enough and same and self.rounding.movement >= again.movement * (1 - _TOLERANCE)):
            raise LedgerError(
                f"the header states noise {self.relative_noise_std!r} in units"
                f" {self.rounding.bits}, and {needed!r} in units {again.bits} follow from its plan."
                " The noise was too small, or the record was altered."
            )

    def _claimed(self, known: float, law: CohortLaw | None) -> float:
        """ε while the cohorts stay secret: the ε asked for, after a check that the noise suffices.

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
        from fedmf.accounting.sampling import (
            check_run,
        )  # other releases need no accountant of cohorts

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
        # Where sampling gained nothing the noise is that without amplification, and so is ε.
        return known if claim.method == "none needed" else min(known, epsilon)

    def to_dict(self) -> dict[str, Any]:
        """What a record keeps in addition to the run, JSON-able; floats survive JSON bit for bit.

        A round is a list of streams: the sums of updates, then second moments if there are any.
        """
        updates = {
            "stream": "updates",
            "mechanism": self.mechanism.name,
            "params": dict(self.mechanism.params),
            "factorization": self.mechanism.factorization.to_dict(),
        }
        second = (
            [] if self.second is None else [{"stream": "second moments", **self.second.to_dict()}]
        )
        return {
            "unit": self.unit,
            "users": self.users,
            "participation": dataclasses.asdict(self.participation),
            "streams": [updates, *second],
            "sensitivity": dataclasses.asdict(self.sensitivity),
            "noise_multiplier": self.noise_multiplier,
            "dimension": self.dimension,
            "relative_noise_std": self.relative_noise_std,
            "rounding": dataclasses.asdict(self.rounding),
            "amplification": None if self.amplification is None else self.amplification.to_dict(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], **asked: Any) -> Self:
        """Read what `to_dict` wrote.

        The factorization is the recorded one, never fitted again: another machine's optimiser could
        end at slightly different coefficients, and the noise would no longer fit the rounds
        released.

        Args:
            values: the record.
            asked: the fields that `to_dict` does not write, since they are those of the run.

        Raises:
            KeyError, TypeError, ValueError: a field is missing, unknown or out of its range.
        """
        streams = [dict(stream) for stream in values["streams"]]
        named = [stream.pop("stream") for stream in streams]
        if named not in (["updates"], ["updates", "second moments"]):
            raise ValueError(
                f"streams (of a round) must be updates and second moments; got {named}."
            )
        first = streams[0]
        C = factorization_from_dict(first["factorization"])
        return cls(
            **asked,
            users=int(values["users"]),
            participation=Participation(**values["participation"]),
            mechanism=BuiltMechanism(first["mechanism"], first["params"], C),
            sensitivity=Sensitivity(**values["sensitivity"]),
            noise_multiplier=float(values["noise_multiplier"]),
            dimension=int(values["dimension"]),
            relative_noise_std=float(values["relative_noise_std"]),
            rounding=Rounding.from_dict(values["rounding"]),
            amplification=_claim_of(values["amplification"]),
            second=None if len(streams) == 1 else SecondStream.from_dict(streams[1]),
            unit=str(values["unit"]),
        )


def _claim_of(recorded: Mapping[str, Any] | None) -> RunAmplification | None:
    if recorded is None:
        return None
    from fedmf.accounting.sampling import (
        RunAmplification,
    )  # other releases need no accountant of cohorts

    return RunAmplification.from_dict(recorded)
