"""Compare mechanisms for a participation contract: sensitivity, error, noise and memory of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedmf.accounting.calibration import adjacency_factor, gaussian_sigma
from fedmf.factorization.catalogue import accepted_parameters, build, names
from fedmf.factorization.error import errors
from fedmf.factorization.sensitivity import stated_sensitivity
from fedmf.participation import Participation
from fedmf.workload import ToeplitzWorkload, prefix

__all__ = ["design"]

# Beyond these horizons a comparison leaves out what takes minutes; what is asked for by name is always built.
_LARGEST_NORMALIZED = 4096
_LARGEST_OPTIMIZED = 16_384


def design(
    participation: Participation,
    mechanisms: Sequence[str] | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    adjacency: str = "zero-out",
    bands: int | None = None,
    params: Mapping[str, float | int] | None = None,
    workload: str = "prefix",
    progress: Callable[[str], None] | None = None,
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
        workload: "prefix".
        progress: called with each name before its row is computed.

    Returns:
        Dicts with mechanism, params, sensitivity, sensitivity_kind, sensitivity_case, rmse, max_se,
        noise_multiplier, epsilon, delta, adjacency, workload, rounds, max_participations, min_separation,
        memory_vectors (past outputs kept while training, in model-sized vectors) and regenerated_vectors
        (past noise drawn again in each round).

        ``noise_multiplier`` is σ for sensitivity 1, the same under either adjacency. The z in the released
        sum have standard deviation ζ·σ·sensitivity·f with f = 1 for zero-out and f = 2 for replace-one; rmse
        and max_se are for ζ = 1 and include σ (if a budget is given), the sensitivity and f.

    Raises:
        ValueError: only one of ε and δ is given, a name or parameter is unknown, or a value is out of range.

    >>> row, = design(Participation(3900, 10, 390), ["cgd"], 8.0, 1e-5, params={"lambda": 0.975})
    >>> round(row["rmse"], 2), row["sensitivity_kind"], row["memory_vectors"]
    (12.72, 'exact', 0)
    """
    if (epsilon is None) != (delta is None):
        given, missing = ("epsilon", "delta") if delta is None else ("delta", "epsilon")
        raise ValueError(
            f"{missing} must be given together with {given}; got None. Without a budget leave out both."
        )
    if workload != "prefix":
        raise ValueError(
            f"workload must be 'prefix'; got {workload!r}. No other workload is supported so far."
        )
    sigma = None if epsilon is None or delta is None else gaussian_sigma(epsilon, delta)
    budget = {"noise_multiplier": sigma, "epsilon": epsilon, "delta": delta, "adjacency": adjacency}
    factor = adjacency_factor(adjacency)
    queries = prefix(participation.rounds)
    chosen = _comparison(participation.rounds) if mechanisms is None else list(mechanisms)
    given = _distributed(chosen, {**({} if bands is None else {"bands": bands}), **(params or {})})
    rows = []
    for name, own in zip(chosen, given, strict=True):
        if progress is not None:
            progress(name)
        rows.append(
            _row(name, participation, queries, own, factor * (1.0 if sigma is None else sigma), budget)
        )
    return sorted(rows, key=lambda row: row["rmse"]) if mechanisms is None else rows


def _comparison(rounds: int) -> list[str]:
    """Every name that scales to the horizon; normalised diagonal matrices are the identity again."""
    skipped = {"normalized-identity", "normalized-optimal-diagonal"}
    if rounds > _LARGEST_NORMALIZED:
        skipped |= {name for name in names() if name.startswith("normalized-")}
    if rounds > _LARGEST_OPTIMIZED:
        skipped.add("banded-toeplitz")
    return [name for name in names() if name not in skipped]


def _distributed(chosen: Sequence[str], params: Mapping[str, float | int]) -> list[dict[str, float | int]]:
    """Each mechanism's own share of the parameters; every parameter must have a taker."""
    accepted = [accepted_parameters(name) for name in chosen]
    for symbol, value in params.items():
        if not any(symbol in own for own in accepted):
            takes = "; ".join(
                f"{name} takes {', '.join(own) or 'none'}" for name, own in zip(chosen, accepted, strict=True)
            )
            raise ValueError(
                f"{symbol} (parameter) must be one that a mechanism takes; got {symbol}={value}. {takes}."
            )
    return [{key: value for key, value in params.items() if key in own} for own in accepted]


def _row(
    name: str,
    participation: Participation,
    queries: ToeplitzWorkload,
    params: Mapping[str, float | int],
    noise: float,
    budget: Mapping[str, Any],
) -> dict[str, Any]:
    mechanism = build(name, participation, queries, params=params)
    stated = stated_sensitivity(mechanism.factorization, participation)
    error = errors(mechanism.factorization, queries, stated, noise)
    recurrence = mechanism.factorization.recurrence()
    return {
        "mechanism": name,
        "params": mechanism.params,
        "sensitivity": stated.value,
        "sensitivity_kind": stated.kind,
        "sensitivity_case": stated.case,
        "rmse": error.rmse,
        "max_se": error.max_se,
        **budget,
        "workload": queries.name,
        "rounds": participation.rounds,
        "max_participations": participation.max_participations,
        "min_separation": participation.min_separation,
        "memory_vectors": recurrence.memory_vectors,
        "regenerated_vectors": recurrence.regenerated_vectors,
    }
