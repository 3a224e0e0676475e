"""Compare mechanisms for a participation contract: sensitivity, error, noise and memory of each."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
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
# Smaller differences in error rarely show in the accuracy of a model.
_NEGLIGIBLE: Final = 0.05
# A coordinate of one round on one 2.5 GHz core, measured with simulations/benchmarks/noise.py.
_NANOSECONDS_PER_DRAW: Final = 10.0
_NANOSECONDS_PER_STORED: Final = 2.0
# What decides how many vectors are kept, and by how much it may exceed their number: p bands keep p
# − 1.
_SIZES: Final = {"bands": 1, "buffers": 0}
# What a product and a quotient may have rounded up.
_DOWN: Final = 1 - 2.0**-50
# Processor seconds for which this process works alone: starting others takes as long.
_ALONE: Final = 1.0


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
        mechanisms: names, or choices such as `GivenFactorization(C)`; rows keep this order. By
            default, those of `DEFAULT_MECHANISMS` that take seconds at the horizon, best first.
        epsilon: ε of the budget; give both ε and δ or neither.
        delta: δ of the budget.
        adjacency: "zero-out" or "replace-one".
        bands: p, for mechanisms that have bands.
        params: parameters by symbol; parameters that are not given are optimised.
        workload: see `parse_workload`: "prefix", "momentum:β", "prefix*linear", …
        memory_vectors: largest number of d-vectors kept between rounds. A mechanism that needs more
            gets fewer bands or buffers if it has any, and is otherwise left out.
        progress: called with each name before its row is computed, or afterwards if another process
            computes it.
        sampling: how users are sampled: "none", "cyclic-poisson", "balls-in-bins" or "b-min-sep".
            The last three need a budget; bands and real parameters are optimised for the amplified
            error, and a row takes seconds to minutes.
        arrived: called with each row as soon as it is computed: closed forms, then searches, then
            optimisers.
        processes: how many may compute rows of optimisers (of searches too at long horizons) at a
            time. Each is a new interpreter, so that a script needs its ``if __name__ ==
            "__main__"``; None for one a core.
        objective: the error that parameters and coefficients minimise and rows are sorted by:
            "rmse", "max", "last" or "weights:w1,w2,…" (`Objective`).
        noise_multiplier: S > 0 in place of ε: the standard deviation of z per unit clip norm, as
            deployments state it. Each row then says which ε this noise gives at δ.
        all_mechanisms: without names, compare every mechanism that takes seconds at the horizon.

    Returns:
        Dicts with mechanism, params, sensitivity, sensitivity_kind, sensitivity_case, rmse, max_se,
        objective (by name), objective_error, noise_multiplier, epsilon, delta, adjacency, workload,
        rounds, max_participations, min_separation, memory_vectors (past outputs kept while
        training, in model-sized vectors), regenerated_vectors (past noise drawn again in a round,
        at most) and
        nanoseconds_per_coordinate: what a round of noise costs on one core on average, estimated as
            10 ns a
        draw (the fresh one and the regenerated ones) and 2 ns a stored vector.

        noise_std is the standard deviation of z per unit clip norm and noise_std_error its standard
        error, 0 unless the accountant is a Monte Carlo one; sampling is the assumption.

        ``noise_multiplier`` is σ for sensitivity 1, the same under either adjacency. The z in the
        released sum have standard deviation ζ·σ·sensitivity·f with f = 1 for zero-out and f = 2 for
        replace-one; the errors are for ζ = 1 and include σ (if a budget is given), the sensitivity
        and f.

    Raises:
        ValueError: only one of ε and δ is given, or S without δ or together with ε, a name or
            parameter is unknown, a value is out of range, a mechanism that was asked for cannot be
            built for this horizon or within the memory.

    >>> row, = design(Participation(3900, 10, 390), ["cgd"], 8.0, 1e-5, params={"lambda": 0.975})
    >>> round(row["rmse"], 2), row["sensitivity_kind"], row["memory_vectors"]
    (12.72, 'exact', 0)
    """
    # Not with this module, which every process that computes rows loads.
    from fedmf.accounting.gaussian import adjacency_factor, gaussian_sigma

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
    elif (epsilon is None) != (delta is None):
        given, missing = ("epsilon", "delta") if delta is None else ("delta", "epsilon")
        raise ValueError(
            f"{missing} must be given together with {given}; got None. Without a budget, omit both."
        )
    if memory_vectors is not None and memory_vectors < 0:
        raise ValueError(f"memory_vectors (limit) must be at least 0; got {memory_vectors}.")
    if sampling != "none":
        from fedmf.mechanisms.amplified_noise import check_sampling

        check_sampling(sampling)
        without = "epsilon and delta" if epsilon is None else ""
        if memory_vectors is not None:
            without = "no limit on memory_vectors"
        if without:
            raise ValueError(f"sampling {sampling} needs {without}; its noise has no closed form.")
    if mechanisms and all_mechanisms:
        raise ValueError(
            f"all_mechanisms must be omitted where mechanisms are named; got {len(mechanisms)}"
            " names."
        )
    check_rounds(participation.rounds)
    queries = parse_workload(workload, participation.rounds)
    goal = Objective.parse(objective) if isinstance(objective, str) else objective
    goal.spread(participation.rounds)  # only to check that its weights fit the horizon
    sigma = None if epsilon is None or delta is None else gaussian_sigma(epsilon, delta)
    budget = _Budget(
        epsilon, delta, sigma, noise_multiplier, adjacency, adjacency_factor(adjacency), sampling
    )
    table = _Table(participation, queries, goal, memory_vectors, budget)
    asked: Sequence[str | MechanismChoice] = mechanisms or _compared(
        queries, sampling, all_mechanisms
    )
    compare = not mechanisms
    given = {**({} if bands is None else {"bands": bands}), **(params or {})}
    # What a comparison was asked to fix must be possible; what it tries by itself need not be.
    choices = _choices(asked, given, participation.rounds)
    required = [not compare or bool(choice.params) for choice in choices]
    rows = rows_of(choices, required, table.row, processes, progress, arrived)
    return sorted(rows, key=lambda row: row["objective_error"]) if compare else rows


