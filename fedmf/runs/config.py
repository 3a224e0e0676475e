"""The run configuration: one flat, kebab-case TOML file for every engine."""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedmf.accounting.amplification.sampling import check_sampling
from fedmf.cohorts import SCHEDULES, CohortSchedule, cohort_schedule, contract_of
from fedmf.participation import Participation

__all__ = ["Config", "ConfigError", "load_config", "parse_assignments", "parse_parameters"]

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]

#: Keys in which two processes of one run may differ without changing what it computes.
WHERE_KEYS = frozenset({"output-dir", "resume"})


class ConfigError(ValueError):
    """A configuration that cannot be run; the message is one line."""


def _kebab(name: str) -> str:
    return name.replace("_", "-")


class Config(BaseModel):
    """Everything that decides what a run computes. Keys in files are kebab-case.

    Zero means "derive it" for min-separation, max-participations and bands; −1 draws the noise key
    from the operating system.
    """

    model_config = ConfigDict(alias_generator=_kebab, extra="forbid", frozen=True, strict=True)

    dataset: Literal["digits"] = "digits"
    users: Count = 360
    partition: Literal["iid", "dirichlet"] = "iid"
    dirichlet_alpha: Positive = 0.5
    test_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2
    hidden_units: Count = 32
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0

    rounds: Count = 240
    cohort_size: Count = 36
    schedule: Literal["cyclic", "random", "cyclic-poisson", "balls-in-bins", "b-min-sep"] = "cyclic"
    accountant: Literal["none", "cyclic-poisson", "balls-in-bins", "b-min-sep"] = "none"
    min_separation: Annotated[int, Field(ge=0)] = 0
    max_participations: Annotated[int, Field(ge=0)] = 0

    private: bool = True
    mechanism: str = "banded-toeplitz"
    bands: Annotated[int, Field(ge=0)] = 0
    mechanism_params: str = ""
    epsilon: Positive = 8.0
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    max_epsilon: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    user_budgets: str = ""
    adjacency: Literal["zero-out", "replace-one"] = "zero-out"
    clip_norm: Positive = 0.3
    noise_seed: Annotated[int, Field(ge=-1)] = -1

    local_epochs: Count = 1
    local_batch_size: Count = 8
    local_learning_rate: Positive = 0.5
    server_learning_rate: Positive = 0.1
    server_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    server_nesterov: bool = False
    server_schedule: Literal["constant", "linear", "cosine"] = "constant"
    server_warmup: Annotated[int, Field(ge=0)] = 0

    messages: Literal["slice", "per-user"] = "slice"
    workers: Count = 1
    round_timeout: Positive = 600.0
    evaluate_every: Count = 1
    output_dir: str = ""
    resume: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        parse_parameters(self.mechanism_params)
        SCHEDULES[self.schedule].require_accountant(self.accountant)
        check_sampling(self.accountant, self.adjacency)
        if self.accountant != "none":
            self._check_amplified()
        self.cohort_schedule(secret_seed=0)  # only to check it: a run draws a secret seed
        if self.bands > self.rounds:
            raise ValueError(f"bands (p) must be at most rounds n={self.rounds}; got {self.bands}.")
        if not self.private and (self.max_epsilon or self.user_budgets):
            raise ValueError("private must be true with max-epsilon or user-budgets; got false.")
        if self.server_warmup >= self.rounds:
            raise ValueError(f"server-warmup must be below rounds n={self.rounds}; got {self.server_warmup}.")
        if self.server_nesterov and self.server_momentum == 0:
            raise ValueError("server-momentum must be positive with server-nesterov = true; got 0.")
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


def parse_parameters(text: str) -> dict[str, float]:
    """Mechanism parameters ``name=number``, separated by commas.

    >>> parse_parameters("lambda=0.9, c=-0.01")
    {'lambda': 0.9, 'c': -0.01}
    """
    parameters: dict[str, float] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, value = part.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not equals or not name.strip() or not math.isfinite(number):
            raise ConfigError(f"mechanism parameters must read name=number; got {part!r}.")
        if name.strip() in parameters:
            raise ConfigError(f"mechanism parameters must be given once each; got {name.strip()!r} twice.")
        parameters[name.strip()] = number
    return parameters
