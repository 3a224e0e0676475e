"""The mechanism of a run: which strategy matrices, made for which workloads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from fedmf.mechanisms.choice import (
    GivenFactorization,
    MechanismChoice,
    NamedMechanism,
    mechanism_choice_from_dict,
)
from fedmf.mechanisms.errors import Objective
from fedmf.mechanisms.matrix import Factorization


@dataclass(frozen=True)
class NoiseMechanism:
    """The strategy matrices of a run.

    Args:
        choice: C by name and parameters, or a factorization.
        workload: A₁ that a named C is made for; "auto" for what the optimizer releases.
        objective: which error of the released queries it minimises: rmse, max, last or weights:w1,w2,…
            (`Objective`).
        second_moment_importance: w ≥ 0; above 0 the balance of both noises, and whether they share one
            matrix, minimise the predicted error with the second moment's weighted by w.

    Raises:
        ValueError: the choice is neither (a name alone, or a factorization alone), w is out of range, or the
            objective unknown.
    """

    choice: MechanismChoice = field(default_factory=lambda: NamedMechanism("banded-toeplitz"))
    workload: str = "prefix"
    objective: str = "rmse"
    second_moment_importance: float = 0.0

    def __post_init__(self) -> None:
        if not callable(getattr(self.choice, "build", None)):
            raise ValueError(
                "C (choice) must be NamedMechanism(name, params) or GivenFactorization(C); got "
                f"{self.choice!r}. A run takes a name or a factorization alone as its mechanism, too."
            )
        Objective.parse(self.objective)
        if not 0 <= self.second_moment_importance < math.inf:
            raise ValueError(
                f"w (second_moment_importance) must be finite and at least 0; got "
                f"{self.second_moment_importance!r}."
            )

    @property
    def goal(self) -> Objective:
        """The objective as a value."""
        return Objective.parse(self.objective)

    @property
    def bands(self) -> int | None:
        """p where it was fixed by name."""
        fixed = self.choice.params.get("bands") if isinstance(self.choice, NamedMechanism) else None
        return None if fixed is None else int(fixed)

    def to_dict(self) -> dict[str, Any]:
        """The choice and how it is used, JSON-able."""
        return {
            "choice": self.choice.to_dict(),
            "workload": self.workload,
            "objective": self.objective,
            "second_moment_importance": self.second_moment_importance,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote."""
        return cls(**{**values, "choice": mechanism_choice_from_dict(values["choice"])})


def noise_mechanism(given: NoiseMechanism | MechanismChoice | Factorization | str) -> NoiseMechanism:
    """What a run's mechanism may be given as: the whole value, a choice, a factorization, or a name."""
    if isinstance(given, NoiseMechanism):
        return given
    if isinstance(given, str):
        return NoiseMechanism(NamedMechanism(given))
    if isinstance(given, Factorization):
        return NoiseMechanism(GivenFactorization(given))
    return NoiseMechanism(given)