def recommended(rows: Sequence[Row]) -> Row:
    """The row with the fastest noise among those within 5 % of the smallest error.

    Of rows with equally fast noise, it is the one with the smallest error.
    """
    least = min(row["objective_error"] for row in rows)
    near = [row for row in rows if row["objective_error"] <= least * (1 + _NEGLIGIBLE)]
    return min(near, key=lambda row: (row["nanoseconds_per_coordinate"], row["objective_error"]))


def _compared(queries: ToeplitzWorkload, sampling: str, all_mechanisms: bool) -> list[str]:
    """The names of a comparison without names.

    Of all mechanisms, those made of learning rates are compared only where there are any, and
    normalised forms only where a row does not take minutes.
    """
    names = names_to_compare(queries.rounds)
    if not all_mechanisms:
        return [name for name in names if name in DEFAULT_MECHANISMS]
    if queries.column_weights is None:
        names = [name for name in names if "alpha" not in accepted_parameters(name)]
    return (
        names
        if sampling == "none"
        else [name for name in names if variant_of(name).family.name == name]
    )


def _choices(
    asked: Sequence[str | MechanismChoice], params: Mapping[str, float | int], rounds: int
) -> list[MechanismChoice]:
    """Names with their share of the parameters; every parameter must have a taker."""
    accepted = {name: accepted_parameters(name) for name in asked if isinstance(name, str)}
    taken = {name: (*accepted[name], *optional_parameters(name)) for name in accepted}
    for symbol, value in params.items():
        if not any(symbol in symbols for symbols in taken.values()):
            takes = "; ".join(
                f"{name} takes {', '.join(symbols) or 'none'}" for name, symbols in accepted.items()
            )
            raise ValueError(
                f"{symbol} (parameter) must be one that a mechanism takes; got {symbol}={value}."
                f" {takes}."
            )
    choices: list[MechanismChoice] = []
    for name in asked:
        if isinstance(name, str):
            share = {symbol: params[symbol] for symbol in params if symbol in taken[name]}
            choices.append(NamedMechanism(name, variant_of(name).checked(share, rounds)))
        else:
            choices.append(name)
    return choices


@dataclass(frozen=True, eq=False)
class _Budget:
    """How much noise the rows are for: none yet (σ left out), for (ε, δ), or a stated level."""

    epsilon: float | None
    delta: float | None
    sigma: float | None
    noise_std: float | None
    adjacency: str
    factor: int
    sampling: str

    def spent(self, row: Row) -> Row:
        """A row without noise, with its noise and what it gives."""
        scale = float(self.factor)
        sigma = self.sigma
        epsilon = self.epsilon
        if self.noise_std is not None and self.delta is not None:
            from fedmf.accounting.gaussian import gaussian_epsilon

            scale = self.noise_std / row["sensitivity"]
            sigma = self.noise_std / (row["sensitivity"] * self.factor) * _DOWN
            epsilon = gaussian_epsilon(sigma, self.delta)
        elif sigma is not None:
            scale *= sigma
        std = scale * row["sensitivity"] if self.noise_std is None else self.noise_std
        errors_with_noise = {
            error: row[error] * scale for error in ("rmse", "max_se", "objective_error")
        }
        return {
            **row,
            **errors_with_noise,
            **self.stated(sigma, epsilon, None if sigma is None else std, 0.0),
        }

    def stated(
        self, sigma: float | None, epsilon: float | None, std: float | None, std_error: float
    ) -> Row:
        return {
            "noise_multiplier": sigma,
            "epsilon": epsilon,
            "delta": self.delta,
            "adjacency": self.adjacency,
            "sampling": self.sampling,
            "noise_std": std,
            "noise_std_error": std_error,
        }


