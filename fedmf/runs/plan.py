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
from fedmf.cohorts import Cohorts, SampledCohorts
from fedmf.errors import ConfigError, LedgerError
from fedmf.mechanisms.matrix import factorization_from_dict
from fedmf.mechanisms.registry import Mechanism
from fedmf.mechanisms.sensitivity import Sensitivity
from fedmf.participation import Participation
from fedmf.records.composed import finite
from fedmf.runs.statistics import QuantileClipping, Statistic, check_statistics, update_factor

if TYPE_CHECKING:
    from fedmf.optim import ServerOptimizer
    from fedmf.runs.run import Run

_log = logging.getLogger("fedmf")
#: Relative, of sensitivities that are summed in different orders.
_TOLERANCE: Final = 1e-9


@dataclass(frozen=True, eq=False)
class Plan:
    """A mechanism with its calibrated noise: made by `Plan.of` alone, recorded once, read by everybody.

    The z that are streamed through C⁻¹ into the sum have standard deviation ζ·σ·sensitivity·(adjacency
    factor); those of a second stream have that over √λ.

    Args:
        privacy: what was asked for.
        cohorts: who takes part when.
        users: N, how many users can take part.
        participation: the (n, k, b) contract.
        mechanism: name, parameters and factorization C.
        sensitivity: of `release` under the contract, exact or an upper bound, per unit clip norm and unit of
            `adjacency_factor`; sens_{k,b}(C) of a single stream.
        noise_multiplier: σ ≥ 0 for sensitivity 1; 0 in a run without privacy.
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
    amplification: RunAmplification | None = None
    second: SecondStream | None = None
    statistics: tuple[Statistic, ...] = ()
    words: Unit = UNITS["user"]

    @classmethod
    def of(cls, run: Run, optimizer: ServerOptimizer) -> Self:
        """Build the factorization and calibrate its noise.

        Args:
            run: the requested run.
            optimizer: the server's, which says whether a second moment must be released with the sums.

        Raises:
            ConfigError: a mechanism that cannot be built, or that the accountant does not cover.

        Logs a warning where δ is above 1/N.
        """
        privacy, contract, cohorts = run.privacy, run.participation, run.cohorts
        moment, second = optimizer.second_moment, None
        try:
            check_statistics(run.statistics, privacy.counts_sampling, moment is not None)
            if moment is None:
                mechanism = run.noise.choice.build(contract, run.workload, run.noise.goal)
            else:
                from fedmf.runs.pair_plan import paired_streams  # readers of records load no framework

                mechanism, second = paired_streams(run, moment, optimizer.second_form)
            C, m = mechanism.factorization, cohorts.users_per_round
            release = release_of(C, second, privacy.clip_norm, privacy.adjacency, m)
            sensitivity = release.stated(contract)
            noise_multiplier, amplification = _calibrated(run, mechanism, sensitivity)
        except ValueError as error:
            raise error if isinstance(error, ConfigError) else ConfigError(str(error)) from None
        users, words = run.task_source.users, UNITS[run.task_source.unit]
        if run.is_private and privacy.delta * users > 1:
            _log.warning(
                "δ (delta) should be at most 1/N for N=%d %s; got %g. Such a guarantee would allow "
                "publishing all data of one random %s: lower privacy.delta.",
                *(users, words.plural, privacy.delta, words.name),
            )
        return cls(
            privacy,
            cohorts,
            users,
            contract,
            mechanism,
            sensitivity,
            noise_multiplier,
            amplification,
            second,
            run.statistics,
            words,
        )

    @property
    def release(self) -> RunRelease:
        """What the run releases, as far as privacy is concerned: the sums, or the pair of streams."""
        privacy, C, m = self.privacy, self.mechanism.factorization, self.cohorts.users_per_round
        return release_of(C, self.second, privacy.clip_norm, privacy.adjacency, m)

    @property
    def relative_noise_std(self) -> float:
        """Standard deviation of the streamed z per unit clip norm: σ·sensitivity·(adjacency factor).

        Of a user's whole vector (a·x/ζ, b₁·s₁/c₁, …): what statistics take is in `noise_std`.
        """
        return self.noise_multiplier * self.sensitivity.value * adjacency_factor(self.privacy.adjacency)

    @property
    def noise_std(self) -> float:
        """τ₁, absolute standard deviation of the z that enter the sum; where ζ adapts, for round 0."""
        return self.noise_std_at(self.privacy.clip_norm)

    def noise_std_at(self, clip_norm: float) -> float:
        """The same for rounds with updates clipped to ζ_t."""
        factor = adjacency_factor(self.privacy.adjacency) * update_factor(self.statistics)
        return clip_norm * self.noise_multiplier * self.sensitivity.value * factor

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
        return self.noise_multiplier * self.sensitivity.value / spent

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
            check_run(claim, law, C, std, privacy.adjacency, epsilon, privacy.delta)
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
            privacy,
            cohorts,
            int(values["users"]),
            Participation(**values["participation"]),
            Mechanism(first["mechanism"], first["params"], C),
            Sensitivity(**values["sensitivity"]),
            float(values["noise_multiplier"]),
            None if amplification is None else RunAmplification.from_dict(amplification),
            None if len(streams) == 1 else SecondStream.from_dict(streams[1]),
            statistics,
            UNITS[values["unit"]],
        )


def _law(cohorts: Cohorts, users: int, participation: Participation) -> CohortLaw:
    if not isinstance(cohorts, SampledCohorts):
        raise ValueError(f"cohorts must be drawn at random; got {cohorts.kind!r}.")
    return CohortLaw(cohorts.kind, participation, cohorts.probability(users, participation))


def _calibrated(
    run: Run, mechanism: Mechanism, sensitivity: Sensitivity
) -> tuple[float, RunAmplification | None]:
    """σ for sensitivity 1 that gives ε, and how it was found.

    Without amplification it is the Gaussian mechanism at the worst pattern that (k, b) allows, which holds
    for every outcome of a random schedule. An amplified run uses the rates of the very schedule that will
    draw its cohorts; the accountant's random numbers are new for every run unless it has a noise seed.
    """
    privacy, cohorts = run.privacy, run.cohorts
    if not isinstance(privacy, UserLevel):
        return 0.0, None
    if not privacy.counts_sampling:
        return certified_sigma(privacy.epsilon, privacy.delta), None
    law = _law(cohorts, run.task_source.users, run.participation)
    seed = secrets.randbits(63) if privacy.noise_seed is None else privacy.noise_seed
    C, size, budget = mechanism.factorization, sensitivity.value, (privacy.epsilon, privacy.delta)
    try:
        noise, claim = amplified_run(law, C, size, privacy.adjacency, *budget, seed)
    except ValueError as error:
        raise ConfigError(f"the accountant of {cohorts.kind} cannot calibrate this run: {error}") from None
    return noise / (size * adjacency_factor(privacy.adjacency)), claim
