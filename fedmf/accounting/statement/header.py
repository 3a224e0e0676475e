"""The run header: everything a privacy statement needs, stored once in the ledger."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

from fedmf.accounting.gaussian import adjacency_factor
from fedmf.accounting.release import PairRelease, RunRelease, SecondStream, SumRelease
from fedmf.factorization import factorization_from_dict
from fedmf.participation import Adjacency, Participation
from fedmf.version import SOFTWARE

__all__ = ["NO_SAMPLING", "RunHeader", "sampling_claim"]

NO_SAMPLING: Final = "none: fixed schedule, no amplification claimed"


def sampling_claim(schedule: str, accountant: str) -> str:
    """What a privacy statement says about a run's sampling: first the accountant, then how cohorts were
    drawn.

    >>> sampling_claim("balls-in-bins", "none")
    'none: balls-in-bins cohorts, no amplification claimed'
    """
    if accountant == "none":
        kind = "fixed schedule" if schedule == "cyclic" else f"{schedule} cohorts"
        return f"none: {kind}, no amplification claimed"
    return f"{accountant}: amplification by {schedule} cohorts, which must stay secret"


@dataclass(frozen=True)
class RunHeader:
    """The description of a run that its ledger keeps; enough to account for it from disk alone.

    Args:
        participation: the (n, k, b) contract.
        users: N, how many users could take part.
        cohort_size: the planned users per round, the fixed denominator of the mean; at most N.
        clip_norm: ζ > 0, the bound on the ℓ₂ norm of one user's update.
        adjacency: "zero-out" or "replace-one".
        mechanism: name of the strategy.
        params: its free parameters by ASCII name.
        factorization: the exact C, as `Factorization.to_dict` writes it.
        sensitivity: of `release` under (n, k, b), as used to scale the noise: per unit clip norm and unit of
            `adjacency_factor`; sens_{k,b}(C) of a single stream.
        sensitivity_kind: "exact" or "upper_bound".
        sensitivity_case: which argument shows it.
        noise_multiplier: σ ≥ 0 for sensitivity 1; 0 for a run without privacy. The z that are streamed
            through C⁻¹ into the sum have standard deviation ζ·σ·sensitivity·(adjacency factor); those of a
            second stream have that over √λ.
        delta: δ in (0, 1).
        epsilon: the ε that was asked for; None for a run without privacy.
        message_mode: "per-user" (the server clips again) or "slice" (workers clip and sum).
        key_fingerprint: short public id of the noise key; None for a run without privacy.
        key_public: whether the noise follows from a published seed.
        dimension: d, the number of model parameters that receive noise.
        config: the whole configuration of the run, JSON-able.
        sampling: how cohorts are drawn, as far as privacy uses it.
        amplification: what `RunAmplification.to_dict` wrote; None without amplification by sampling.
        second: what `SecondStream.to_dict` wrote; None for a run that releases sums alone.
        software: name and version of what the run was started with.

    Raises:
        ValueError: a field out of its range.

    >>> RunHeader.from_dict({"users": 10})
    Traceback (most recent call last):
        ...
    ValueError: header (run description) must have the fields of this version; missing: adjacency, ...
    """

    participation: Participation
    users: int
    cohort_size: int
    clip_norm: float
    adjacency: Adjacency
    mechanism: str
    params: Mapping[str, float | int]
    factorization: Mapping[str, Any]
    sensitivity: float
    sensitivity_kind: Literal["exact", "upper_bound"]
    sensitivity_case: str
    noise_multiplier: float
    delta: float
    epsilon: float | None
    message_mode: Literal["per-user", "slice"]
    key_fingerprint: str | None
    key_public: bool
    dimension: int
    config: Mapping[str, Any]
    sampling: str = NO_SAMPLING
    amplification: Mapping[str, Any] | None = None
    second: Mapping[str, Any] | None = None
    software: str = SOFTWARE

    def __post_init__(self) -> None:
        adjacency_factor(self.adjacency)
        for symbol, name in (("N", "users"), ("m", "cohort_size"), ("d", "dimension")):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{symbol} ({name}) must be an integer of at least 1; got {value!r}.")
        if self.cohort_size > self.users:
            raise ValueError(f"m (cohort_size) must be at most N={self.users}; got {self.cohort_size}.")
        for symbol, name in (("ζ", "clip_norm"), ("sens", "sensitivity"), ("ε", "epsilon")):
            value = getattr(self, name)
            if not (name == "epsilon" and value is None) and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{symbol} ({name}) must be positive and finite; got {value!r}.")
        if not (math.isfinite(self.noise_multiplier) and self.noise_multiplier >= 0):
            raise ValueError(
                f"σ (noise_multiplier) must be finite and non-negative; got {self.noise_multiplier!r}."
            )
        if not 0 < self.delta < 1:
            raise ValueError(f"δ (delta) must lie strictly between 0 and 1; got {self.delta!r}.")
        if self.message_mode not in ("per-user", "slice"):
            raise ValueError(f"message_mode must be 'per-user' or 'slice'; got {self.message_mode!r}.")
        if self.sensitivity_kind not in ("exact", "upper_bound"):
            raise ValueError(
                f"sensitivity_kind must be 'exact' or 'upper_bound'; got {self.sensitivity_kind!r}."
            )
        if self.second is not None and self.amplification is not None:
            raise ValueError("amplification must be None with a second stream: no theorem covers the pair.")

    @property
    def relative_noise_std(self) -> float:
        """Standard deviation of the streamed z per unit clip norm: σ·sensitivity·(adjacency factor)."""
        return self.noise_multiplier * self.sensitivity * adjacency_factor(self.adjacency)

    @property
    def federated_evaluation(self) -> bool:
        """Whether models are evaluated on users' own examples, which no ε counts."""
        return self.config.get("federated-evaluation", False) is True

    @property
    def release(self) -> RunRelease:
        """What the run releases: the sums, or the pair of sums and second moments."""
        first = factorization_from_dict(dict(self.factorization))
        if self.second is None:
            return SumRelease(first)
        second = SecondStream.from_dict(self.second)
        return PairRelease(first, second, self.clip_norm, self.adjacency, self.cohort_size)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict; floats survive JSON bit for bit."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        nested = {name: dict(fields[name]) for name in ("params", "factorization", "config")}
        return {**fields, **nested, "participation": dataclasses.asdict(self.participation)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote.

        Raises:
            ValueError: a field is missing, unknown or out of its range.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        missing, unknown = sorted(known - values.keys()), sorted(values.keys() - known)
        if missing or unknown:
            named = (("missing", missing), ("unknown", unknown))
            found = "; ".join(f"{word}: {', '.join(names)}" for word, names in named if names)
            raise ValueError(f"header (run description) must have the fields of this version; {found}.")
        return cls(**{**values, "participation": Participation(**values["participation"])})
