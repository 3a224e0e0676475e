"""The plan of a run: a mechanism with its calibrated noise, and what it spends as rounds are released."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Self

from fedmf.accounting import (
    CohortLaw,
    NoSecondStream,
    Privacy,
    RunAmplification,
    RunRelease,
    SecondStream,
    adjacency_factor,
    gaussian_epsilon,
)
from fedmf.cohorts import Cohorts, SampledCohorts
from fedmf.mechanisms.matrix import factorization_from_dict
from fedmf.mechanisms.registry import Mechanism
from fedmf.mechanisms.sensitivity import Sensitivity
from fedmf.participation import Participation
from fedmf.parts import (
    PARTS,
    FixedClipping,
    Part,
    Setting,
    Stage,
    check_shares,
    parts_from,
    update_factor,
)

if TYPE_CHECKING:
    from fedmf.noise import KeySchedule

_FIXED: Final = (FixedClipping(),)
_SUMS_ALONE: Final = NoSecondStream()


@dataclass(frozen=True, eq=False)
class Plan:
    """A mechanism with its calibrated noise.

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
        second: the stream of second moments; `NoSecondStream` where the optimizer needs sums alone.
        parts: what else is released, and how the clip norm of a round comes about.

    Raises:
        ValueError: a value out of its range, or a claim that no theorem covers.
    """

    privacy: Privacy
    cohorts: Cohorts
    users: int
    participation: Participation
    mechanism: Mechanism
    sensitivity: Sensitivity
    noise_multiplier: float
    amplification: RunAmplification | None = None
    second: NoSecondStream = _SUMS_ALONE
    parts: tuple[Part, ...] = _FIXED

    def __post_init__(self) -> None:
        if (
            isinstance(self.users, bool)
            or not isinstance(self.users, int)
            or self.users < self.cohorts.users_per_round
        ):
            raise ValueError(
                f"N (users) must be an integer of at least "
                f"m={self.cohorts.users_per_round}; got {self.users!r}."
            )
        if not 0 < self.sensitivity.value < math.inf:
            raise ValueError(
                f"sens (sensitivity) must be positive and finite; got {self.sensitivity.value!r}."
            )
        if self.sensitivity.kind not in ("exact", "upper_bound"):
            raise ValueError(
                f"kind (of the sensitivity) must be 'exact' or 'upper_bound'; got {self.sensitivity.kind!r}."
            )
        if not 0 <= self.noise_multiplier < math.inf:
            raise ValueError(
                f"σ (noise_multiplier) must be finite and non-negative; got {self.noise_multiplier!r}."
            )
        if self.privacy.counts_sampling != (self.amplification is not None):
            raise ValueError("amplification must be recorded exactly where the privacy asked for counts it.")
        amplified = self.amplification is not None
        if amplified:
            self.release.check_secret_cohorts()
        setting = Setting(amplified, self.release.paired)
        check_shares(self.parts)
        for part in self.parts:
            part.check(setting)

    @property
    def release(self) -> RunRelease:
        """What the run releases, as far as privacy is concerned: the sums, or the pair of streams."""
        privacy, C = self.privacy, self.mechanism.factorization
        return self.second.beside(C, privacy.clip_norm, privacy.adjacency, self.cohorts.users_per_round)

    def stage(self, keys: KeySchedule) -> Stage:
        """What parts need of it in order to release something."""
        return Stage(
            self.mechanism.factorization,
            self.cohorts.users_per_round,
            self.privacy.clip_norm,
            self.relative_noise_std,
            keys,
        )

    @property
    def relative_noise_std(self) -> float:
        """Standard deviation of the streamed z per unit clip norm: σ·sensitivity·(adjacency factor).

        Where the clip norm adapts it is that of (a·x/ζ_t, b·s), what a user enters the release with.
        """
        return self.noise_multiplier * self.sensitivity.value * adjacency_factor(self.privacy.adjacency)

    @property
    def noise_std(self) -> float:
        """τ₁, absolute standard deviation of the z that enter the sum; where ζ adapts, that of round 0."""
        return self.noise_std_at(self.privacy.clip_norm)

    def unit(self, clip_norm: float) -> float:
        """In what unit the server sees the mean of updates clipped to this norm."""
        return math.prod(part.unit(clip_norm) for part in self.parts)

    def noise_std_at(self, clip_norm: float) -> float:
        """The same for rounds whose updates are clipped to ζ_t."""
        factor = adjacency_factor(self.privacy.adjacency) * update_factor(self.parts)
        return clip_norm * self.noise_multiplier * self.sensitivity.value * factor

    @property
    def second_noise_std(self) -> float:
        """τ₂ = τ₁/√λ, that of the z that enter m times the second moment; 0 without one."""
        return self.second.noise_std(self.noise_std)

    def spent_sensitivity(self, rounds: int) -> float:
        """The sensitivity of what the first ``rounds`` rounds release: that of the leading block of C."""
        k, b = self.participation.max_participations, self.participation.min_separation
        block = Participation(rounds, min(k, Participation.as_many_as_fit(rounds, b).max_participations), b)
        return self.release.leading(rounds).stated(block).value

    def multiplier_after(self, rounds: int) -> float:
        """σ of a Gaussian mechanism as private as the first ``rounds`` ≥ 1 rounds, for the worst user."""
        spent = min(self.spent_sensitivity(rounds), self.sensitivity.value)
        return self.noise_multiplier * self.sensitivity.value / spent

    @cached_property
    def _epsilons(self) -> dict[int, float]:
        return {0: 0.0}

    def known_epsilon_after(self, rounds: int) -> float:
        """ε spent by the worst allowed user once ``rounds`` rounds are released; infinite without noise.

        Against an observer who knows in which rounds each user took part: never amplified. It never exceeds
        that of the whole run.
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

    def law(self) -> CohortLaw:
        """How the cohorts are drawn.

        Raises:
            ValueError: they are not drawn at random.
        """
        if not isinstance(self.cohorts, SampledCohorts):
            raise ValueError(f"cohorts must be drawn at random; got {self.cohorts.kind!r}.")
        probability = self.cohorts.probability(self.users, self.participation)
        return CohortLaw(self.cohorts.kind, self.participation, probability)

    def to_dict(self) -> dict[str, Any]:
        """What a record keeps beside privacy and cohorts, JSON-able; floats survive JSON bit for bit.

        A round is a list of streams: the sums of updates, then second moments if there are any.
        """
        updates = {
            "stream": "updates",
            "mechanism": self.mechanism.name,
            "params": dict(self.mechanism.params),
            "factorization": self.mechanism.factorization.to_dict(),
        }
        return {
            "users": self.users,
            "participation": dataclasses.asdict(self.participation),
            "streams": [updates, *self.second.streams()],
            "sensitivity": dataclasses.asdict(self.sensitivity),
            "noise_multiplier": self.noise_multiplier,
            "amplification": None if self.amplification is None else self.amplification.to_dict(),
            **{part.name: part.to_dict() for part in self.parts},
        }

    @classmethod
    def from_dict(cls, privacy: Privacy, cohorts: Cohorts, values: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote.

        The factorization is the recorded one, never fitted again: another machine's optimiser could end
        at slightly different coefficients, and the noise would no longer fit the rounds released.

        Raises:
            ValueError: a field is missing, unknown or out of its range.
        """
        try:
            given = dict(values)
            streams = [dict(stream) for stream in given.pop("streams")]
            named = [stream.pop("stream") for stream in streams]
            if named not in (["updates"], ["updates", "second moments"]):
                raise ValueError(f"streams (of a round) must be updates and second moments; got {named}.")
            first, amplification = streams[0], given.pop("amplification")
            return cls(
                privacy,
                cohorts,
                participation=Participation(**given.pop("participation")),
                mechanism=Mechanism(
                    first["mechanism"], first["params"], factorization_from_dict(first["factorization"])
                ),
                sensitivity=Sensitivity(**given.pop("sensitivity")),
                amplification=None if amplification is None else RunAmplification.from_dict(amplification),
                parts=parts_from(values),
                second=NoSecondStream() if len(streams) == 1 else SecondStream.from_dict(streams[1]),
                **{name: value for name, value in given.items() if name not in PARTS},
            )
        except (KeyError, TypeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise ValueError(f"plan (of a run) must have the fields of this version; {reason}.") from None
