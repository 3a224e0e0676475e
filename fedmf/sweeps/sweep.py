"""A sweep as one value: configurations to compare, the keys tuned for each, and the seeds of both.

It is checked when it is constructed; `run_sweep` executes its runs.
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
    search_next_to,
    takes_key,
)
from fedmf.statements.privacy import Privacy
from fedmf.values import dotted

#: Keys that a seed of a sweep sets, where the kinds have them.
SEED_KEYS: Final = ("data.seed", "task.seed", "privacy.noise-seed")
_LARGEST_SEED: Final = 2**31 - 1
#: Words for keys that papers compare or tune.
_LABELS: Final = {
    "privacy.epsilon": "ε",
    "privacy.delta": "δ",
    "privacy.clip-norm": "clip norm",
    "cohorts.rounds": "rounds",
    "cohorts.users-per-round": "users per round",
    "mechanism.kind": "mechanism",
    "mechanism.bands": "bands",
    "server.kind": "server optimizer",
    "server.learning-rate": "server learning rate",
    "server.momentum": "server momentum",
    "client.learning-rate": "client learning rate",
    "client.epochs": "client epochs",
    "client.batch-size": "client batch size",
}


def shown_value(value: Scalar) -> str:
    """A value of a key for people."""
    return f"{value:g}" if type(value) is float else str(value)


def comma_list(*parts: str) -> str:
    """The parts that are not empty, separated by commas."""
    return ", ".join(part for part in parts if part)


def described(values: Mapping[str, Scalar]) -> str:
    """Keys and values for people.

    >>> described({"privacy.epsilon": 2.0, "mechanism.kind": "cgd"})
    'privacy.epsilon=2, mechanism.kind=cgd'
    """
    return ", ".join(f"{name}={shown_value(value)}" for name, value in values.items())


def key_label(key: str) -> str:
    """A key in plain words, for papers.

    >>> key_label("privacy.epsilon"), key_label("server.learning-rate"), key_label("data.seed")
    ('ε', 'server learning rate', 'data.seed')
    """
    return _LABELS.get(key, key)


@dataclass(frozen=True)
class Cell:
    """One of the compared configurations: a variant at a point of the grid."""

    variant: str
    point: tuple[tuple[str, Scalar], ...]

    def __str__(self) -> str:
        return comma_list(self.variant, described(dict(self.point)))


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
        """Read a TOML file with the fields in kebab-case.

        The field ``base`` has tables, or the path of a configuration relative to the file. Keys of
        a table ``[set]`` replace the base's.

        Args:
            path: of the file, or the name of one that ships with fedmf.
            overrides: fields of the sweep, and dotted keys that replace the base's and narrow the
                grid and the tuned keys to one value.
            only: the variants to run, next to the baseline; default: all of them.

        Raises:
            ConfigError: unreadable, not TOML, an unknown key or variant, or no valid sweep.
        """
        path = configuration_path(Path(path))
        fields = read_toml(path)
        keys: dict[str, Any] = {}
        for name, value in (overrides or {}).items():
            if "." in name:
                keys[name] = value
            else:
                fields[name] = value
        cls._check_fields(fields, path)
        base = fields["base"]
        source = path
        if isinstance(base, str):
            source = path.parent / Path(base).expanduser()
            base = read_toml(source)
        try:
            fields["base"] = overridden(dotted(base), dotted({**fields.pop("set", {}), **keys}))
            search_next_to(source, fields["base"])
            for table in {"grid", "tuned"} & fields.keys():
                lists = dotted(fields[table])
                for name in lists.keys() & keys.keys():
                    lists[name] = [keys[name]]
                fields[table] = lists
            if only:
                fields["variants"] = _selected_variants(fields, only)
            return cls(**{name.replace("-", "_"): value for name, value in fields.items()})
        except (AttributeError, TypeError) as error:
            raise ConfigError(
                f"sweep {path} must have tables and lists as documented: {error}."
            ) from None

    @classmethod
    def _check_fields(cls, fields: Mapping[str, Any], path: Path) -> None:
        """Reject unknown fields of a file, and a file without base or seeds."""
        known = [entry.name.replace("_", "-") for entry in dataclasses.fields(cls)]
        known.append("set")
        for name in fields:
            if name in known:
                continue
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"it has {', '.join(known)}."
            if near:
                hint = f"did you mean {near[0]!r}?"
            raise ConfigError(f"unknown key {name!r} of a sweep; {hint}")
        for name in {"base", "seeds"} - fields.keys():
            raise ConfigError(f"{name} (of the sweep {path}) must be given; got none.")

    def __post_init__(self) -> None:
        if not isinstance(self.base, Mapping | Run):
            raise ConfigError(
                f"base (of a sweep) must be tables, dotted keys or a Run; got {self.base!r:.40}."
            )
        base = dotted_keys(self.base) if isinstance(self.base, Run) else dotted(self.base)
        variants = {name: dotted(keys) for name, keys in self.variants.items()}
        values: dict[str, Any] = {
            "base": base,
            "variants": variants,
            "tuning_set": dotted(self.tuning_set),
            "baseline": self.baseline or next(iter(variants), ""),
            "grid": _tuples(self.grid),
            "tuned": _tuples(self.tuned),
            "seeds": tuple(self.seeds),
            "tuning_seeds": tuple(self.tuning_seeds),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        if type(self.last) is not int or self.last < 1:
            raise ConfigError(f"last must be an integer of at least 1; got {self.last!r}.")
        self._check_seeds()
        self._check_places()
        self._check_keys()

    def _check_seeds(self) -> None:
        required = {"seeds": 1, "tuning_seeds": 0}
        if self.tuned:
            required["tuning_seeds"] = 1
        for name, least in required.items():
            seeds = getattr(self, name)
            if not all(type(seed) is int and 0 <= seed <= _LARGEST_SEED for seed in seeds):
                raise ConfigError(
                    f"{name} must be integers in 0..{_LARGEST_SEED}; got {list(seeds)}."
                )
            if len(seeds) < least or len({*seeds}) < len(seeds):
                raise ConfigError(
                    f"{name} must be {least} or more different ones; got {list(seeds)}."
                )
        both = sorted({*self.seeds} & {*self.tuning_seeds})
        if both:
            raise ConfigError(
                f"tuning_seeds must share none of the reported seeds; got {both} in both. Results"
                " on tuning seeds are biased."
            )
        if self.tuning_seeds and not self.tuned:
            raise ConfigError("tuning_seeds is set, but the sweep has no table [tuned].")

    def _check_places(self) -> None:
        """Reject a baseline that is no variant, and a key that is set in two places."""
        if self.baseline not in self.variants:
            known = ", ".join(map(repr, self.variants)) or "none"
            raise ConfigError(
                f"baseline must be the name of a variant ({known}); got {self.baseline!r}."
            )
        lists = {"grid": self.grid, "tuned": self.tuned, "seeds": SEED_KEYS}
        places = list(lists.items())
        for name, keys in self.variants.items():
            places.append((f"variant {name!r}", keys))
        for (first, some), (second, others) in itertools.combinations(places, 2):
            both = sorted({*some} & {*others})
            if both and first in lists:
                raise ConfigError(
                    f"{both[0]} must be set in one place; got it in {first} and in {second}."
                )

    def _check_keys(self) -> None:
        """Reject unknown keys, keys that no cell has, and cells that are no configuration."""
        cases = list(itertools.product(self.cells, self.candidates))
        effective = set[str]()
        for cell, tuned in cases:
            effective.update(self.keys_of(cell, tuned, None))
        for name, values in (*self.grid.items(), *self.tuned.items()):
            if name not in known_keys():
                run_of({name: 0})  # raises an error that names the nearest key
            if not values or len({*map(repr, values)}) < len(values):
                raise ConfigError(f"{name} must list different values; got {list(values)}.")
            if name not in effective:
                raise ConfigError(f"{name} must be a key of some cell's kinds; none has it.")
        for case, seed in itertools.product(cases, (*self.seeds[:1], *self.tuning_seeds[:1])):
            self.planned(*case, seed)

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """Every variant at every point of the grid, point by point."""
        cells = []
        for values in itertools.product(*self.grid.values()):
            point = tuple(zip(self.grid, values, strict=True))
            cells.extend(Cell(variant, point) for variant in self.variants)
        return tuple(cells)

    @cached_property
    def candidates(self) -> tuple[dict[str, Scalar], ...]:
        """All combinations of tuned values; a single empty one if nothing is tuned."""
        combinations = itertools.product(*self.tuned.values())
        return tuple(dict(zip(self.tuned, values, strict=True)) for values in combinations)

    def keys_of(self, cell: Cell, tuned: Mapping[str, Scalar], seed: int | None) -> dict[str, Any]:
        """The configuration of a cell with tuned values and a seed, by dotted key."""
        assert isinstance(self.base, Mapping)
        keys = overridden(self.base, self.variants[cell.variant])
        keys = _with_applicable(keys, dict(cell.point))
        keys = _with_applicable(keys, tuned)
        if seed is not None:
            keys = _with_applicable(keys, dict.fromkeys(SEED_KEYS, seed))
        if seed in self.tuning_seeds:
            keys |= self.tuning_set
        return keys

    def tuned_of(self, cell: Cell, tuned: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """The tuned values that a cell's kinds have."""
        keys = self.keys_of(cell, tuned, None)
        return {name: value for name, value in tuned.items() if name in keys}

    def run(self, cell: Cell, tuned: Mapping[str, Scalar], seed: int) -> Run:
        """The run of a cell with tuned values and a seed.

        Raises:
            ConfigError: it is no valid configuration.
        """
        try:
            return run_of(self.keys_of(cell, tuned, seed))
        except ConfigError as error:
            where = comma_list(str(cell), described(tuned))
            raise ConfigError(one_line(f"cell {where}: {error}")) from None

    def planned(self, cell: Cell, tuned: Mapping[str, Scalar], seed: int) -> PlannedRun:
        """The run of a cell with tuned values and a seed, with its digest."""
        case = (cell, tuple(tuned.items()), seed)
        if case not in self._planned:
            run = self.run(cell, tuned, seed)
            tables = run.to_dict()
            # Where a run is computed, and how long it waits, does not change its result.
            tables["execution"] = {**tables["execution"], **dict.fromkeys(Execution.MAY_CHANGE)}
            text = json.dumps(tables, sort_keys=True)
            digest = hashlib.sha256(text.encode()).hexdigest()[:24]
            self._planned[case] = PlannedRun(dotted_keys(run), digest, run.privacy)
        return self._planned[case]

    @cached_property
    def _planned(self) -> dict[tuple[Any, ...], PlannedRun]:
        return {}

    @cached_property
    def promises(self) -> list[list[Privacy]]:
        """The privacy of each different run; of a reported one, of every run that it may become.

        Which of its candidates a reported run has is known only after tuning. Reported runs that
        are one run for every candidate are counted once.
        """
        promises: dict[tuple[str, ...], list[Privacy]] = {}
        for cell in self.cells:
            for tuned, seed in itertools.product(self.candidates, self.tuning_seeds):
                digests, levels = self._alternatives(cell, (tuned,), seed)
                promises[digests] = levels
            for seed in self.seeds:
                digests, levels = self._alternatives(cell, self.candidates, seed)
                promises[digests] = levels
        return list(promises.values())

    def _alternatives(
        self, cell: Cell, candidates: Sequence[Mapping[str, Scalar]], seed: int
    ) -> tuple[tuple[str, ...], list[Privacy]]:
        """The digests and the privacy of the runs of a cell with each of the candidates."""
        digests = []
        levels = []
        for tuned in candidates:
            planned = self.planned(cell, tuned, seed)
            digests.append(planned.digest)
            levels.append(planned.privacy)
        return tuple(digests), levels


def _selected_variants(fields: Mapping[str, Any], only: Sequence[str]) -> dict[str, Any]:
    """The variants of a file that are named, and its baseline."""
    variants = fields.get("variants", {})
    for name in only:
        if name not in variants:
            known = ", ".join(map(repr, variants)) or "none"
            raise ConfigError(f"variant must be one of the sweep's ({known}); got {name!r}.")
    wanted = {*only, fields.get("baseline", next(iter(variants)))}
    return {name: keys for name, keys in variants.items() if name in wanted}


def _tuples(lists: Mapping[str, Any]) -> dict[str, tuple[Scalar, ...]]:
    """Lists of values by dotted key, as tuples."""
    for name, values in dotted(lists).items():
        if not isinstance(values, Sequence) or isinstance(values, str):
            raise ConfigError(f"{name} must be a list of values; got {values!r:.80}.")
    return {name: tuple(values) for name, values in dotted(lists).items()}


def _with_applicable(keys: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Keys with the changes that apply to their kinds, once the kinds among these are set."""
    kinds = {name: value for name, value in changes.items() if name.endswith(".kind")}
    changed = overridden(keys, kinds)
    for name, value in changes.items():
        if takes_key(changed, name):
            changed[name] = value
    return changed
