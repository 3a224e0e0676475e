"""The plan of a run: its mechanism, the noise that its privacy needs, and what that allows the worst user."""

from __future__ import annotations

import dataclasses
import logging
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Self

from fedmf.accounting import (
    UNITS,
    CohortLaw,
    Privacy,
    RunAmplification,
    RunRelease,
    SecondStream,
    Unit,
    UserLevel,
    amplified_run,
    certified_epsilon,
    certified_sigma,
    check_run,
    gaussian_epsilon,
    release_of,
)
from fedmf.accounting.gaussian import adjacency_factor
from fedmf.accounting.integer_noise import ideal_budget
from fedmf.cohorts import Cohorts, SampledCohorts
from fedmf.errors import ConfigError, LedgerError
from fedmf.matrices.factorization import factorization_from_dict
from fedmf.matrices.sensitivity import Sensitivity
from fedmf.mechanisms.registry import Mechanism
from fedmf.noise.units import FINEST, IntegerNoise, Part, Rounding, calibrated, rounding_of
from fedmf.noise.units import NOTHING as NO_ROUNDING
from fedmf.participation import Participation
from fedmf.runs.statistics import QuantileClipping, Statistic, check_statistics, update_factor
from fedmf.statements.composition import finite

if TYPE_CHECKING:
    from fedmf.optim import ServerOptimizer
    from fedmf.runs.run import Run

_log = logging.getLogger("fedmf")
#: Relative, of sensitivities that are summed in different orders.
_TOLERANCE: Final = 1e-9
#: Far above what rare failures of integer noise add to δ, and what they add is below the accountants' margin.
_LEAST_DELTA: Final = 1e-40


