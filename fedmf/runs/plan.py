"""The plan of a run: from a configuration to calibrated noise, before any data is touched."""

from __future__ import annotations

import math
import secrets
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from fedmf.accounting import (
    CohortLaw,
    PairRelease,
    RunAmplification,
    RunHeader,
    RunRelease,
    SecondStream,
    SumRelease,
    adjacency_factor,
    amplified_run,
    certified_sigma,
    gaussian_epsilon,
    sampling_claim,
)
from fedmf.cohorts import SampledSchedule
from fedmf.errors import ConfigError
from fedmf.factorization import Mechanism, Sensitivity, build, factorization_from_dict
from fedmf.noise import Domain, NoiseKey
from fedmf.optim import ServerOptimizer
from fedmf.participation import Participation
from fedmf.runs.config import Config
from fedmf.runs.keys import parse_parameters
from fedmf.runs.pair_plan import paired_streams
from fedmf.runs.workloads import run_workload

__all__ = ["Plan", "cohort_seed", "plan_run"]


@dataclass(frozen=True, eq=False)
class Plan:
    """A mechanism with its calibrated noise.

    Args:
        config: the run's configuration.
        mechanism: name, parameters and factorization.
        sensitivity: of `release` under the participation contract, exact or an upper bound.
        noise_multiplier: σ for sensitivity 1; 0 in a run without privacy.
        amplification: how the noise was calibrated for secret cohorts; None with accountant "none".
        second: the stream of second moments; None where the optimizer needs sums alone.
    """

    config: Config
    mechanism: Mechanism
    sensitivity: Sensitivity
    noise_multiplier: float
    amplification: RunAmplification | None = None
    second: SecondStream | None = None

    @property
    def participation(self) -> Participation:
        """The (n, k, b) contract."""
        return self.config.participation

    @property
    def release(self) -> RunRelease:
        """What the run releases, as far as privacy is concerned."""
        return _release(self.config, self.mechanism, self.second)

    @property
    def noise_std(self) -> float:
        """τ₁, standard deviation of the z that enter the sum: ζ·σ·sensitivity, doubled for replace-one."""
        factor = adjacency_factor(self.config.adjacency)
        return self.config.clip_norm * self.noise_multiplier * self.sensitivity.value * factor

    @property
    def second_noise_std(self) -> float:
        """τ₂ = τ₁/√λ, that of the z that enter m times the second moment; 0 without one."""
        return 0.0 if self.second is None else self.noise_std / math.sqrt(self.second.weight)

    def header(self, key: NoiseKey, dimension: int) -> RunHeader:
        """What the ledger must remember to account for the run and to continue it exactly."""
        config = self.config
        return RunHeader(
            participation=self.participation,
            users=config.users,
            cohort_size=config.cohort_size,
            clip_norm=config.clip_norm,
            adjacency=config.adjacency,
            mechanism=self.mechanism.name if config.private else "none",
            params=self.mechanism.params,
            factorization=self.mechanism.factorization.to_dict(),
            sensitivity=self.sensitivity.value,
            sensitivity_kind=self.sensitivity.kind,
            sensitivity_case=self.sensitivity.case,
            noise_multiplier=self.noise_multiplier,
            delta=config.delta,
            epsilon=config.epsilon if config.private else None,
            message_mode=config.messages,
            key_fingerprint=key.fingerprint if config.private else None,
            key_public=key.public,
            dimension=dimension,
            config=config.to_flat(),
            sampling=sampling_claim(config.schedule, config.accountant),
            amplification=None if self.amplification is None else self.amplification.to_dict(),
            second=None if self.second is None else self.second.to_dict(),
        )

    @classmethod
    def from_header(cls, config: Config, header: Mapping[str, Any]) -> Self:
        """The plan of a run that was started before.

        The factorization is the recorded one, never fitted again: another machine's optimiser could end
        at slightly different coefficients, and the noise would no longer fit the rounds released.
        """
        recorded = RunHeader.from_dict(header)
        factorization = factorization_from_dict(dict(recorded.factorization))
        found = recorded.amplification
        return cls(
            config=config,
            mechanism=Mechanism(recorded.mechanism, dict(recorded.params), factorization),
            sensitivity=Sensitivity(
                recorded.sensitivity, recorded.sensitivity_kind, recorded.sensitivity_case
            ),
            noise_multiplier=recorded.noise_multiplier,
            amplification=None if found is None else RunAmplification.from_dict(found),
            second=None if recorded.second is None else SecondStream.from_dict(recorded.second),
        )

    @cached_property
    def _epsilons(self) -> dict[int, float]:
        return {0: 0.0}

    def epsilon_after(self, rounds: int) -> float:
        """ε spent by the worst allowed user once ``rounds`` rounds are released; infinite without noise.

        It is the ε of the leading block of C, which is all that those releases depend on, and it never
        exceeds the ε of the whole run. With an accountant that claims amplification that is the amplified
        one, so the value is min(`known_epsilon_after`, ε): an upper bound, while cohorts stay secret.
        """
        known = self.known_epsilon_after(rounds)
        return known if self.amplification is None else min(known, self.config.epsilon)

    def known_epsilon_after(self, rounds: int) -> float:
        """The same for an observer who knows in which rounds each user took part: never amplified."""
        if rounds not in self._epsilons:
            self._epsilons[rounds] = self._epsilon_after(rounds)
        return self._epsilons[rounds]

    @cached_property
    def allowed_rounds(self) -> int:
        """How many rounds may be released: all n, or as many as keep every user within max-epsilon.

        It depends on the plan alone, so that stopping there reveals nothing.
        """
        limit, n = self.config.max_epsilon, self.participation.rounds
        if limit == 0 or self.epsilon_after(n) <= limit:
            return n
        return bisect_right(range(n + 1), limit, key=self.epsilon_after) - 1

    def _epsilon_after(self, rounds: int) -> float:
        if self.noise_multiplier == 0:
            return float("inf")
        k, b = self.participation.max_participations, self.participation.min_separation
        block = Participation(rounds, min(k, Participation.as_many_as_fit(rounds, b).max_participations), b)
        spent = self.release.leading(rounds).stated(block).value
        spent = min(spent, self.sensitivity.value)
        return gaussian_epsilon(self.noise_multiplier * self.sensitivity.value / spent, self.config.delta)