@dataclass(frozen=True, eq=False)
class _Table:
    """What every row of a comparison shares."""

    participation: Participation
    queries: ToeplitzWorkload
    objective: Objective
    memory_vectors: int | None
    budget: _Budget

    def row(self, choice: MechanismChoice) -> Row:
        """Of a mechanism."""
        if self.budget.sampling != "none":
            return self.amplified(choice)
        return self.budget.spent(self.within_memory(choice))

    def within_memory(self, choice: MechanismChoice) -> Row:
        """Without noise; with fewer bands or buffers where it would keep more vectors than the
        limit.
        """
        limit = self.memory_vectors
        if limit is None:
            return self.unlimited_row(choice)
        size = next((free.symbol for free in choice.searched if free.symbol in _SIZES), None)
        row = self.unlimited_row(choice)
        if row["memory_vectors"] > limit and size and limit + _SIZES[size] >= 1:
            row = self.unlimited_row(choice.fixing({size: limit + _SIZES[size]}))
        if row["memory_vectors"] > limit:
            raise ValueError(
                f"memory_vectors (limit) must be at least {row['memory_vectors']} for {choice.name}"
                f" with n={self.participation.rounds}; got {limit}. bisr, bifr, cgd and nu-ftrl"
                " keep none."
            )
        return row

    def amplified(self, choice: MechanismChoice) -> Row:
        """With the accountant of the sampling."""
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
            **budget.stated(sigma, budget.epsilon, noise.noise_std, noise.standard_error),
        }

    def unlimited_row(self, choice: MechanismChoice) -> Row:
        mechanism = choice.build(self.participation, self.queries, self.objective)
        return self.described(
            mechanism, sensitivity_of(mechanism.factorization, self.participation), 1.0
        )

    def described(self, mechanism: BuiltMechanism, stated: Sensitivity, sigma: float) -> Row:
        error = errors(mechanism.factorization, self.queries, stated, sigma, self.objective)
        stream = mechanism.factorization.streaming_inverse()
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
            "nanoseconds_per_coordinate": (
                _NANOSECONDS_PER_DRAW * (1 + stream.mean_regenerated_vectors)
                + _NANOSECONDS_PER_STORED * stream.memory_vectors
            ),
        }


def rows_of(
    choices: Sequence[MechanismChoice],
    required: Sequence[bool],
    row_of: Callable[[MechanismChoice], Row],
    processes: int | None = 1,
    progress: Callable[[str], None] | None = None,
    arrived: Callable[[Row], None] | None = None,
) -> list[Row]:
    """The rows in the order of the choices, by effort; in several processes if they take long.

    Args:
        choices: of mechanisms.
        required: for each, whether it is an error that it cannot be built; it is left out
            otherwise.
        row_of: computes a row, or raises a `ValueError`; with several processes it must be
            picklable.
        processes: how many may compute the rows that are left after a second of work; 1 for this
            one alone, None for one a core.
        progress: called with the name of each row that is begun here, or was finished elsewhere.
        arrived: called with each row as soon as it is there.

    Raises:
        ValueError: the first error of a required row, or of the first row if none is left.
    """
    tell = progress or (lambda name: None)
    show = arrived or (lambda row: None)
    rows: dict[int, Row] = {}
    refused: dict[int, ValueError] = {}

    def take(at: int, outcome: Row | ValueError) -> None:
        if not isinstance(outcome, ValueError):
            rows[at] = outcome
            show(outcome)
        elif required[at]:
            raise outcome
        else:
            refused[at] = outcome

    compute = partial(_outcome, row_of)
    begun = time.process_time()
    most = processes
    left = sorted(enumerate(choices), key=lambda numbered: numbered[1].effort)
    while left and (
        len(left) < 2 or time.process_time() - begun < _ALONE or (most := most or _cores()) < 2
    ):
        tell(left[0][1].name)
        take(*compute(left.pop(0)))
    # New interpreters rather than copies of this one, which may hold locks and threads.
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(min(most or 1, len(left)), _begin) if left else nullcontext() as pool:
        for at, outcome in pool.imap_unordered(compute, reversed(left)) if pool else ():
            tell(choices[at].name)
            take(at, outcome)
    if not rows and refused:
        raise refused[min(refused)]
    return [rows[at] for at in sorted(rows)]


def _cores() -> int:
    import joblib  # it takes an eighth of a second

    return joblib.cpu_count()


def _begin() -> None:
    """An interruption is for the process that waits for this one, which ends it; and one thread is
    enough.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(dict.fromkeys(THREAD_LIMITS, "1"))


@single_threaded
def _outcome(
    row_of: Callable[[MechanismChoice], Row], numbered: tuple[int, MechanismChoice]
) -> tuple[int, Row | ValueError]:
    """The row, or why there is none, with its number."""
    at, choice = numbered
    try:
        return at, row_of(choice)
    except ValueError as refusal:
        return at, refusal