@dataclass(frozen=True, eq=False)
class Plan:
    """A mechanism with its calibrated noise: made by `Plan.of` alone, recorded once, read by everybody.

    With τ the standard deviation of the z that are streamed through C⁻¹ into the sum, per unit clip norm of a
    user's whole vector, and W what rounding to integers costs, 1/σ = μ = (sensitivity·(adjacency factor) +
    W)/τ; those of a second stream have τ over √λ.

    Args:
        privacy: what was asked for.
        cohorts: who takes part when.
        users: N, how many users can take part.
        participation: the (n, k, b) contract.
        mechanism: name, parameters and factorization C.
        sensitivity: of `release` under the contract, exact or an upper bound, per unit clip norm and unit of
            `adjacency_factor`; sens_{k,b}(C) of a single stream.
        noise_multiplier: σ ≥ 0 for sensitivity 1; 0 in a run without privacy.
        dimension: d, the number of trained parameters.
        relative_noise_std: τ. Of a user's whole vector (a·x/ζ, b₁·s₁/c₁, …): what updates take is
            `noise_std`.
        rounding: the units of `parts`, and W.
        amplification: how the noise was calibrated for secret cohorts; None where nothing is claimed.
        second: the stream of second moments; None where the optimizer needs sums alone.
        statistics: what else is released under the same ε.
        words: the unit of protection: users, or single examples.
    """

    privacy: Privacy
    cohorts: Cohorts
    users: int
    participation: Participation
    mechanism: Mechanism
    sensitivity: Sensitivity
    noise_multiplier: float
    dimension: int
    relative_noise_std: float
    rounding: Rounding
    amplification: RunAmplification | None = None
    second: SecondStream | None = None
    statistics: tuple[Statistic, ...] = ()
    words: Unit = UNITS["user"]

    @classmethod
    def of(cls, run: Run, optimizer: ServerOptimizer, dimension: int) -> Self:
        """Build the factorization, calibrate its noise and choose the units.

        Args:
            run: the requested run.
            optimizer: the server's, which says whether a second moment must be released with the sums.
            dimension: d, the number of trained parameters.

        Raises:
            ConfigError: a mechanism that cannot be built, or that the accountant does not cover.

        Logs a warning where δ is above 1/N.
        """
        moment = optimizer.second_moment
        second = None
        try:
            check_statistics(run.statistics, run.privacy.counts_sampling, moment is not None)
            if moment is None:
                mechanism = run.noise.choice.build(run.participation, run.workload, run.noise.goal)
            else:
                from fedmf.runs.pair_plan import paired_streams  # readers of records load no framework

                mechanism, second = paired_streams(run, moment, optimizer.second_form)
            plan = cls(
                privacy=run.privacy,
                cohorts=run.cohorts,
                users=run.task_source.users,
                participation=run.participation,
                mechanism=mechanism,
                sensitivity=Sensitivity(0.0, "exact", ""),
                noise_multiplier=0.0,
                dimension=dimension,
                relative_noise_std=0.0,
                rounding=NO_ROUNDING,
                second=second,
                statistics=run.statistics,
                words=UNITS[run.task_source.unit],
            )
            plan = plan._calibrated()
        except ValueError as error:
            raise error if isinstance(error, ConfigError) else ConfigError(str(error)) from None
        if run.is_private and plan.privacy.delta * plan.users > 1:
            _log.warning(
                "δ (delta) should be at most 1/N for N=%d %s; got %g. Such a guarantee would allow "
                "publishing all data of one random %s: lower privacy.delta.",
                *(plan.users, plan.words.plural, plan.privacy.delta, plan.words.name),
            )
        return plan

    def _calibrated(self) -> Self:
        """The plan with its noise and units; units of a pair move its sensitivity, and it moves them."""
        plan = self
        while True:
            sensitivity = plan.release.stated(plan.participation)
            plan = dataclasses.replace(plan, sensitivity=sensitivity)
            multiplier, amplification = plan._multiplier()
            reach = sensitivity.value * adjacency_factor(plan.privacy.adjacency)
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

    def _multiplier(self) -> tuple[float, RunAmplification | None]:
        """σ for sensitivity 1 that gives ε, and how it was found.

        Without amplification it is the Gaussian mechanism at the worst pattern that (k, b) allows, which
        holds for every outcome of a random schedule. An amplified run uses the rates of the very schedule
        that will draw its cohorts; the accountant's random numbers are new for every run unless it has a
        noise seed.
        """
        privacy = self.privacy
        if not isinstance(privacy, UserLevel):
            return 0.0, None
        if privacy.delta < _LEAST_DELTA:
            raise ConfigError(f"δ (delta) must be at least {_LEAST_DELTA:g}; got {privacy.delta:g}.")
        plain = certified_sigma(privacy.epsilon, privacy.delta)
        if not privacy.counts_sampling:
            return plain, None
        law = _law(self.cohorts, self.users, self.participation)
        seed = secrets.randbits(63) if privacy.noise_seed is None else privacy.noise_seed
        C = self.mechanism.factorization
        reach = self.sensitivity.value * adjacency_factor(privacy.adjacency)
        sensitivity = self.sensitivity.value
        least = plain * reach / 4  # sampling seldom lets noise be smaller
        try:
            ratio = rounding_of(self.parts, reach, least).movement / least
            while True:
                budget = ideal_budget(privacy.epsilon, privacy.delta, privacy.adjacency, ratio)
                noise, claim = amplified_run(law, C, sensitivity, privacy.adjacency, *budget, seed)
                std, rounding = calibrated(self.parts, reach, noise / reach)
                if rounding.movement <= ratio * std:
                    return noise / reach, dataclasses.replace(claim, rounding=ratio)
                ratio = 2 * rounding.movement / std
        except ValueError as error:
            raise ConfigError(
                f"the accountant of {self.cohorts.kind} cannot calibrate this run: {error}"
            ) from None

    @property
    def release(self) -> RunRelease:
        """What the run releases, as far as privacy is concerned: the sums, or the pair of streams."""
        return release_of(
            self.mechanism.factorization,
            self.second,
            self.privacy.clip_norm,
            self.privacy.adjacency,
            self.cohorts.users_per_round,
            self._pair_bits,
        )

    @property
    def parts(self) -> tuple[Part, ...]:
        """What is released in a round: sums of updates, second moments if there are any, statistics.

        Of one user, updates are in units of ζ, second moments of ζ², and statistics are numbers.
        """
        C = self.mechanism.factorization
        updates = Part(C, self.dimension, self.users, update_factor(self.statistics))
        parts = [updates]
        if self.second is not None:
            ratio = 1 / (math.sqrt(self.second.weight) * self.privacy.clip_norm)
            parts.append(Part(self.second.factorization, self.second.features, self.users, ratio))
        for statistic in self.statistics:
            most = statistic.summed().bound
            parts.append(Part(C, 1, self.users * most, statistic.factor * most))
        return tuple(parts)

    def index_of(self, statistic: Statistic) -> int:
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
        return self.rounding.movement / adjacency_factor(self.privacy.adjacency)

    def moved(self, sensitivities: Any) -> Any:
        """Sensitivities with what rounding to integers adds."""
        return sensitivities + self._movement

    @property
    def noise_std(self) -> float:
        """τ₁, absolute standard deviation of the z that enter the sum; where ζ adapts, for round 0."""
        return self.noise_std_at(self.privacy.clip_norm)

    def noise_std_at(self, clip_norm: float) -> float:
        """The same for rounds with updates clipped to ζ_t."""
        return clip_norm * self.relative_noise_std * update_factor(self.statistics)

    @property
    def second_noise_std(self) -> float:
        """τ₂ = τ₁/√λ, for the z that enter m times the second moment; 0 without one."""
        return 0.0 if self.second is None else self.second.noise_std(self.noise_std)

    def unit(self, clip_norm: float) -> float:
        """In what unit the server sees the mean of updates clipped to this norm."""
        steps = any(isinstance(rule, QuantileClipping) and rule.normalize_updates for rule in self.statistics)
        return clip_norm if steps else 1.0

    def multiplier_after(self, rounds: int) -> float:
        """σ of a Gaussian mechanism as private as the first ``rounds`` ≥ 1 rounds, for the worst user.

        Their sensitivity follows from the leading block of C.
        """
        k, b = self.participation.max_participations, self.participation.min_separation
        block = Participation(rounds, min(k, Participation.as_many_as_fit(rounds, b).max_participations), b)
        spent = min(self.release.leading(rounds).stated(block).value, self.sensitivity.value)
        return self.noise_multiplier * self.moved(self.sensitivity.value) / self.moved(spent)

    @cached_property
    def _epsilons(self) -> dict[int, float]:
        return {0: 0.0}

    def known_epsilon_after(self, rounds: int) -> float:
        """ε spent by the worst allowed user once ``rounds`` rounds are released; infinite without noise.

        Against an observer who knows in which rounds each user took part: never amplified. It never
        exceeds the whole run's.
        """
        if self.noise_multiplier == 0 and rounds > 0:
            return math.inf
        if rounds not in self._epsilons:
            self._epsilons[rounds] = gaussian_epsilon(self.multiplier_after(rounds), self.privacy.delta)
        return self._epsilons[rounds]

    def epsilon_after(self, rounds: int) -> float:
        """The same while cohorts stay secret: at most ε where amplification is claimed."""
        known, asked = self.known_epsilon_after(rounds), self.privacy.requested_epsilon
        if self.amplification is None or asked is None:
            return known
        return min(known, asked)

    def allowed(self, released: int) -> tuple[dict[str, float | None], float]:
        """What the plan allows the worst user once so many rounds are released; from C and the noise again.

        Returns:
            ε as the fields of a statement: at the full horizon, with amplification only while the cohorts
            stay secret; the same against an observer who knows in which rounds each user took part; that of
            the rounds released, None once all are. None is infinite, too. Then that of the rounds released
            against such an observer.

        Raises:
            LedgerError: the noise is too small for what the plan claims.
            RuntimeError: two accountants disagree.
        """
        self._require_sensitivity()
        noisy, delta = self.noise_multiplier > 0, self.privacy.delta
        asked = self.privacy.requested_epsilon
        known = certified_epsilon(self.noise_multiplier, delta, asked) if noisy else math.inf
        epsilon, so_far, known_so_far = self._claimed(known), math.inf, known
        if released < self.participation.rounds:
            known_so_far = math.inf if released else 0.0
            if noisy and released:
                known_so_far = min(known, certified_epsilon(self.multiplier_after(released), delta))
            secret = epsilon if self.amplification is None else min(epsilon, self.epsilon_after(released))
            so_far = min(known_so_far, secret)
        fields = {"epsilon": epsilon, "epsilon_known_cohorts": known, "epsilon_so_far": so_far}
        return {name: finite(value) for name, value in fields.items()}, known_so_far

    def _require_sensitivity(self) -> None:
        """The noise was scaled by the recorded sensitivity; it must be at least the one that C has."""
        n, σ = self.participation.rounds, self.noise_multiplier
        if self.release.rounds != n:
            raise LedgerError(
                f"the header's factorization has n={self.release.rounds} rounds; training was planned for "
                f"{n}."
            )
        if not 0 <= σ < math.inf:
            raise LedgerError(f"σ (noise_multiplier of the header) must be finite and at least 0; got {σ!r}.")
        stated, recomputed = self.sensitivity.value, self.release.stated(self.participation).value
        if not stated >= recomputed * (1 - _TOLERANCE):
            raise LedgerError(
                f"the header states sensitivity {stated!r}, below the {recomputed!r} of its factorization. "
                "The noise was too small for the requested ε."
            )
        reach = self.sensitivity.value * adjacency_factor(self.privacy.adjacency)
        again = rounding_of(self.parts, reach, self.relative_noise_std)
        needed = σ * (reach + again.movement)
        enough = self.relative_noise_std >= needed * (1 - _TOLERANCE)
        same = again.bits == self.rounding.bits and all(
            mine.std >= part.std * (1 - _TOLERANCE)
            for mine, part in zip(self.rounding.parts, again.parts, strict=True)
        )
        if not (enough and same and self.rounding.movement >= again.movement * (1 - _TOLERANCE)):
            raise LedgerError(
                f"the header states noise {self.relative_noise_std!r} in units {self.rounding.bits}, and "
                f"{needed!r} in units {again.bits} follow from its plan. The noise was too small, or the "
                "record was altered."
            )

    def _claimed(self, known: float) -> float:
        """ε while the cohorts stay secret: the ε asked for, after a check that the noise suffices.

        Args:
            known: ε against an observer who knows the cohorts.
        """
        claim, epsilon, privacy = self.amplification, self.privacy.requested_epsilon, self.privacy
        if claim is None:
            return known
        if epsilon is None or self.noise_multiplier == 0:
            raise LedgerError("the header claims amplification for a run without noise or without epsilon.")
        try:
            check_statistics(self.statistics, True, self.release.paired)
            self.release.check_secret_cohorts()
            law = _law(self.cohorts, self.users, self.participation)
            if (claim.accountant, claim.probability) != (law.accountant, law.probability):
                raise ValueError(
                    f"accountant and q (probability) must be as for the cohorts, {law.accountant!r} and "
                    f"{law.probability!r}; got {claim.accountant!r} and {claim.probability!r}."
                )
            C, std = self.mechanism.factorization, self.relative_noise_std
            if self.rounding.movement > claim.rounding * std:
                raise ValueError(
                    f"rounding (W/tau that was allowed for) must be at least "
                    f"{self.rounding.movement / std!r}; got {claim.rounding!r}."
                )
            budget = ideal_budget(epsilon, privacy.delta, privacy.adjacency, claim.rounding)
            check_run(claim, law, C, std, privacy.adjacency, *budget)
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
        second = [] if self.second is None else [{"stream": "second moments", **self.second.to_dict()}]
        return {
            "unit": self.words.name,
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
    def from_dict(
        cls,
        privacy: Privacy,
        cohorts: Cohorts,
        statistics: tuple[Statistic, ...],
        values: Mapping[str, Any],
    ) -> Self:
        """Read what `to_dict` wrote.

        The factorization is the recorded one, never fitted again: another machine's optimiser could end
        at slightly different coefficients, and the noise would no longer fit the rounds released.

        Raises:
            KeyError, TypeError, ValueError: a field is missing, unknown or out of its range.
        """
        streams = [dict(stream) for stream in values["streams"]]
        named = [stream.pop("stream") for stream in streams]
        if named not in (["updates"], ["updates", "second moments"]):
            raise ValueError(f"streams (of a round) must be updates and second moments; got {named}.")
        first, amplification = streams[0], values["amplification"]
        C = factorization_from_dict(first["factorization"])
        return cls(
            privacy=privacy,
            cohorts=cohorts,
            users=int(values["users"]),
            participation=Participation(**values["participation"]),
            mechanism=Mechanism(first["mechanism"], first["params"], C),
            sensitivity=Sensitivity(**values["sensitivity"]),
            noise_multiplier=float(values["noise_multiplier"]),
            dimension=int(values["dimension"]),
            relative_noise_std=float(values["relative_noise_std"]),
            rounding=Rounding.from_dict(values["rounding"]),
            amplification=None if amplification is None else RunAmplification.from_dict(amplification),
            second=None if len(streams) == 1 else SecondStream.from_dict(streams[1]),
            statistics=statistics,
            words=UNITS[values["unit"]],
        )


def _law(cohorts: Cohorts, users: int, participation: Participation) -> CohortLaw:
    if not isinstance(cohorts, SampledCohorts):
        raise ValueError(f"cohorts must be drawn at random; got {cohorts.kind!r}.")
    return CohortLaw(cohorts.kind, participation, cohorts.probability(users, participation))
