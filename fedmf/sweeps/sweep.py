"""A sweep as one value: configurations to compare, the keys tuned for each, and the seeds of
both.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from fedmf.errors import ConfigError, one_line
from fedmf.runs.run import Execution, Run
from fedmf.runs.tables.configuration import (
    Scalar,
    configuration_path,
    dotted_keys,
    known_keys,
    overridden,
    read_toml,
    run_of,
    takes_key,
)
from fedmf.statements.privacy import Privacy
from fedmf.values import dotted

#: What a seed of a sweep sets, where the kinds have it.
SEED_KEYS: Final = ("data.seed", "task.seed", "privacy.noise-seed")
_LARGEST_SEED: Final = 2**31 - 1


def described(values: Mapping[str, Scalar]) -> str:
    """Keys and values for people.

    >>> described({"privacy.epsilon": 2.0, "mechanism.kind": "cgd"})
    'privacy.epsilon=2, mechanism.kind=cgd'
    """
    return ", ".join(
        f"{name}={value:g}" if type(value) is float else f"{name}={value}"
        for name, value in values.items()
    )


@dataclass(frozen=True)
class Cell:
    """One of the compared configurations: a variant at a point of the grid."""

    variant: str
    point: tuple[tuple[str, Scalar], ...]

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.variant, described(dict(self.point)))))


class PlannedRun(NamedTuple):
    """A run of a sweep: its dotted keys, a digest of what it computes, and what it promises."""

    keys: Mapping[str, Scalar]
    digest: str
    privacy: Privacy


@dataclass(frozen=True)
class Sweep:
    """Runs that differ in some keys, tuned on some seeds and compared on others.

    A cell is a variant at a point of the grid. For each cell, the tuned keys take the values with
    the best mean metric over the tuning seeds; the cell then runs on the reported seeds. Keys that
    a cell's kinds lack are ignored, and runs that become equal are executed once.

    Args:
        base: the configuration: tables, dotted keys, or a run that keys can describe.
        seeds: the seeds on which cells are compared.
        variants: keys of each variant, by name.
        grid: values of each key; all combinations are run.
        tuned: candidate values of each tuned key.
        tuning_seeds: the seeds for tuning, which must differ from ``seeds``.
        tuning_set: keys of tuning runs only, for example to tune on other data.
        baseline: the variant with which the others are compared, at the same point and seed.
        metric: a column of the runs' metrics; default: the task's first metric, or the loss.
        last: number of final evaluations over which the metric is averaged.

    Raises:
        ConfigError: an unknown key, seeds that overlap, or a cell that is no valid configuration.

    >>> sweep = Sweep({}, seeds=(0, 1), grid={"privacy.epsilon": (2.0, 8.0)})
    >>> [str(cell) for cell in sweep.cells]
    ['base, privacy.epsilon=2', 'base, privacy.epsilon=8']
    """

    base: Mapping[str, Any] | Run
    seeds: Sequence[int]
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"base": {}})
    grid: Mapping[str, Sequence[Scalar]] = field(default_factory=dict)
    tuned: Mapping[str, Sequence[Scalar]] = field(default_factory=dict)
    tuning_seeds: Sequence[int] = ()
    tuning_set: Mapping[str, Any] = field(default_factory=dict)
    baseline: str = ""
    metric: str = ""
    last: int = 1

    @classmethod
    def from_config(
        cls, path: str | Path, overrides: Mapping[str, Any] | None = None, only: Sequence[str] = ()
    ) -> Self:
        """Read a TOML file: its fields in kebab-case, ``base`` as tables or as the path of a
        configuration.

        A path is relative to the file. Keys of a table ``[set]`` replace the base's.

        Args:
            path: of the file, or the name of one that ships with fedmf.
            overrides: fields of the sweep, and dotted keys that replace the base's and narrow the
                grid and the tuned keys to one value.
            only: the variants to run, next to the baseline; default: all of them.

        Raises:
            ConfigError: unreadable, not TOML, an unknown key or variant, or no valid sweep.
        """
        path = configuration_path(Path(path))
        more = overrides or {}
        given = read_toml(path) | {name: value for name, value in more.items() if "." not in name}
        known = [*(entry.name.replace("_", "-") for entry in dataclasses.fields(cls)), "set"]
        for name in given.keys() - known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}."
            raise ConfigError(f"unknown key {name!r} of a sweep; {hint}")
        for name in {"base", "seeds"} - given.keys():
            raise ConfigError(f"{name} (of the sweep {path}) must be given; got none.")
        fields = given
        base = given["base"]
        there = given.pop("set", {})
        if isinstance(base, str):
            base = read_toml(path.parent / Path(base).expanduser())
        there = {**there, **{name: value for name, value in more.items() if "." in name}}
        try:
            fields["base"] = overridden(dotted(base), dotted(there))
            for lists in {"grid", "tuned"} & fields.keys():
                listed = dotted(fields[lists])
                fields[lists] = listed | {
                    name: [more[name]] for name in listed.keys() & more.keys()
                }
            if only:
                variants = fields.get("variants", {})
                if unknown := [name for name in only if name not in variants]:
                    names = ", ".join(map(repr, variants)) or "none"
                    raise ConfigError(
                        f"variant must be one of the sweep's ({names}); got {unknown[0]!r}."
                    )
                kept = {*only, fields.get("baseline", next(iter(variants)))}
                fields["variants"] = {name: keys for name, keys in variants.items() if name in kept}
            return cls(**{name.replace("-", "_"): value for name, value in fields.items()})
        except (AttributeError, TypeError) as error:
            raise ConfigError(
                f"sweep {path} must have tables and lists as documented: {error}."
            ) from None

    def __post_init__(self) -> None:
        own: dict[str, Any] = {
            "base": dotted_keys(self.base) if isinstance(self.base, Run) else dotted(self.base),
            "variants": {name: dotted(given) for name, given in self.variants.items()},
            "tuning_set": dotted(self.tuning_set),
            "baseline": self.baseline or next(iter(self.variants), ""),
            "grid": {name: tuple(values) for name, values in dotted(self.grid).items()},
            "tuned": {name: tuple(values) for name, values in dotted(self.tuned).items()},
            "seeds": tuple(self.seeds),
            "tuning_seeds": tuple(self.tuning_seeds),
        }
        for name, value in own.items():
            object.__setattr__(self, name, value)
        if type(self.last) is not int or self.last < 1:
            raise ConfigError(f"last must be an integer of at least 1; got {self.last!r}.")
        self._check_seeds()
        self._check_keys()

    def _check_seeds(self) -> None:
        for name, least in (("seeds", 1), ("tuning_seeds", 1 if self.tuned else 0)):
            seeds = getattr(self, name)
            if not all(type(seed) is int and 0 <= seed <= _LARGEST_SEED for seed in seeds):
                raise ConfigError(
                    f"{name} must be integers in 0..{_LARGEST_SEED}; got {list(seeds)}."
                )
            if len(seeds) < least or len({*seeds}) < len(seeds):
                raise ConfigError(
                    f"{name} must be {least} or more different ones; got {list(seeds)}."
                )
        if both := sorted({*self.seeds} & {*self.tuning_seeds}):
            raise ConfigError(
                f"tuning_seeds must share none of the reported seeds; got {both} in both. Results"
                " on tuning seeds are biased."
            )
        if self.tuning_seeds and not self.tuned:
            raise ConfigError("tuning_seeds is set, but the sweep has no table [tuned].")

    def _check_keys(self) -> None:
        """Each key is known, set in one place, and one of some cell; each cell is a valid
        configuration.
        """
        if self.baseline not in self.variants:
            known = ", ".join(map(repr, self.variants)) or "none"
            raise ConfigError(
                f"baseline must be the name of a variant ({known}); got {self.baseline!r}."
            )
        lists = {"grid": self.grid, "tuned": self.tuned, "seeds": dict.fromkeys(SEED_KEYS, (0,))}
        places = [
            *lists.items(),
            *((f"variant {name!r}", keys) for name, keys in self.variants.items()),
        ]
        for (first, some), (second, others) in itertools.combinations(places, 2):
            if (both := sorted({*some} & {*others})) and first in lists:
                raise ConfigError(
                    f"{both[0]} must be set in one place; got it in {first} and in {second}."
                )
        cases = [*itertools.product(self.cells, self.candidates)]
        for name, values in (*self.grid.items(), *self.tuned.items()):
            if name not in known_keys():
                run_of({name: 0})  # refuses it and names the nearest key
            if not values or len({*map(repr, values)}) < len(values):
                raise ConfigError(f"{name} must list different values; got {list(values)}.")
            if not any(name in self.keys_of(*case, None) for case in cases):
                raise ConfigError(f"{name} must be a key of some cell's kinds; none has it.")
        for case, seed in itertools.product(cases, (*self.seeds[:1], *self.tuning_seeds[:1])):
            self.planned(*case, seed)

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """Every variant at every point of the grid, point by point."""
        axes = ([(name, value) for value in values] for name, values in self.grid.items())
        return tuple(
            Cell(name, point) for point in itertools.product(*axes) for name in self.variants
        )

    @cached_property
    def candidates(self) -> tuple[dict[str, Scalar], ...]:
        """All combinations of tuned values; one without any if nothing is tuned."""
        every = itertools.product(*self.tuned.values())
        return tuple(dict(zip(self.tuned, values, strict=True)) for values in every)

    def keys_of(self, cell: Cell, tuned: Mapping[str, Scalar], seed: int | None) -> dict[str, Any]:
        """The configuration of a cell with tuned values and a seed, by dotted key."""
        assert isinstance(self.base, Mapping)
        found = overridden(self.base, self.variants[cell.variant])
        for layer in (
            dict(cell.point),
            tuned,
            {} if seed is None else dict.fromkeys(SEED_KEYS, seed),
        ):
            kinds = {name: value for name, value in layer.items() if name.endswith(".kind")}
            found = overridden(found, kinds)
            found |= {name: value for name, value in layer.items() if takes_key(found, name)}
        return {**found, **(self.tuning_set if seed in self.tuning_seeds else {})}

    def tuned_of(self, cell: Cell, tuned: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """The tuned values that a cell has."""
        values = self.keys_of(cell, tuned, None)
        return {name: value for name, value in tuned.items() if name in values}

    def run(self, cell: Cell, tuned: Mapping[str, Scalar], seed: int) -> Run:
        """One run.

        Raises:
            ConfigError: it is no valid configuration.
        """
        try:
            return run_of(self.keys_of(cell, tuned, seed))
        except ConfigError as error:
            where = ", ".join(filter(None, (str(cell), described(tuned))))
            raise ConfigError(one_line(f"cell {where}: {error}")) from None

    def planned(self, cell: Cell, tuned: Mapping[str, Scalar], seed: int) -> PlannedRun:
        """One run with its digest."""
        named = (cell, tuple(tuned.items()), seed)
        if named not in self._planned:
            run = self.run(cell, tuned, seed)
            place = {"execution": {**run.to_dict()["execution"], **dict.fromkeys(Execution.PLACE)}}
            text = json.dumps({**run.to_dict(), **place}, sort_keys=True)
            digest = hashlib.sha256(text.encode()).hexdigest()[:24]
            self._planned[named] = PlannedRun(dotted_keys(run), digest, run.privacy)
        return self._planned[named]

    @cached_property
    def _planned(self) -> dict[tuple[Any, ...], PlannedRun]:
        return {}

    @cached_property
    def promises(self) -> list[list[Privacy]]:
        """What each different run promises; of a reported one, what it may promise whatever is
        chosen.

        Reported runs that are one run for every candidate are counted once.
        """
        found: dict[tuple[str, ...], list[Privacy]] = {}
        for cell in self.cells:
            tuning = (([tuned], seed) for tuned in self.candidates for seed in self.tuning_seeds)
            for candidates, seed in (*tuning, *((self.candidates, seed) for seed in self.seeds)):
                runs = [self.planned(cell, tuned, seed) for tuned in candidates]
                found[tuple(run.digest for run in runs)] = [run.privacy for run in runs]
        return [*found.values()]
