"""The plan of a run's private evaluation: a second stream of sums, with contract and noise."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray

from fedmf.accounting import certified_epsilon, certified_sigma, gaussian_mu
from fedmf.factorization import Mechanism, Sensitivity, factorization_from_dict, query_variances
from fedmf.participation import Participation
from fedmf.parts.own_stream import OwnStream, joint_multiplier
from fedmf.workload import ToeplitzWorkload, parse_workload

#: The two that a joint multiplier is made of are rounded up, by far more than it is rounded down.
_UP: Final = 1 + 2.0**-38
_TRIES: Final = 40


def shared_multipliers(epsilon: float, delta: float, share: float) -> tuple[float, float]:
    """(σ of training, σ of evaluation) whose μ² are in the proportion 1 − share : share, together (ε, δ).

    Guarantees:
        `certified_epsilon` of their `joint_multiplier` is at most ε.

    Raises:
        RuntimeError: the accountants never agree to that.
    """
    sigma, up = certified_sigma(epsilon, delta), _UP
    for _ in range(_TRIES):
        pair = up * sigma / math.sqrt(1 - share), up * sigma / math.sqrt(share)
        if certified_epsilon(joint_multiplier(*pair), delta) <= epsilon:
            return pair
        up = 1 + 2 * (up - 1)
    raise RuntimeError(f"no noise was certified for ε={epsilon!r} and share={share!r}.")


def evaluation_count(rounds: int, every: int) -> int:
    """E, evaluations after every so many rounds and after the last: ⌈n/every⌉."""
    return -(-rounds // every)


@dataclass(frozen=True, eq=False)
class EvaluationPlan(OwnStream):
    """A second stream of sums: what users' own examples say of the model after t_e rounds, e = 0 … E−1.

    A user's row is a vector of norm at most √q: q numbers in [−1, 1]. The z streamed through C_e⁻¹ into the
    sum of rows have standard deviation √q·σ_e·sens(C_e)·(adjacency factor).

    Args:
        rounds: n, the horizon of training.
        every: t_e = min(every·(e + 1), n).
        size: m_e, users asked in each evaluation: the fixed denominator.
        participation: (E, k_e, b_e).
        mechanism: name, parameters and C_e.
        workload: A, by name: released are means with the weights of its rows.
        sensitivity: of C_e under the contract.
        noise_multiplier: σ_e > 0 for sensitivity 1.
        share: of the squared μ of the run's (ε, δ).
        ranges: name and public ends of each number that users say, q of them, in the order of a row.

    Raises:
        ValueError: a value out of its range, or horizons that do not fit together.
    """

    name: ClassVar[str] = "evaluation"
    ledger: ClassVar[str] = "evaluation.sqlite"
    plural: ClassVar[str] = "evaluations"
    without_losses: ClassVar[str] = "who judged the models that were lost is not known"

    rounds: int
    every: int
    size: int
    participation: Participation
    mechanism: Mechanism
    workload: str
    sensitivity: Sensitivity
    noise_multiplier: float
    share: float
    ranges: tuple[tuple[str, float, float], ...]

    def __post_init__(self) -> None:
        for symbol, name in (("n", "rounds"), ("every", "every"), ("m_e", "size")):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{symbol} ({name} of evaluations) must be an integer ≥ 1; got {value!r}.")
        expected = evaluation_count(self.rounds, self.every)
        for name, rounds in (
            ("participation", self.participation.rounds),
            ("C_e", self.mechanism.factorization.rounds),
        ):
            if rounds != expected:
                raise ValueError(f"E ({name} of evaluations) must be {expected}; got {rounds}.")
        for symbol, name, value in (
            ("sens", "sensitivity", self.sensitivity.value),
            ("σ_e", "noise_multiplier", self.noise_multiplier),
        ):
            if not 0 < value < math.inf:
                raise ValueError(f"{symbol} ({name} of evaluations) must be positive, finite; got {value!r}.")
        if not 0 < self.share < 1:
            raise ValueError(f"share (of μ²) must lie strictly between 0 and 1; got {self.share!r}.")
        if not self.ranges or len({name for name, _, _ in self.ranges}) < len(self.ranges):
            raise ValueError(f"ranges (of what users say) must name each number once; got {self.ranges!r}.")
        for name, low, high in self.ranges:
            if not (low < high and math.isfinite(high - low)):
                raise ValueError(
                    f"range (of {name}) must have finite ends, the lower below the upper; got "
                    f"({low!r}, {high!r})."
                )
        if (self._row_sums <= 0).any():
            raise ValueError(
                f"A (workload of evaluations) must have rows of positive sum; got {self.workload!r}."
            )

    @classmethod
    def among(cls, streams: Iterable[OwnStream]) -> Self | None:
        """That of a run with these streams; None without private evaluations."""
        return next((own for own in streams if isinstance(own, cls)), None)

    def check_beside(self, rounds: int, users: int, amplified: bool, noisy: bool) -> None:
        """Refuse amplification, no noise, another n, and more users asked than there are."""
        if amplified:
            raise ValueError(
                "amplification must be None with private evaluation: no theorem covers secret cohorts there."
            )
        if not noisy:
            raise ValueError("evaluation must be None in a run without noise.")
        if self.rounds != rounds:
            raise ValueError(f"n (rounds of the evaluation plan) must be {rounds}; got {self.rounds}.")
        if self.size > users:
            raise ValueError(f"m_e (size of evaluations) must be at most N={users}; got {self.size}.")

    def after(self, e: int) -> int:
        """t_e, released rounds before evaluation e."""
        return min(self.every * (e + 1), self.rounds)

    def due(self, rounds: int) -> int | None:
        """e with t_e = ``rounds``, if there is one."""
        if rounds == self.rounds:
            return self.count - 1
        return rounds // self.every - 1 if rounds > 0 and rounds % self.every == 0 else None

    def released_by(self, rounds: int) -> int:
        """How many evaluations belong to the first ``rounds`` rounds, the one after the last of them too."""
        return self.count if rounds >= self.rounds else rounds // self.every

    def least_released_by(self, rounds: int) -> int:
        """How many must have been released by then: the one after the last round may be about to be."""
        return self.released_by(rounds) - (self.due(rounds) is not None)

    @property
    def norm(self) -> float:
        """√q, the largest norm of a user's row."""
        return math.sqrt(len(self.ranges))

    def stds(self, e: int, adjacency: str) -> dict[str, float]:
        """Standard deviations of the noise in what evaluation e shows, by name.

        With [c − h, c + h] the range that is h·√q·σ_e·s_e·f·‖(A C_e⁻¹)_e‖/(m_e (A 1)_e).

        Args:
            e: of E.
            adjacency: "zero-out" or "replace-one".
        """
        scale = self.norm * self.relative_noise_std(adjacency) * float(self.relative_errors[e]) / self.size
        return {name: (high - low) / 2 * scale for name, low, high in self.ranges}

    @property
    def queries(self) -> ToeplitzWorkload:
        """A."""
        return parse_workload(self.workload, self.count)

    def weights(self, e: int) -> NDArray[np.float64]:
        """Row e of A up to its diagonal, divided by its sum: how much each release counts, shape (e + 1,)."""
        row = self._columns[: e + 1] * self.queries.coefficients[e::-1]
        return row / row.sum()

    @cached_property
    def _columns(self) -> NDArray[np.float64]:
        columns = self.queries.column_weights
        return np.ones(self.count) if columns is None else columns

    @cached_property
    def _row_sums(self) -> NDArray[np.float64]:
        """(A 1)_e, shape (E,)."""
        sums = np.convolve(self.queries.coefficients, self._columns)[: self.count]
        rows = self.queries.row_weights
        return sums if rows is None else rows * sums

    @cached_property
    def relative_errors(self) -> NDArray[np.float64]:
        """‖(A C_e⁻¹)_e‖/(A 1)_e: the standard deviation of curve point e per unit of z, shape (E,)."""
        return np.sqrt(query_variances(self.mechanism.factorization, self.queries)) / self._row_sums

    def facts(self, adjacency: str, released: int) -> dict[str, Any]:
        """Contract, noise and the largest standard deviation of what is shown, by the name of each number."""
        stds = [self.stds(e, adjacency) for e in range(self.count)]
        return {
            "evaluations": self.count,
            "evaluations_released": released,
            "every": self.every,
            "size": self.size,
            "share": self.share,
            "metrics": {
                name: {"low": low, "high": high, "largest_std": max(std[name] for std in stds)}
                for name, low, high in self.ranges
            },
            "max_participations": self.participation.max_participations,
            "min_separation": self.participation.min_separation,
            "mechanism": self.mechanism.name,
            "params": dict(self.mechanism.params),
            "workload": self.workload,
            "sensitivity": self.sensitivity.value,
            "sensitivity_kind": self.sensitivity.kind,
            "noise_multiplier": self.noise_multiplier,
            "mu_planned": gaussian_mu(self.noise_multiplier),
        }

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict; floats survive JSON bit for bit."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {
            **values,
            "participation": dataclasses.asdict(self.participation),
            "sensitivity": dataclasses.asdict(self.sensitivity),
            "mechanism": {
                "name": self.mechanism.name,
                "params": dict(self.mechanism.params),
                "factorization": self.mechanism.factorization.to_dict(),
            },
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote; C_e is the recorded one, never fitted again."""
        named = dict(values["mechanism"])
        factorization = factorization_from_dict(named.pop("factorization"))
        return cls(
            **{
                **values,
                "participation": Participation(**values["participation"]),
                "sensitivity": Sensitivity(**values["sensitivity"]),
                "mechanism": Mechanism(**named, factorization=factorization),
                "ranges": tuple((str(name), float(low), float(high)) for name, low, high in values["ranges"]),
            }
        )
