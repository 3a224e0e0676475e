"""Compare mechanisms for a participation contract: sensitivity, error, noise and memory of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from fedmf.accounting.amplification import check_sampling
from fedmf.accounting.gaussian import adjacency_factor, gaussian_sigma
from fedmf.factorization import (
    Mechanism,
    Sensitivity,
    accepted_parameters,
    build,
    check_rounds,
    errors,
    names,
    optional_parameters,
    stated_sensitivity,
)
from fedmf.participation import Participation
from fedmf.workload import ToeplitzWorkload, parse_workload

__all__ = ["design"]

# Beyond these horizons a comparison leaves out what takes minutes; by name `check_horizon` allows more.
_LARGEST_NORMALIZED = 4096
_LARGEST = {
    "banded-toeplitz": 1_000_000,
    "banded-inverse": 16_384,
    "blt": 16_384,
    "banded": 1024,
    "dense": 512,
    "tree": 1024,
    "kary-tree": 1024,
}
# A coordinate of one round on one 2.5 GHz core, measured with simulations/benchmarks/noise.py.
_NANOSECONDS_PER_DRAW = 10.0
_NANOSECONDS_PER_STORED = 2.0


def design(
    participation: Participation,
    mechanisms: Sequence[str] | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    adjacency: str = "zero-out",
    bands: int | None = None,
    params: Mapping[str, float | int] | None = None,
    workload: str = "prefix",
    memory_vectors: int | None = None,
    progress: Callable[[str], None] | None = None,
    sampling: str = "none",
) -> list[dict[str, Any]]:
    """One row per mechanism, ready for JSON.

    Args:
        participation: (n, k, b).
        mechanisms: names; the rows keep their order. Without any, all that scale to the horizon are compared
            and the rows are sorted by RMSE, best first.
        epsilon: ε of the budget; give both ε and δ or neither.
        delta: δ of the budget.
        adjacency: "zero-out" or "replace-one".
        bands: p for the mechanisms that take it.
        params: lambda, gamma, nu, c for the mechanisms that take them; those not given are optimised.
        workload: as `fedmf.workload.parse_workload` reads it: "prefix", "momentum:β", "prefix*linear", … .
        memory_vectors: at most so many d-vectors kept between rounds; a mechanism that would keep more gets
            fewer bands or buffers if it has any, is left out of a comparison otherwise.
        progress: called with each name before its row is computed.
        sampling: "none", "cyclic-poisson", "balls-in-bins" or "b-min-sep": how users come to rounds. With one
            of the others a budget is needed, adjacency is zero-out, bands and real parameters are searched
            for the amplified error, and a row takes seconds to minutes.

    Returns:
        Dicts with mechanism, params, sensitivity, sensitivity_kind, sensitivity_case, rmse, max_se,
        noise_multiplier, epsilon, delta, adjacency, workload, rounds, max_participations, min_separation,
        memory_vectors (past outputs kept while training, in model-sized vectors), regenerated_vectors (past
        noise drawn again in a round, at most) and nanoseconds_per_coordinate: what a round of noise costs on
        one core on average, estimated as 10 ns a draw (the fresh one and the regenerated ones) and 2 ns a
        stored vector.

        noise_std is the standard deviation of z per unit clip norm and noise_std_error its standard error, 0
        unless the accountant is a Monte Carlo one; sampling is the assumption.

        ``noise_multiplier`` is σ for sensitivity 1, the same under either adjacency. The z in the released
        sum have standard deviation ζ·σ·sensitivity·f with f = 1 for zero-out and f = 2 for replace-one; rmse
        and max_se are for ζ = 1 and include σ (if a budget is given), the sensitivity and f.

    Raises:
        ValueError: only one of ε and δ is given, a name or parameter is unknown, a value is out of range, a
            mechanism that was asked for cannot be built for this horizon or within the memory.

    >>> row, = design(Participation(3900, 10, 390), ["cgd"], 8.0, 1e-5, params={"lambda": 0.975})
    >>> round(row["rmse"], 2), row["sensitivity_kind"], row["memory_vectors"]
    (12.72, 'exact', 0)
    """
    if (epsilon is None) != (delta is None):
        given, missing = ("epsilon", "delta") if delta is None else ("delta", "epsilon")
        raise ValueError(
            f"{missing} must be given together with {given}; got None. Without a budget leave out both."
        )
    if memory_vectors is not None and memory_vectors < 0:
        raise ValueError(f"memory_vectors (limit) must be at least 0; got {memory_vectors}.")
    check_sampling(sampling, adjacency)
    if sampling != "none" and (epsilon is None or memory_vectors is not None):
        needs = "epsilon and delta" if epsilon is None else "no limit on memory_vectors"
        raise ValueError(f"sampling {sampling} needs {needs}; its noise has no closed form to search by.")
    sigma = None if epsilon is None or delta is None else gaussian_sigma(epsilon, delta)
    budget = {"noise_multiplier": sigma, "epsilon": epsilon, "delta": delta, "adjacency": adjacency}
    factor = adjacency_factor(adjacency)
    chosen = _comparison(participation.rounds) if mechanisms is None else list(mechanisms)
    if mechanisms is None and sampling != "none":
        chosen = [name for name in chosen if not name.startswith("normalized-")]
    check_rounds(participation.rounds)
    queries = parse_workload(workload, participation.rounds)
    given = _distributed(chosen, {**({} if bands is None else {"bands": bands}), **(params or {})})
    rows, refused = [], []
    for name, own in zip(chosen, given, strict=True):
        if progress is not None:
            progress(name)
        try:
            if sampling == "none":
                row = _within(memory_vectors, name, participation, queries, own)
            else:
                assert epsilon is not None
                assert delta is not None
                row = _amplified(name, participation, queries, own, sampling, epsilon, delta)
        except ValueError as refusal:
            # What a comparison was asked to fix must be possible; what it tries by itself need not be.
            if mechanisms is not None or own:
                raise
            refused.append(refusal)
            continue
        noise = factor * (1.0 if sigma is None else sigma)
        if sampling == "none":
            std = None if sigma is None else noise * row["sensitivity"]
            row.update(budget, rmse=row["rmse"] * noise, max_se=row["max_se"] * noise)
            row.update(sampling=sampling, noise_std=std, noise_std_error=0.0)
        else:
            row = {**budget, **row}
        rows.append(row)
    if not rows:
        raise refused[0]
    return sorted(rows, key=lambda row: row["rmse"]) if mechanisms is None else rows


def _comparison(rounds: int) -> list[str]:
    """Every name that scales to the horizon; normalised diagonal matrices are the identity again."""
    skipped = {"normalized-identity", "normalized-optimal-diagonal"}
    if rounds > _LARGEST_NORMALIZED:
        skipped |= {name for name in names() if name.startswith("normalized-")}
    slow = {name for name, largest in _LARGEST.items() if rounds > largest}
    return [name for name in names() if name not in skipped and name.removeprefix("normalized-") not in slow]


def _distributed(chosen: Sequence[str], params: Mapping[str, float | int]) -> list[dict[str, float | int]]:
    """Each mechanism's own share of the parameters; every parameter must have a taker."""
    accepted = [accepted_parameters(name) for name in chosen]
    optional = [optional_parameters(name) for name in chosen]
    for symbol, value in params.items():
        if not any(symbol in own for own in (*accepted, *optional)):
            takes = "; ".join(
                f"{name} takes {', '.join(own) or 'none'}" for name, own in zip(chosen, accepted, strict=True)
            )
            raise ValueError(
                f"{symbol} (parameter) must be one that a mechanism takes; got {symbol}={value}. {takes}."
            )
    return [
        {key: value for key, value in params.items() if key in (*own, *more)}
        for own, more in zip(accepted, optional, strict=True)
    ]