def plan_run(config: Config, optimizer: ServerOptimizer | None = None) -> Plan:
    """Build the factorization and calibrate its noise.

    Args:
        config: of the run.
        optimizer: the server's, which says whether a second moment must be released beside the sums; None for
            one that needs sums alone.

    Raises:
        ConfigError: an unknown mechanism, parameters it does not take, or a mechanism that the accountant
            does not cover.
    """
    try:
        mechanism, second = _streams(config, optimizer)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    sensitivity = _release(config, mechanism, second).stated(config.participation)
    noise_multiplier, amplification = _calibrated(config, mechanism, sensitivity)
    plan = Plan(config, mechanism, sensitivity, noise_multiplier, amplification, second)
    if plan.allowed_rounds == 0:
        raise ConfigError(
            f"max-epsilon must allow at least one round; got {config.max_epsilon:g}, and the first costs "
            f"{plan.epsilon_after(1):.4g}. Lower epsilon, which makes the noise larger."
        )
    return plan


def _streams(config: Config, optimizer: ServerOptimizer | None) -> tuple[Mechanism, SecondStream | None]:
    """C, or C₁ and the second stream."""
    workload = run_workload(config)
    if optimizer is not None and optimizer.second_moment is not None:
        return paired_streams(config, optimizer, workload)
    params = parse_parameters(config.mechanism_params)
    return build(config.mechanism, config.participation, workload, config.bands or None, params), None


def _release(config: Config, mechanism: Mechanism, second: SecondStream | None) -> RunRelease:
    if second is None:
        return SumRelease(mechanism.factorization)
    return PairRelease(
        mechanism.factorization, second, config.clip_norm, config.adjacency, config.cohort_size
    )


def _calibrated(
    config: Config, mechanism: Mechanism, sensitivity: Sensitivity
) -> tuple[float, RunAmplification | None]:
    """σ for sensitivity 1 that gives ε with the configuration's accountant, and how it was found.

    "none" is the Gaussian mechanism at the worst pattern that (k, b) allows, which holds for every outcome
    of a random schedule. The others use the rates of the very schedule that will draw the cohorts; their
    random numbers are new for every run unless the configuration has a noise seed.
    """
    if not config.private:
        return 0.0, None
    if config.accountant == "none":
        return certified_sigma(config.epsilon, config.delta), None
    # The rate does not depend on the seed, and this schedule draws no cohort of the run.
    schedule = config.cohort_schedule(secret_seed=0)
    assert isinstance(schedule, SampledSchedule)
    law = CohortLaw(config.accountant, schedule.participation, schedule.probability)
    seed = config.noise_seed if config.noise_seed >= 0 else secrets.randbits(63)
    try:
        noise, found = amplified_run(
            law, mechanism.factorization, sensitivity.value, config.epsilon, config.delta, seed
        )
    except (ValueError, RuntimeError) as error:
        raise ConfigError(f"accountant {config.accountant!r} cannot calibrate this run: {error}") from None
    return noise / sensitivity.value, found


def cohort_seed(key: NoiseKey) -> int:
    """The 256-bit seed of random cohorts: a keystream of the run's key that no noise uses.

    It is as secret as the noise, and a resumed run finds it again in the key file.

    >>> cohort_seed(NoiseKey.from_seed(1)) == cohort_seed(NoiseKey.from_seed(1))
    True
    """
    nonce = int(Domain.COHORTS).to_bytes(4, "little") + bytes(8)
    return int.from_bytes(key.keystream(nonce, 0).update(bytes(32)), "little")
