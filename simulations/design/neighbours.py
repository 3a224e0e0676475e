"""Strategies of other libraries and ours at one (n, k, b): error, design time, stated sensitivity.

    python -m venv /tmp/opake && /tmp/opake/bin/pip install opake==0.16.1 .
    /tmp/opake/bin/python simulations/design/neighbours.py
    python -m venv /tmp/jaxp && /tmp/jaxp/bin/pip install jax-privacy==2.0.0
    /tmp/jaxp/bin/python simulations/design/neighbours.py

Each call judges the library that its environment has, with `fedmf.import_strategy`, keeps the rows in
docs/results/neighbours.json and writes the page from all rows kept. RMSE is that of prefix sums at ε = 8 and
δ = 1e-5 with the exact sensitivity, whatever the library states; times are those of the first call.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ["FEDMF_CACHE"] = "off"

import numpy as np

from fedmf.accounting.gaussian import gaussian_sigma
from fedmf.mechanisms.errors import errors
from fedmf.mechanisms.imported import import_strategy
from fedmf.mechanisms.registry import build
from fedmf.mechanisms.workload import prefix
from fedmf.participation import Participation

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
CONTRACTS = (Participation(300, 10, 30), Participation(1000, 4, 250))
#: Our name and parameters of each strategy that is compared.
STRATEGIES: dict[str, dict[str, Any]] = {
    "DP-λCGD, λ = 0.9": {"name": "cgd", "lambda": 0.9},
    "BISR, 16 bands": {"name": "bisr", "bands": 16},
    "BSR, 16 bands": {"name": "bsr", "bands": 16},
    "banded Toeplitz, 30 bands": {"name": "banded-toeplitz", "bands": 30},
    "BLT": {"name": "blt"},
}
Made = tuple[str, Callable[[Participation], tuple[Any, float | None]]]


def opake() -> Iterator[Made]:
    """Recipes, which state their sensitivity; without column normalisation."""
    from opake.dpftrl import noise

    recipes = (
        noise.lambda_cgd_strategy(lambda_=0.9, normalized=False),
        noise.bisr_strategy(bandwidth=16, normalized=False),
        noise.bsr_strategy(bandwidth=16, alpha=1.0, beta=0.0),
        noise.band_mf_strategy(bands=30),
        noise.blt_strategy(),
    )
    for name, recipe in zip(STRATEGIES, recipes, strict=True):
        yield name, lambda _, recipe=recipe: (recipe, None)


def jax_privacy() -> Iterator[Made]:
    """Coefficients and a BLT, with the sensitivity of its functions for them."""
    import jax

    jax.config.update("jax_enable_x64", True)
    from jax_privacy.matrix_factorization import buffered_toeplitz, toeplitz

    def stated(column: Any, of: Participation) -> float:
        squared = toeplitz.minsep_sensitivity_squared(
            column, of.min_separation, of.max_participations, n=of.rounds, skip_checks=True
        )
        return float(np.sqrt(squared))

    def banded(of: Participation) -> tuple[Any, float]:
        column = toeplitz.optimize_banded_toeplitz(of.rounds, 30)
        return column, stated(column, of)

    def blt(of: Participation) -> tuple[Any, float]:
        made = buffered_toeplitz.optimize(
            n=of.rounds, min_sep=of.min_separation, max_participations=of.max_participations, error="mean"
        )
        return made, stated(made.toeplitz_coefs(of.rounds), of)

    yield "banded Toeplitz, 30 bands", banded
    yield "BLT", blt


def _matrix(name: str, of: Participation, params: dict[str, Any]) -> Any:
    made = build(
        name, of, bands=params.get("bands"), params={k: v for k, v in params.items() if k != "bands"}
    )
    return made.factorization.materialize()[:, 0]


def ours() -> Iterator[Made]:
    """Designs of this package."""
    for name, params in STRATEGIES.items():
        rest = {key: value for key, value in params.items() if key != "name"}
        yield name, lambda of, kind=params["name"], rest=rest: (_matrix(kind, of, rest), None)


def rows(library: str, made: Iterator[Made]) -> Iterator[dict[str, Any]]:
    """Each strategy at each contract."""
    for name, make in made:
        for contract in CONTRACTS:
            begun = time.perf_counter()
            strategy, stated = make(contract)
            found = import_strategy(strategy, contract, stated)
            seconds = time.perf_counter() - begun
            sigma = gaussian_sigma(8.0, 1e-5)
            error = errors(found.factorization, prefix(contract.rounds), found.sensitivity, sigma)
            yield {
                "library": library,
                "strategy": name,
                "n, k, b": f"{contract.rounds}, {contract.max_participations}, {contract.min_separation}",
                "rmse": round(error.rmse, 4),
                "sensitivity": round(found.sensitivity.value, 5),
                "kind": found.sensitivity.kind,
                "stated": None if found.stated is None else round(found.stated, 5),
                "under-noised": found.under_noised,
                "seconds": round(seconds, 2),
            }


def main() -> None:
    kept, page = RESULTS / "neighbours.json", RESULTS / "neighbours.md"
    all_rows = json.loads(kept.read_text("utf-8")) if kept.exists() else []
    for library, made in {"fedmf": ours, "opake": opake, "jax_privacy": jax_privacy}.items():
        if importlib.util.find_spec("torch" if library == "fedmf" else library):
            label = library if library == "fedmf" else f"{library} {version(library.replace('_', '-'))}"
            all_rows = [row for row in all_rows if row["library"] != label] + [*rows(label, made())]
    text = ",\n".join(json.dumps(row, ensure_ascii=False) for row in all_rows)
    kept.write_text(f"[\n{text}\n]\n", "utf-8")
    names = ["n, k, b", "strategy", "library", "RMSE", "sensitivity", "stated", "seconds"]
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for row in sorted(all_rows, key=lambda row: (row["n, k, b"], [*STRATEGIES].index(row["strategy"]))):
        kind = "" if row["kind"] == "exact" else " (bound)"
        stated = "" if row["stated"] is None else f"{row['stated']:.4f}"
        lines.append(
            f"| {row['n, k, b']} | {row['strategy']} | {row['library']} | {row['rmse']:.3f} | "
            f"{row['sensitivity']:.4f}{kind} | {stated}{' **too small**' * row['under-noised']} | "
            f"{row['seconds']:g} |"
        )
    head = page.read_text("utf-8").split("| n, k, b")[0] if page.exists() else "# Neighbours\n\n"
    page.write_text(head + "\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