def _within(
    limit: int | None,
    name: str,
    participation: Participation,
    queries: ToeplitzWorkload,
    params: Mapping[str, float | int],
) -> dict[str, Any]:
    """The row of a mechanism, with fewer bands or buffers where it would keep more vectors than the limit."""
    accepted = accepted_parameters(name)
    sizes = {"bands": 1, "buffers": 0}
    size = next((symbol for symbol in sizes if symbol in accepted and symbol not in params), None)
    if limit is None:
        return _row(name, participation, queries, params)
    own = dict(params)
    # Optimising wide bands only to refuse them would take long.
    if size == "bands" and limit + 1 < participation.min_separation and _keeps_bands(name, participation):
        own["bands"] = limit + 1
    row = _row(name, participation, queries, own)
    if row["memory_vectors"] > limit and size and limit + sizes[size] >= 1:
        row = _row(name, participation, queries, {**params, size: limit + sizes[size]})
    if row["memory_vectors"] > limit:
        raise ValueError(
            f"memory_vectors (limit) must be at least {row['memory_vectors']} for {name} with n="
            f"{participation.rounds}; got {limit}. bisr, bifr, cgd and nu-ftrl keep none."
        )
    return row


def _keeps_bands(name: str, participation: Participation) -> bool:
    """Whether two bands make this mechanism keep a vector, rather than regenerate one."""
    small = Participation(min(4, participation.rounds), 1, 1)
    return small.rounds > 1 and build(name, small, bands=2).factorization.recurrence().memory_vectors > 0


def _amplified(
    name: str,
    participation: Participation,
    queries: ToeplitzWorkload,
    params: Mapping[str, float | int],
    sampling: str,
    epsilon: float,
    delta: float,
) -> dict[str, Any]:
    """The row of a mechanism under a sampling assumption, noise included."""
    from fedmf.accounting.amplification import amplified_mechanism

    mechanism, noise = amplified_mechanism(
        name, participation, queries, cast(Any, sampling), epsilon, delta, params
    )
    stated = Sensitivity(noise.sensitivity, "exact", f"one user under {sampling}")
    return {
        **_described(mechanism, participation, queries, stated, noise.noise_multiplier),
        "noise_multiplier": noise.noise_multiplier,
        "sampling": sampling,
        "noise_std": noise.noise_std,
        "noise_std_error": noise.standard_error,
    }


def _row(
    name: str, participation: Participation, queries: ToeplitzWorkload, params: Mapping[str, float | int]
) -> dict[str, Any]:
    mechanism = build(name, participation, queries, params=params)
    stated = stated_sensitivity(mechanism.factorization, participation)
    return _described(mechanism, participation, queries, stated, 1.0)


def _described(
    mechanism: Mechanism,
    participation: Participation,
    queries: ToeplitzWorkload,
    stated: Sensitivity,
    sigma: float,
) -> dict[str, Any]:
    error = errors(mechanism.factorization, queries, stated, sigma)
    stream = mechanism.factorization.recurrence()
    return {
        "mechanism": mechanism.name,
        "params": mechanism.params,
        "sensitivity": stated.value,
        "sensitivity_kind": stated.kind,
        "sensitivity_case": stated.case,
        "rmse": error.rmse,
        "max_se": error.max_se,
        "workload": queries.name,
        "rounds": participation.rounds,
        "max_participations": participation.max_participations,
        "min_separation": participation.min_separation,
        "memory_vectors": stream.memory_vectors,
        "regenerated_vectors": stream.regenerated_vectors,
        "nanoseconds_per_coordinate": _NANOSECONDS_PER_DRAW * (1 + stream.mean_regenerated_vectors)
        + _NANOSECONDS_PER_STORED * stream.memory_vectors,
    }
