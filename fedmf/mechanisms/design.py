"""Compare mechanisms for a participation contract: sensitivity, error, noise and memory of each.

`design` is behind `fedmf.design` and the command `fedmf design`. It builds every mechanism through
the registry, and computes a row of plain numbers for each, in several processes where that pays.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from fedmf.matrices.sensitivity import Sensitivity, sensitivity_of
from fedmf.mechanisms.choice import MechanismChoice, NamedMechanism
from fedmf.mechanisms.design_cache import THREAD_LIMITS, single_threaded
from fedmf.mechanisms.objective import Objective, errors
from fedmf.mechanisms.registry import (
    BuiltMechanism,
    accepted_parameters,
    check_rounds,
    names_to_compare,
    optional_parameters,
    variant_of,
)
from fedmf.mechanisms.workload import ToeplitzWorkload, parse_workload
from fedmf.participation import Participation

Row = dict[str, Any]
#: The mechanisms of a comparison without names, from the simplest to the smallest error.
DEFAULT_MECHANISMS: Final = ("identity", "cgd", "bisr", "blt", "banded-toeplitz", "banded", "dense")
#: Smaller differences in error do not show in the accuracy of a model (docs/results/benchmark.md).
NEGLIGIBLE: Final = 0.05
# A coordinate of one round on one 2.5 GHz core, measured with simulations/benchmarks/noise.py.
_NANOSECONDS_PER_DRAW: Final = 10.0
_NANOSECONDS_PER_STORED: Final = 2.0
# Parameters that decide how many vectors are stored, and their excess over that number: p bands
# store p − 1 vectors.
_SIZES: Final = {"bands": 1, "buffers": 0}
# Makes up for a product and a quotient that were rounded up.
_DOWN: Final = 1 - 2.0**-50
# Processor seconds for which this process works alone: others would have to load torch and SciPy,
# which takes each of them half as long.
_ALONE: Final = 3.0


def design(
    participation: Participation,
    mechanisms: Sequence[str | MechanismChoice] | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    adjacency: str = "zero-out",
    bands: int | None = None,
    params: Mapping[str, float | int] | None = None,
    workload: str = "prefix",
    memory_vectors: int | None = None,
    progress: Callable[[str], None] | None = None,
    sampling: str = "none",
    arrived: Callable[[Row], None] | None = None,
    processes: int | None = 1,
    objective: str | Objective = "rmse",
    noise_multiplier: float | None = None,
    all_mechanisms: bool = False,
) -> list[dict[str, Any]]:
    """Compare mechanisms without training: one row per mechanism, ready for JSON.

    Args:
        participation: (n, k, b).
        mechanisms: names, or choices such as `GivenFactorization(C)`; rows are in this order. By
            default, those of `DEFAULT_MECHANISMS` that take seconds at the horizon, and at b = 1
            `optimal-diagonal`, best first.
        epsilon: ε of the budget; give both ε and δ or neither.
        delta: δ of the budget.
        adjacency: "zero-out" or "replace-one".
        bands: p, for mechanisms that have bands.
        params: parameters by symbol; parameters that are not given are optimized.
        workload: see `parse_workload`: "prefix", "momentum:β", "prefix*linear", …
        memory_vectors: largest number of d-vectors stored between rounds. A mechanism that needs
            more gets fewer bands or buffers if it has any, and is otherwise left out.
        progress: called with each name before its row is computed, or afterwards if another process
            computes it.
        sampling: how users are sampled: "none", "cyclic-poisson", "balls-in-bins" or "b-min-sep".
            The last three need a budget; bands and real parameters are optimized for the amplified
            error, and a row takes seconds to minutes.
        arrived: called with each row as soon as it is computed: closed forms, then searches, then
            optimizers.
        processes: the largest number of processes that compute rows of optimizers (of searches too
            at long horizons). Each is a new interpreter, so that a script needs its ``if __name__
            == "__main__"``; None for one per core.
        objective: the error that parameters and coefficients minimize and rows are sorted by:
            "rmse", "max", "last" or "weights:w1,w2,…" (`Objective`).
        noise_multiplier: S > 0 in place of ε: the standard deviation of z per unit clip norm, as
            deployments state it. Each row then has the ε that this noise gives at δ.
        all_mechanisms: without names, compare every mechanism that takes seconds at the horizon.

    Returns:
        Dicts with mechanism, params, sensitivity, sensitivity_kind, sensitivity_case, rmse, max_se,
        objective (by name), objective_error, noise_multiplier, epsilon, delta, adjacency, workload,
        rounds, max_participations, min_separation, memory_vectors (past outputs stored while
        training, in model-sized vectors), regenerated_vectors (past noise drawn again in a round,
        at most) and nanoseconds_per_coordinate: the time of a round of noise on one core on
        average, estimated as 10 ns per draw (the fresh one and the regenerated ones) and 2 ns per
        stored vector.

        noise_std is the standard deviation of z per unit clip norm and noise_std_error its standard
        error, 0 unless the accountant is a Monte Carlo one; sampling is the assumption.

        ``noise_multiplier`` is σ for sensitivity 1, the same under either adjacency. The z in the
        released sum have standard deviation ζ·σ·sensitivity·f with f = 1 for zero-out and f = 2 for
        replace-one; the errors are for ζ = 1 and include σ (if a budget is given), the sensitivity
        and f.

    Raises:
        ValueError: only one of ε and δ is given, or S without δ or together with ε, a name or
            parameter is unknown, a value is out of range, a named mechanism cannot be built for
            this horizon or within the memory.

    >>> row, = design(Participation(3900, 10, 390), ["cgd"], 8.0, 1e-5, params={"lambda": 0.975})
    >>> round(row["rmse"], 2), row["sensitivity_kind"], row["memory_vectors"]
    (12.72, 'exact', 0)
    """
    # Imported here, since every process that computes rows loads this module.
    from fedmf.accounting.gaussian import adjacency_factor, gaussian_sigma

    _check_budget(epsilon, delta, noise_multiplier, sampling)
    if memory_vectors is not None and memory_vectors < 0:
        raise ValueError(f"memory_vectors (limit) must be at least 0; got {memory_vectors}.")
    if sampling != "none":
        _check_sampling(sampling, epsilon, memory_vectors)
    if isinstance(mechanisms, str):
        raise ValueError(f"mechanisms must be a list of names; got the string {mechanisms!r}.")
    if mechanisms and all_mechanisms:
        raise ValueError(
            f"all_mechanisms must be omitted where mechanisms are named; got {len(mechanisms)}"
            " names."
        )
    check_rounds(participation.rounds)
    queries = parse_workload(workload, participation.rounds)
    if isinstance(objective, str):
        objective = Objective.parse(objective)
    objective.spread(participation.rounds)  # only to check that its weights fit the horizon
    sigma = None
    if epsilon is not None and delta is not None:
        sigma = gaussian_sigma(epsilon, delta)
    factor = adjacency_factor(adjacency)
    budget = _Budget(epsilon, delta, sigma, noise_multiplier, adjacency, factor, sampling)
    table = _Table(participation, queries, objective, memory_vectors, budget)
    given: dict[str, float | int] = {}
    if bands is not None:
        given["bands"] = bands
    given.update(params or {})
    if mechanisms:
        choices = _choices(mechanisms, given, participation.rounds)
        required = [True] * len(choices)
        return rows_of(choices, required, table.row, processes, progress, arrived)
    names = _compared(queries, participation, sampling, all_mechanisms)
    choices = _choices(names, given, participation.rounds)
    # Parameters that the caller fixed must be possible; those of a comparison need not be.
    required = [bool(choice.params) for choice in choices]
    rows = rows_of(choices, required, table.row, processes, progress, arrived)
    return sorted(rows, key=lambda row: row["objective_error"])


def _check_budget(
    epsilon: float | None, delta: float | None, noise_multiplier: float | None, sampling: str
) -> None:
    """Reject all but ε with δ, S with δ, or nothing."""
    if noise_multiplier is not None:
        if not 0 < noise_multiplier < math.inf:
            raise ValueError(
                f"S (noise_multiplier) must be positive and finite; got {noise_multiplier}. Without"
                " noise there is no privacy."
            )
        if delta is None or epsilon is not None or sampling != "none":
            raise ValueError(
                "S (noise_multiplier) must be given with delta, and without epsilon and sampling;"
                f" got delta={delta}, epsilon={epsilon}, sampling={sampling}. The table shows its"
                " epsilon."
            )
        return
    fix = "Without a budget, omit both."
    if epsilon is None and delta is not None:
        raise ValueError(f"epsilon must be given together with delta; got None. {fix}")
    if epsilon is not None and delta is None:
        raise ValueError(f"delta must be given together with epsilon; got None. {fix}")


def _check_sampling(sampling: str, epsilon: float | None, memory_vectors: int | None) -> None:
    from fedmf.mechanisms.amplified_noise import check_sampling

    check_sampling(sampling)
    reason = "its noise has no closed form."
    if memory_vectors is not None:
        raise ValueError(f"sampling {sampling} needs no limit on memory_vectors; {reason}")
    if epsilon is None:
        raise ValueError(f"sampling {sampling} needs epsilon and delta; {reason}")


def recommended(rows: Sequence[Row]) -> Row:
    """The row with the fastest noise among those of nearly the smallest error.

    Mechanisms that optimize every entry of C do not count, unless there are no others: they show
    what is possible for this contract alone. Of the others, those within 5 % of their smallest
    error are compared, and of equally fast ones the one with the smallest error is taken.
    """
    candidates = [row for row in rows if not is_entrywise(row)] or rows
    least = min(row["objective_error"] for row in candidates)
    near = [row for row in candidates if row["objective_error"] <= least * (1 + NEGLIGIBLE)]
    return min(near, key=lambda row: (row["nanoseconds_per_coordinate"], row["objective_error"]))


def is_entrywise(row: Row) -> bool:
    """Whether every entry of the row's C is free; False for a C of the caller's own."""
    try:
        return variant_of(row["mechanism"]).family.entrywise
    except ValueError:
        return False


def _compared(
    queries: ToeplitzWorkload, participation: Participation, sampling: str, all_mechanisms: bool
) -> list[str]:
    """The names of a comparison without names.

    `optimal-diagonal` is one where users may join every round: correlation gains nothing there.
    Of all mechanisms, those that depend on learning rates are compared only where there are any,
    and normalized variants only where a row does not take minutes.
    """
    names = names_to_compare(queries.rounds)
    if participation.min_separation == 1 and sampling == "none":
        names.append("optimal-diagonal")
    if not all_mechanisms:
        return [name for name in names if name in (*DEFAULT_MECHANISMS, "optimal-diagonal")]
    if queries.column_weights is None:
        names = [name for name in names if "alpha" not in accepted_parameters(name)]
    if sampling != "none":
        names = [name for name in names if not variant_of(name).normalized]
    return names


def _choices(
    mechanisms: Sequence[str | MechanismChoice], params: Mapping[str, float | int], rounds: int
) -> list[MechanismChoice]:
    """Names with those of the parameters that they take.

    Raises:
        ValueError: no name takes one of the parameters.
    """
    accepted: dict[str, list[str]] = {}
    for name in mechanisms:
        if isinstance(name, str):
            accepted[name] = [*accepted_parameters(name), *optional_parameters(name)]
    for symbol, value in params.items():
        if not any(symbol in symbols for symbols in accepted.values()):
            takes = "; ".join(_takes(name) for name in accepted)
            raise ValueError(
                f"{symbol} (parameter) must be one that a mechanism takes; got {symbol}={value}."
                f" {takes}."
            )
    choices: list[MechanismChoice] = []
    for choice in mechanisms:
        if isinstance(choice, str):
            fixed = {symbol: params[symbol] for symbol in params if symbol in accepted[choice]}
            choices.append(NamedMechanism(choice, variant_of(choice).checked(fixed, rounds)))
        else:
            choices.append(choice)
    return choices


def _takes(name: str) -> str:
    symbols = ", ".join(accepted_parameters(name)) or "none"
    return f"{name} takes {symbols}"


@dataclass(frozen=True, eq=False)
class _Budget:
    """The noise of the rows: without a level (σ left out), for (ε, δ), or at a stated level."""

    epsilon: float | None
    delta: float | None
    sigma: float | None
    noise_std: float | None
    adjacency: str
    factor: int
    sampling: str

    def with_noise(self, row: Row) -> Row:
        """A row for σ = 1, with its errors and noise for this budget."""
        if self.noise_std is not None:
            return self._at_stated_level(row, self.noise_std)
        if self.sigma is None:
            return _scaled(row, self.factor) | self.columns(None, None, None, 0.0)
        scale = self.factor * self.sigma
        noise_std = scale * row["sensitivity"]
        return _scaled(row, scale) | self.columns(self.sigma, self.epsilon, noise_std, 0.0)

    def _at_stated_level(self, row: Row, noise_std: float) -> Row:
        from fedmf.accounting.gaussian import gaussian_epsilon

        assert self.delta is not None
        sigma = noise_std / (row["sensitivity"] * self.factor) * _DOWN
        epsilon = gaussian_epsilon(sigma, self.delta)
        scaled = _scaled(row, noise_std / row["sensitivity"])
        return scaled | self.columns(sigma, epsilon, noise_std, 0.0)

    def columns(
        self, sigma: float | None, epsilon: float | None, std: float | None, std_error: float
    ) -> Row:
        """The columns of a row that describe its noise."""
        return {
            "noise_multiplier": sigma,
            "epsilon": epsilon,
            "delta": self.delta,
            "adjacency": self.adjacency,
            "sampling": self.sampling,
            "noise_std": std,
            "noise_std_error": std_error,
        }


def _scaled(row: Row, scale: float) -> Row:
    """The row with its errors multiplied by a scale."""
    errors_with_noise = {name: row[name] * scale for name in ("rmse", "max_se", "objective_error")}
    return row | errors_with_noise


@dataclass(frozen=True, eq=False)
class _Table:
    """The setting that all rows of a comparison share, and the way to compute a row."""

    participation: Participation
    queries: ToeplitzWorkload
    objective: Objective
    memory_vectors: int | None
    budget: _Budget

    def row(self, choice: MechanismChoice) -> Row:
        """The row of a mechanism."""
        if self.budget.sampling != "none":
            return self.amplified(choice)
        return self.budget.with_noise(self.within_memory(choice))

    def within_memory(self, choice: MechanismChoice) -> Row:
        """A row for σ = 1, with fewer bands or buffers where it would store too many vectors."""
        limit = self.memory_vectors
        row = self.unlimited_row(choice)
        if limit is None or row["memory_vectors"] <= limit:
            return row
        size = next((each.symbol for each in choice.searched if each.symbol in _SIZES), None)
        if size is not None and limit + _SIZES[size] >= 1:
            row = self.unlimited_row(choice.with_parameters({size: limit + _SIZES[size]}))
        if row["memory_vectors"] > limit:
            raise ValueError(
                f"memory_vectors (limit) must be at least {row['memory_vectors']} for {choice.name}"
                f" with n={self.participation.rounds}; got {limit}. bisr, bifr, cgd and nu-ftrl"
                " keep none."
            )
        return row

    def amplified(self, choice: MechanismChoice) -> Row:
        """A row with noise by the accountant of the sampling."""
        from fedmf.accounting.sampling import zero_out_budget
        from fedmf.mechanisms.amplified_search import amplified_mechanism

        budget = self.budget
        assert budget.epsilon is not None
        assert budget.delta is not None
        epsilon, delta = zero_out_budget(budget.adjacency, budget.epsilon, budget.delta)
        mechanism, noise = amplified_mechanism(
            choice,
            self.participation,
            self.queries,
            budget.sampling,
            epsilon,
            delta,
            self.objective,
        )
        stated = Sensitivity(noise.sensitivity, "exact", f"one contributor under {budget.sampling}")
        sigma = noise.noise_multiplier / budget.factor
        return {
            **self.described(mechanism, stated, noise.noise_multiplier),
            **budget.columns(sigma, budget.epsilon, noise.noise_std, noise.standard_error),
        }

    def unlimited_row(self, choice: MechanismChoice) -> Row:
        """A row for σ = 1, with any number of stored vectors."""
        mechanism = choice.build(self.participation, self.queries, self.objective)
        stated = sensitivity_of(mechanism.factorization, self.participation)
        return self.described(mechanism, stated, 1.0)

    def described(self, mechanism: BuiltMechanism, stated: Sensitivity, sigma: float) -> Row:
        """The columns of a row that do not describe its noise."""
        error = errors(mechanism.factorization, self.queries, stated, sigma, self.objective)
        stream = mechanism.factorization.streaming_inverse()
        drawing = _NANOSECONDS_PER_DRAW * (1 + stream.mean_regenerated_vectors)
        reading = _NANOSECONDS_PER_STORED * stream.memory_vectors
        return {
            "mechanism": mechanism.name,
            "params": mechanism.params,
            "sensitivity": stated.value,
            "sensitivity_kind": stated.kind,
            "sensitivity_case": stated.case,
            "rmse": error.rmse,
            "max_se": error.max_se,
            "objective": self.objective.text,
            "objective_error": error.objective,
            "workload": self.queries.name,
            "rounds": self.participation.rounds,
            "max_participations": self.participation.max_participations,
            "min_separation": self.participation.min_separation,
            "memory_vectors": stream.memory_vectors,
            "regenerated_vectors": stream.regenerated_vectors,
            "nanoseconds_per_coordinate": drawing + reading,
        }


def rows_of(
    choices: Sequence[MechanismChoice],
    required: Sequence[bool],
    row_of: Callable[[MechanismChoice], Row],
    processes: int | None = 1,
    progress: Callable[[str], None] | None = None,
    arrived: Callable[[Row], None] | None = None,
) -> list[Row]:
    """The rows in the order of the choices, in several processes if they take long.

    They are computed in the order of their effort.

    Args:
        choices: the mechanisms.
        required: for each, whether it is an error that it cannot be built; it is left out
            otherwise.
        row_of: computes a row, or raises a `ValueError`; with several processes it must be
            picklable.
        processes: the largest number of processes for the rows that are left after three seconds of
            work; 1 for this process alone, None for one per core.
        progress: called with the name of each row before it is computed here, or once another
            process has computed it.
        arrived: called with each row as soon as it is computed.

    Raises:
        ValueError: the first error of a required row, or of the first row if none is left.
    """
    if progress is None:
        progress = _ignore
    rows = _Rows(required, arrived or _ignore)
    compute = partial(_outcome, row_of)
    left = sorted(enumerate(choices), key=lambda numbered: numbered[1].effort)

    def compute_next() -> None:
        index, choice = left.pop(0)
        progress(choice.name)
        rows.take(*compute((index, choice)))

    start = time.process_time()
    while left and time.process_time() - start < _ALONE:
        compute_next()
    if processes is None and len(left) > 1:
        processes = _cores()
    if processes is not None and processes > 1 and left:
        # New interpreters rather than copies of this one, which may hold locks and threads.
        spawn = multiprocessing.get_context("spawn")
        with spawn.Pool(min(processes, len(left)), _start_process) as pool:
            for index, outcome in pool.imap_unordered(compute, reversed(left)):
                progress(choices[index].name)
                rows.take(index, outcome)
        left.clear()
    while left:
        compute_next()
    return rows.in_order()


class _Rows:
    """Rows by the index of their choice, and the errors of rows that are left out."""

    def __init__(self, required: Sequence[bool], arrived: Callable[[Row], None]) -> None:
        self._required = required
        self._arrived = arrived
        self._rows: dict[int, Row] = {}
        self._errors: dict[int, ValueError] = {}

    def take(self, index: int, outcome: Row | ValueError) -> None:
        """Add a row, or the error of one.

        Raises:
            ValueError: the error of a required row.
        """
        if not isinstance(outcome, ValueError):
            self._rows[index] = outcome
            self._arrived(outcome)
        elif self._required[index]:
            raise outcome
        else:
            self._errors[index] = outcome

    def in_order(self) -> list[Row]:
        """The rows by index.

        Raises:
            ValueError: there are only errors; the first of them.
        """
        if not self._rows and self._errors:
            raise self._errors[min(self._errors)]
        return [self._rows[index] for index in sorted(self._rows)]


def _ignore(_: object) -> None:
    pass


def _cores() -> int:
    import joblib  # which takes an eighth of a second

    return joblib.cpu_count()


def _start_process() -> None:
    """Use one thread, and leave interruptions to the parent process, which ends this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(dict.fromkeys(THREAD_LIMITS, "1"))


@single_threaded
def _outcome(
    row_of: Callable[[MechanismChoice], Row], numbered: tuple[int, MechanismChoice]
) -> tuple[int, Row | ValueError]:
    """The row of a choice, or its error, with the index of the choice."""
    index, choice = numbered
    try:
        return index, row_of(choice)
    except ValueError as error:
        return index, error
