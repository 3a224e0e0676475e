"""A sweep as one value: configurations to compare, what is tuned for each, and the seeds of both."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Final, Literal

from fedmf.accounting import Privacy
from fedmf.errors import ConfigError, one_line
from fedmf.runs import Execution, Run, Scalar, dotted_keys, run_of
from fedmf.runs.tables import known_keys, overridden
from fedmf.sweeps.overlays import check_last, check_lists, described, layered
from fedmf.values import dotted

#: What a seed of a sweep sets, unless the sweep says otherwise.
SEED_KEYS: Final = (
    "data.seed",
    "model.seed",
    "cohorts.seed",
    "client.seed",
    "task.task-seed",
    "privacy.noise-seed",
)
_LARGEST_SEED: Final = 2**31 - 1


@dataclass(frozen=True)
class Cell:
    """One configuration that is compared: a variant at a point of the grid."""

    variant: str
    point: tuple[tuple[str, Scalar], ...]

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.variant, described(dict(self.point)))))


@dataclass(frozen=True)
class PlannedRun:
    """A run of a sweep, whole and with its seed.

    Args:
        keys: of its configuration, dotted.
        digest: of the run that they are; equal runs are carried out once.
        privacy: what it promises.
    """

    keys: Mapping[str, Scalar]
    digest: str
    privacy: Privacy

    @classmethod
    def of(cls, run: Run) -> PlannedRun:
        """Of a run that a configuration describes."""
        recorded = run.to_dict()
        recorded["execution"] = {
            name: value for name, value in recorded["execution"].items() if name not in Execution.PLACE
        }
        text = json.dumps(recorded, sort_keys=True)
        return cls(dotted_keys(run), hashlib.sha256(text.encode()).hexdigest()[:24], run.privacy)


@dataclass(frozen=True)
class Sweep:
    """Runs that differ in some keys, each tuned on seeds of its own and then compared on others.

    A cell is a variant at a point of the grid. For each, the tuned keys take the values whose mean metric
    over the tuning seeds is best; with these it is run on the seeds that are reported. A key that a cell's
    kind does not have is left out of it: runs that become equal are carried out once.

    Args:
        base: the configuration: tables, dotted keys, or a run that keys can describe.
        seeds: on which cells are compared.
        variants: keys of each, by name.
        grid: values of each key; its points are all combinations.
        tuned: values of each key that is chosen for each cell.
        tuning_seeds: on which they are chosen; none of ``seeds``.
        baseline: the variant that the others are compared with, on the same point and seed; the first one if
            left out.
        seed_keys: what a seed sets where the kinds have it. Without privacy.noise-seed noise comes from
            secret keys.
        metric: a column of the runs' metrics; the task's first metric, or the loss, if left out.
        last: the metric is a mean of so many evaluations at the end of a run.
        compare: "difference" or "ratio" of a variant's and the baseline's metric.
        confidence: of the intervals.

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
    baseline: str = ""
    seed_keys: Sequence[str] = SEED_KEYS
    metric: str = ""
    last: int = 1
    compare: Literal["difference", "ratio"] = "difference"
    confidence: float = 0.95

    def __post_init__(self) -> None:
        base = dotted_keys(self.base) if isinstance(self.base, Run) else dotted(self.base)
        own: dict[str, Any] = {
            "base": base,
            "variants": {name: dotted(given) for name, given in self.variants.items()},
            "grid": {name: tuple(values) for name, values in dotted(self.grid).items()},
            "tuned": {name: tuple(values) for name, values in dotted(self.tuned).items()},
            "baseline": self.baseline or next(iter(self.variants), ""),
            **{name: tuple(getattr(self, name)) for name in ("seeds", "tuning_seeds", "seed_keys")},
        }
        for name, value in own.items():
            object.__setattr__(self, name, value)
        self._check_numbers()
        self._check_keys()
        self._check_cells()

    def _check_numbers(self) -> None:
        for name, least in (("seeds", 1), ("tuning_seeds", 1 if self.tuned else 0)):
            seeds = getattr(self, name)
            if not all(type(seed) is int and 0 <= seed <= _LARGEST_SEED for seed in seeds):
                raise ConfigError(f"{name} must be whole numbers in 0..{_LARGEST_SEED}; got {list(seeds)}.")
            if len(seeds) < least or len({*seeds}) < len(seeds):
                raise ConfigError(f"{name} must be {least} or more different ones; got {list(seeds)}.")
        if both := sorted({*self.seeds} & {*self.tuning_seeds}):
            raise ConfigError(
                f"tuning_seeds must share none of the reported seeds; got {both} in both. What is tuned on a "
                "seed looks better on it than it is."
            )
        if self.tuning_seeds and not self.tuned:
            raise ConfigError("tuning_seeds must be left out where nothing is tuned; got some.")
        if not 0 < self.confidence < 1:
            raise ConfigError(f"confidence must lie strictly between 0 and 1; got {self.confidence!r}.")
        check_last(self.last)
        if self.compare not in ("difference", "ratio"):
            raise ConfigError(f"compare must be one of difference, ratio; got {self.compare!r}.")

    def _check_keys(self) -> None:
        if not self.variants or self.baseline not in self.variants:
            known = ", ".join(map(repr, self.variants)) or "none"
            raise ConfigError(f"baseline must be the name of a variant ({known}); got {self.baseline!r}.")
        check_lists("grid", self.grid)
        check_lists("tuned", self.tuned)
        if not self.seed_keys:
            raise ConfigError("seed_keys must name a key or more; got none: all seeds would be one run.")
        places = [("grid", self.grid), ("tuned", self.tuned), ("seed_keys", self.seed_keys)]
        for (first, some), (second, others) in itertools.combinations(places, 2):
            if both := sorted({*some} & {*others}):
                raise ConfigError(f"{both[0]} must be set in one place; got it in {first} and in {second}.")
        for variant, given in self.variants.items():
            for part, named in places:
                if both := sorted({*named} & {*given}):
                    raise ConfigError(
                        f"{both[0]} must be set in one place; got it in variant {variant!r} and in {part}."
                    )
        for part, named in places:
            for name in named:
                if name not in known_keys():
                    run_of({name: 0})  # refuses it and names the nearest key
                cases = itertools.product(self.cells, self.candidates)
                if part != "seed_keys" and not any(name in self.keys_of(*case, None) for case in cases):
                    raise ConfigError(f"[{part}] {name} must be a key of some cell's kinds; none has it.")

    def _check_cells(self) -> None:
        for cell in self.cells:
            for tuned in self.candidates:
                seeds = (*self.seeds[:2], *self.tuning_seeds[:2])
                digests = {self.planned(cell, tuned, seed).digest for seed in seeds}
                if len(digests) < len(seeds):
                    raise ConfigError(f"seed_keys must be keys of cell {cell}; it has none of them.")

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """Every variant at every point of the grid, point by point."""
        points = itertools.product(
            *([(name, value) for value in values] for name, values in self.grid.items())
        )
        return tuple(Cell(variant, point) for point in points for variant in self.variants)

    @cached_property
    def candidates(self) -> tuple[dict[str, Scalar], ...]:
        """All combinations of tuned values; one without any if nothing is tuned."""
        return tuple(
            dict(zip(self.tuned, values, strict=True)) for values in itertools.product(*self.tuned.values())
        )

    def keys_of(self, cell: Cell, tuned: Mapping[str, Scalar], seed: int | None) -> dict[str, Any]:
        """The configuration of a cell with tuned values and a seed, by dotted key."""
        assert isinstance(self.base, Mapping)
        layers = [dict(cell.point), dict(tuned)]
        if seed is not None:
            layers.append(dict.fromkeys(self.seed_keys, seed))
        return layered(overridden(self.base, self.variants[cell.variant]), *layers)

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
            self._planned[named] = PlannedRun.of(self.run(cell, tuned, seed))
        return self._planned[named]

    @cached_property
    def _planned(self) -> dict[Hashable, PlannedRun]:
        return {}

    @cached_property
    def promises(self) -> list[list[Privacy]]:
        """What each different run promises; of a reported one, what it may promise whatever is chosen.

        Reported runs that are one run for every candidate are counted once.
        """
        tuning: dict[str, list[Privacy]] = {}
        reported: dict[tuple[str, ...], list[Privacy]] = {}
        for cell in self.cells:
            if self.tuned:
                for tuned, seed in itertools.product(self.candidates, self.tuning_seeds):
                    run = self.planned(cell, tuned, seed)
                    tuning[run.digest] = [run.privacy]
            for seed in self.seeds:
                runs = [self.planned(cell, tuned, seed) for tuned in self.candidates]
                reported[tuple(run.digest for run in runs)] = [run.privacy for run in runs]
        return [*tuning.values(), *reported.values()]

    def to_dict(self) -> dict[str, Any]:
        """All of it, JSON-able."""
        return asdict(self)
