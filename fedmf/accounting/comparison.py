"""Compare mechanisms for a participation contract: sensitivity, error, noise and memory of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from fedmf.accounting.design_jobs import Job, Row, rows_of
from fedmf.mechanisms.choice import MechanismChoice, NamedMechanism
from fedmf.mechanisms.errors import Objective, errors
from fedmf.mechanisms.registry import (
    Mechanism,
    accepted_parameters,
    build,
    check_rounds,
    form_of,
    names_to_compare,
    optional_parameters,
)
from fedmf.mechanisms.sensitivity import Sensitivity, stated_sensitivity
from fedmf.mechanisms.workload import ToeplitzWorkload, parse_workload
from fedmf.participation import Participation

# A coordinate of one round on one 2.5 GHz core, measured with simulations/benchmarks/noise.py.
_NANOSECONDS_PER_DRAW = 10.0
_NANOSECONDS_PER_STORED = 2.0
# What decides how many vectors are kept, and by how much it may exceed their number: p bands keep p − 1.
_SIZES = {"bands": 1, "buffers": 0}

# What a product and a quotient may have rounded up.
_DOWN = 1 - 2.0**-50

_NO_CLOSED_FORM = "its noise has no closed form to search by."


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
    processes: int = 1,
    objective: str | Objective = "rmse",
    noise_multiplier: float | None = None,
) -> list[dict[str, Any]]:
    """One row per mechanism, ready for JSON.

    Args:
        participation: (n, k, b).
        mechanisms: names or choices, as `GivenFactorization(C)`; the rows keep their order. Without any, all
            that scale to the horizon are compared and the rows are sorted by the objective, best first.
        epsilon: ε of the budget; give both ε and δ or neither.
        delta: δ of the budget.
        adjacency: "zero-out" or "replace-one".
        bands: p for the names that take it.
        params: by symbol, for the names that take them; those not given are optimised.
        workload: as `parse_workload` reads it: "prefix", "momentum:β", "prefix*linear", … .
        memory_vectors: at most so many d-vectors kept between rounds; a mechanism that would keep more gets
            fewer bands or buffers if it has any, is left out of a comparison otherwise.
        progress: called with each name before its row is computed, or after that in another process.
        sampling: "none", "cyclic-poisson", "balls-in-bins" or "b-min-sep": how users come to rounds. With one
            of the others a budget is needed, bands and real parameters are searched for the amplified error,
            and a row takes seconds to minutes.
        arrived: called with each row as soon as it is there: closed forms, then searches, then optimisers, if
            this process is alone; else rows of other processes come in between.
        processes: how many may compute, this one included. The others take rows of optimisers (of searches
            too at long horizons); each is a new interpreter, so that a script needs its
            ``if __name__ == "__main__"``.
        objective: the error that parameters and coefficients minimise and rows are sorted by: "rmse", "max",
            "last" or "weights:w1,w2,…" (`Objective`).
        noise_multiplier: S > 0 in place of ε: the standard deviation of z per unit clip norm, as deployments
            state it. Each row then says which ε this noise gives at δ.

    Returns:
        Dicts with mechanism, params, sensitivity, sensitivity_kind, sensitivity_case, rmse, max_se, objective
        (by name), objective_error, noise_multiplier, epsilon, delta, adjacency, workload, rounds,
        max_participations, min_separation, memory_vectors (past outputs kept while training, in model-sized
        vectors), regenerated_vectors (past noise drawn again in a round, at most) and
        nanoseconds_per_coordinate: what a round of noise costs on one core on average, estimated as 10 ns a
        draw (the fresh one and the regenerated ones) and 2 ns a stored vector.

        noise_std is the standard deviation of z per unit clip norm and noise_std_error its standard error, 0
        unless the accountant is a Monte Carlo one; sampling is the assumption.

        ``noise_multiplier`` is σ for sensitivity 1, the same under either adjacency. The z in the released
        sum have standard deviation ζ·σ·sensitivity·f with f = 1 for zero-out and f = 2 for replace-one; the
        errors are for ζ = 1 and include σ (if a budget is given), the sensitivity and f.

    Raises:
        ValueError: only one of ε and δ is given, or S without δ or beside ε, a name or parameter is unknown,
            a value is out of range, a mechanism that was asked for cannot be built for this horizon or
            within the memory.

    >>> row, = design(Participation(3900, 10, 390), ["cgd"], 8.0, 1e-5, params={"lambda": 0.975})
    >>> round(row["rmse"], 2), row["sensitivity_kind"], row["memory_vectors"]
    (12.72, 'exact', 0)
    """
    # Not with this module, which every process that computes rows loads.
    from fedmf.accounting.gaussian import adjacency_factor, gaussian_sigma

    if noise_multiplier is not None:
        if not 0 < noise_multiplier < math.inf:
            raise ValueError(
                f"S (noise_multiplier) must be positive and finite; got {noise_multiplier}. Without noise "
                "nothing is private."
            )
        if delta is None or epsilon is not None or sampling != "none":
            raise ValueError(
                f"S (noise_multiplier) must be given with delta, and without epsilon and sampling; got "
                f"delta={delta}, epsilon={epsilon}, sampling={sampling}. Its row says which epsilon it gives."
            )
    elif (epsilon is None) != (delta is None):
        given, missing = ("epsilon", "delta") if delta is None else ("delta", "epsilon")
        raise ValueError(
            f"{missing} must be given together with {given}; got None. Without a budget leave out both."
        )
    if memory_vectors is not None and memory_vectors < 0:
        raise ValueError(f"memory_vectors (limit) must be at least 0; got {memory_vectors}.")
    if sampling != "none":
        from fedmf.accounting.amplification import check_sampling

        check_sampling(sampling)
    check_rounds(participation.rounds)
    factor, queries = adjacency_factor(adjacency), parse_workload(workload, participation.rounds)
    goal = Objective.parse(objective) if isinstance(objective, str) else objective
    goal.spread(participation.rounds)  # only to check that its weights fit the horizon
    plan = _Plan(participation, queries, adjacency, factor, memory_vectors, goal)
    if sampling != "none" and epsilon is None:
        raise ValueError(f"sampling {sampling} needs epsilon and delta; {_NO_CLOSED_FORM}")
    if sampling != "none" and memory_vectors is not None:
        raise ValueError(f"sampling {sampling} needs no limit on memory_vectors; {_NO_CLOSED_FORM}")
    row_of = plan.row_without_budget
    if noise_multiplier is not None and delta is not None:
        row_of = partial(plan.row_of_noise, noise_multiplier, delta)
    if epsilon is not None and delta is not None:
        budget = _Budgeted(plan, epsilon, delta, gaussian_sigma(epsilon, delta), sampling)
        row_of = budget.plain if sampling == "none" else budget.amplified
    asked: Sequence[str | MechanismChoice] = mechanisms or _compared(queries, sampling)
    compare = not mechanisms
    given = {**({} if bands is None else {"bands": bands}), **(params or {})}
    # What a comparison was asked to fix must be possible; what it tries by itself need not be.
    jobs = [
        Job(choice, required=not compare or bool(choice.params))
        for choice in _choices(asked, given, participation.rounds)
    ]
    rows = rows_of(jobs, row_of, participation.rounds, processes, progress, arrived)
    return sorted(rows, key=lambda row: row["objective_error"]) if compare else rows


def _compared(queries: ToeplitzWorkload, sampling: str) -> list[str]:
    """Every name that scales to the horizon, those made of learning rates where there are any.

    No normalised forms where a row takes minutes.
    """
    names = names_to_compare(queries.rounds)
    if queries.column_weights is None:
        names = [name for name in names if "alpha" not in accepted_parameters(name)]
    return names if sampling == "none" else [name for name in names if form_of(name).family.name == name]


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
                f"{symbol} (parameter) must be one that a mechanism takes; got {symbol}={value}. {takes}."
            )
    choices: list[MechanismChoice] = []
    for name in asked:
        if isinstance(name, str):
            share = {symbol: params[symbol] for symbol in params if symbol in taken[name]}
            choices.append(NamedMechanism(name, form_of(name).checked(share, rounds)))
        else:
            choices.append(name)
    return choices


@dataclass(frozen=True, eq=False)
class _Plan:
    """What every row of a comparison shares."""

    participation: Participation
    queries: ToeplitzWorkload
    adjacency: str
    factor: int
    memory_vectors: int | None
    objective: Objective

    def row_without_budget(self, choice: MechanismChoice) -> Row:
        """σ left out."""
        row = self.row(choice)
        return {
            **row,
            **self.scaled(row, self.factor),
            **self.budget(None, None, None),
            "sampling": "none",
            "noise_std": None,
            "noise_std_error": 0.0,
        }

    def row_of_noise(self, noise_std: float, delta: float, choice: MechanismChoice) -> Row:
        """With a stated noise, and the ε that it gives."""
        from fedmf.accounting.gaussian import gaussian_epsilon

        row = self.row(choice)
        sigma = noise_std / (row["sensitivity"] * self.factor) * _DOWN
        return {
            **row,
            **self.scaled(row, noise_std / row["sensitivity"]),
            **self.budget(sigma, gaussian_epsilon(sigma, delta), delta),
            "sampling": "none",
            "noise_std": noise_std,
            "noise_std_error": 0.0,
        }

    def budget(self, sigma: float | None, epsilon: float | None, delta: float | None) -> Row:
        return {
            "noise_multiplier": sigma,
            "epsilon": epsilon,
            "delta": delta,
            "adjacency": self.adjacency,
        }

    @staticmethod
    def scaled(row: Row, noise: float) -> Row:
        return {error: row[error] * noise for error in ("rmse", "max_se", "objective_error")}

    def row(self, choice: MechanismChoice) -> Row:
        """Of a mechanism, with fewer bands or buffers where it would keep more vectors than the limit."""
        limit = self.memory_vectors
        if limit is None:
            return self.unlimited_row(choice)
        size = next((free.symbol for free in choice.free if free.symbol in _SIZES), None)
        first = choice
        # Optimising wide bands only to refuse them would take long.
        if size == "bands" and limit + 1 < self.participation.min_separation and self.keeps_bands(choice):
            first = choice.fixing({"bands": limit + 1})
        row = self.unlimited_row(first)
        if row["memory_vectors"] > limit and size and limit + _SIZES[size] >= 1:
            row = self.unlimited_row(choice.fixing({size: limit + _SIZES[size]}))
        if row["memory_vectors"] > limit:
            raise ValueError(
                f"memory_vectors (limit) must be at least {row['memory_vectors']} for {choice.name} with n="
                f"{self.participation.rounds}; got {limit}. bisr, bifr, cgd and nu-ftrl keep none."
            )
        return row

    def keeps_bands(self, choice: MechanismChoice) -> bool:
        """Whether two bands make this mechanism keep a vector, rather than regenerate one."""
        small = Participation(min(4, self.participation.rounds), 1, 1)
        if small.rounds == 1:
            return False
        return build(choice.name, small, bands=2).factorization.recurrence().memory_vectors > 0

    def unlimited_row(self, choice: MechanismChoice) -> Row:
        mechanism = choice.build(self.participation, self.queries, self.objective)
        return self.described(mechanism, stated_sensitivity(mechanism.factorization, self.participation), 1.0)

    def described(self, mechanism: Mechanism, stated: Sensitivity, sigma: float) -> Row:
        error = errors(mechanism.factorization, self.queries, stated, sigma, self.objective)
        stream = mechanism.factorization.recurrence()
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
            "nanoseconds_per_coordinate": _NANOSECONDS_PER_DRAW * (1 + stream.mean_regenerated_vectors)
            + _NANOSECONDS_PER_STORED * stream.memory_vectors,
        }


@dataclass(frozen=True, eq=False)
class _Budgeted:
    """The rows of a budget under a sampling assumption, noise included."""

    plan: _Plan
    epsilon: float
    delta: float
    sigma: float
    sampling: str

    def plain(self, choice: MechanismChoice) -> Row:
        """Without amplification."""
        row, noise = self.plan.row(choice), self.plan.factor * self.sigma
        return {
            **row,
            **self.plan.scaled(row, noise),
            **self.plan.budget(self.sigma, self.epsilon, self.delta),
            "sampling": self.sampling,
            "noise_std": noise * row["sensitivity"],
            "noise_std_error": 0.0,
        }

    def amplified(self, choice: MechanismChoice) -> Row:
        """With the accountant of the sampling."""
        from fedmf.accounting.amplification import amplified_mechanism, zero_out_budget

        plan, sampling = self.plan, cast(Any, self.sampling)
        epsilon, delta = zero_out_budget(plan.adjacency, self.epsilon, self.delta)
        mechanism, noise = amplified_mechanism(
            choice, plan.participation, plan.queries, sampling, epsilon, delta, plan.objective
        )
        stated = Sensitivity(noise.sensitivity, "exact", f"one contributor under {self.sampling}")
        return {
            **plan.described(mechanism, stated, noise.noise_multiplier),
            **plan.budget(noise.noise_multiplier / plan.factor, self.epsilon, self.delta),
            "sampling": self.sampling,
            "noise_std": noise.noise_std,
            "noise_std_error": noise.standard_error,
        }
