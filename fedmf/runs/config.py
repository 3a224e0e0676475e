"""The run configuration: one flat, kebab-case TOML file for every engine."""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError, model_validator

from fedmf.accounting import check_sampling
from fedmf.cohorts import SCHEDULES, CohortSchedule, cohort_schedule, contract_of
from fedmf.errors import ConfigError
from fedmf.participation import Participation
from fedmf.runs.keys import (
    CohortKeys,
    DataKeys,
    ExecutionKeys,
    OptimizerKeys,
    PrivacyKeys,
    TrainingKeys,
    parse_parameters,
)
from fedmf.workload import parse_workload

__all__ = ["Config", "ConfigError", "load_config", "parse_assignments", "parse_parameters"]

#: Keys in which two processes of one run may differ without changing what it computes.
WHERE_KEYS = frozenset({"output-dir", "resume"})


def _kebab(name: str) -> str:
    return name.replace("_", "-")


class Config(ExecutionKeys, OptimizerKeys, TrainingKeys, PrivacyKeys, CohortKeys, DataKeys):
    """Everything that decides what a run computes. Keys in files are kebab-case.

    Zero means "derive it" for min-separation, max-participations and bands; −1 draws the noise key
    from the operating system.
    """

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        SCHEDULES[self.schedule].require_accountant(self.accountant)
        check_sampling(self.accountant, self.adjacency)
        if self.accountant != "none":
            self._check_amplified()
        self.cohort_schedule(secret_seed=0)  # only to check it: a run draws a secret seed
        if self.bands > self.rounds:
            raise ValueError(f"bands (p) must be at most rounds n={self.rounds}; got {self.bands}.")
        if self.server_warmup >= self.rounds:
            raise ValueError(f"server-warmup must be below rounds n={self.rounds}; got {self.server_warmup}.")
        for workload in (self.workload, self.second_workload):
            if workload != "auto":
                parse_workload(workload, self.rounds)  # only to check it
        return self

    def _check_amplified(self) -> None:
        """Refuse what an accountant that claims amplification does not cover."""
        claim = f"accountant {self.accountant!r}"
        if not self.private:
            raise ValueError(f"private must be true with {claim}; got false. No noise needs no accountant.")
        if self.user_budgets:
            raise ValueError(
                f"user-budgets must be empty with {claim}; got {self.user_budgets!r}. Leaving users out "
                "changes the sampling that the accountant assumes."
            )
        if self.max_epsilon:
            raise ValueError(
                f"max-epsilon must be 0 with {claim}; got {self.max_epsilon:g}. The amplified epsilon is "
                "known for the whole run only: ask for it with epsilon."
            )

    @property
    def participation(self) -> Participation:
        """The (n, k, b) contract; zeros are derived from users, cohort-size and rounds."""
        n = self.rounds
        derived = contract_of(self.schedule, self.users, self.cohort_size, n, self.bands)
        b = self.min_separation or derived.min_separation
        most = Participation.as_many_as_fit(n, b).max_participations
        needed = derived.max_participations if self.schedule == "cyclic" else most
        return Participation(n, self.max_participations or min(needed, most), b)

    def cohort_schedule(self, secret_seed: int | None = None) -> CohortSchedule:
        """The cohort schedule of this run.

        Args:
            secret_seed: what `fedmf.runs.cohort_seed` derives from the run's key; schedules that draw their
            cohorts
                at random need it. The others use the public seed of the configuration.

        Raises:
            ValueError: the schedule needs a secret seed and none is given.
        """
        seed: int | None = secret_seed if SCHEDULES[self.schedule].secret else self.seed
        if seed is None:
            raise ValueError(f"schedule {self.schedule!r} needs the secret seed of its run; got none.")
        return cohort_schedule(self.schedule, self.users, self.cohort_size, self.participation, seed)

    def to_flat(self) -> dict[str, str | int | float | bool]:
        """All keys and values, kebab-case."""
        return self.model_dump(by_alias=True)

    def computes_the_same_as(self, other: Config) -> bool:
        """Whether both describe the same computation, wherever it is stored."""
        return not self._differences(other)

    def difference(self, other: Config) -> str:
        """One line naming the first key that makes the computations differ."""
        key, mine, theirs = self._differences(other)[0]
        return f"its {key} is {mine!r}, not {theirs!r}"

    def _differences(self, other: Config) -> list[tuple[str, Any, Any]]:
        mine, theirs = self.to_flat(), other.to_flat()
        return [
            (key, mine[key], theirs[key])
            for key in mine
            if key not in WHERE_KEYS and mine[key] != theirs[key]
        ]

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Config:
        """Validate a flat mapping.

        Raises:
            ConfigError: an unknown key (naming the nearest known one) or a value out of range.
        """
        known = {_kebab(name) for name in cls.model_fields}
        for key in values:
            if key not in known:
                near = difflib.get_close_matches(key.replace("_", "-"), known, n=1, cutoff=0.5)
                hint = f"; did you mean {near[0]!r}?" if near else "; see docs/configuration.md for all keys"
                raise ConfigError(f"unknown configuration key {key!r}{hint}")
        try:
            return cls.model_validate({key: _widen(cls, key, value) for key, value in values.items()})
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            message = first["msg"].removeprefix("Value error, ")
            raise ConfigError(
                f"{where} is invalid: {message}; got {first['input']!r}." if where else message
            ) from None


def _widen(cls: type[Config], key: str, value: Any) -> Any:
    """TOML writes 8 where 8.0 is meant: an integer is fine for a real-valued key."""
    annotation = cls.model_fields[key.replace("-", "_")].annotation
    if annotation is not float or type(value) is not int:
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def load_config(path: Path, overrides: Mapping[str, Any] | None = None) -> Config:
    """Read a TOML file and apply overrides.

    Raises:
        ConfigError: unreadable, not TOML, or not a valid configuration.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read configuration {path}: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    return Config.from_mapping({**values, **(overrides or {})})


def parse_assignments(assignments: list[str]) -> dict[str, Any]:
    """``key=value`` pairs with TOML values; a bare word is a string.

    >>> parse_assignments(["epsilon=2", "mechanism=cgd", "mechanism-params='lambda=0.9'"])
    {'epsilon': 2, 'mechanism': 'cgd', 'mechanism-params': 'lambda=0.9'}
    """
    parsed: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set takes key=value; got {assignment!r}.")
        try:
            lines = tomllib.loads(f"value = {value}")
        except ValueError:
            lines = {"value": value.strip()}
        if set(lines) != {"value"}:
            raise ConfigError(f"--set takes one key=value; got {assignment!r}.")
        parsed[key.strip()] = lines["value"]
    return parsed
