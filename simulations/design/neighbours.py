"""Strategies of other libraries and ours at one (n, k, b): error, design time, stated sensitivity.

    python -m venv /tmp/opake && /tmp/opake/bin/pip install opake==0.16.1 .
    /tmp/opake/bin/python simulations/design/neighbours.py

with `jax-privacy==2.0.0`, `pfl==0.6.0` or `flwr` in place of `opake==0.16.1` for the other rows.
Each call judges the libraries that its environment has, with `fedmf.import_strategy`, keeps the rows in
docs/results/neighbours.json and writes the page from all rows kept. RMSE is that of prefix sums at ε = 8 and
δ = 1e-5 with the exact sensitivity, whatever the library states; seconds are those of the first call. Noise
is the time to add one round of it to a float32 vector of 10⁶ numbers, once past rounds are stored: the
median of seven rounds on one thread, in nanoseconds a number.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ["FEDMF_CACHE"] = "off"

import numpy as np
import torch

from fedmf.accounting.gaussian import gaussian_sigma
from fedmf.mechanisms.closed_forms import identity
from fedmf.mechanisms.errors import errors
from fedmf.mechanisms.imported import import_strategy
from fedmf.mechanisms.registry import build
from fedmf.mechanisms.workload import prefix
from fedmf.noise import GaussianSource, NoiseKey, NoiseStream
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
    "banded, b − 1 bands": {"name": "banded"},
}
D = 10**6
Made = tuple[str, Callable[[Participation], tuple[Any, float | None]]]
Add = Callable[[], object]


def opake_recipes() -> tuple[Any, ...]:
    """In the order of STRATEGIES; without column normalisation."""
    from opake.dpftrl import noise

    return (
        noise.lambda_cgd_strategy(lambda_=0.9, normalized=False),
        noise.bisr_strategy(bandwidth=16, normalized=False),
        noise.bsr_strategy(bandwidth=16, alpha=1.0, beta=0.0),
        noise.band_mf_strategy(bands=30),
        noise.blt_strategy(),
    )


def opake() -> Iterator[Made]:
    """Recipes, which state their sensitivity."""
    for name, recipe in zip([*STRATEGIES][:5], opake_recipes(), strict=True):
        yield name, lambda _, recipe=recipe: (recipe, None)


def pfl() -> Iterator[Made]:
    """Its one mechanism: a banded matrix for prefix sums, noise by composing k rounds of unit norm."""
    from pfl.internal.ops import pytorch_ops
    from pfl.internal.ops.selector import set_framework_module

    set_framework_module(pytorch_ops)
    from pfl.privacy.ftrl_mechanism import BandedMatrixFactorizationMechanism as Mechanism
    from pfl.privacy.ftrl_mechanism import FTRLMatrixFactorizer

    def banded(of: Participation) -> tuple[Any, float]:
        n, b = of.rounds, of.min_separation
        mask = Mechanism._get_banded_matrix_mask(n, b - 1).astype(np.float64)
        gram = np.asarray(FTRLMatrixFactorizer(np.tril(np.ones((n, n))), mask).optimize())
        return np.linalg.cholesky(gram), float(np.sqrt(-(-n // b)))

    yield "banded, b − 1 bands", banded


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


def design(strategy: str, of: Participation) -> Any:
    """Our factorization."""
    params = dict(STRATEGIES[strategy])
    kind, bands = params.pop("name"), params.pop("bands", None)
    if kind == "banded":
        bands = of.min_separation - 1
    return build(kind, of, bands=bands, params=params).factorization


def ours() -> Iterator[Made]:
    """Designs of this package."""
    for name, params in STRATEGIES.items():
        toeplitz = params["name"] != "banded"
        yield (
            name,
            lambda of, name=name, toeplitz=toeplitz: (
                design(name, of).materialize()[:, 0] if toeplitz else design(name, of).materialize(),
                None,
            ),
        )


def our_noise() -> Iterator[tuple[str, Add]]:
    """Noise of this package for the designs above, and independent noise."""
    of = CONTRACTS[0]
    made = {name: design(name, of) for name in STRATEGIES} | {"independent": identity(of.rounds)}
    for name, factorization in made.items():
        source = GaussianSource(NoiseKey.from_seed(0), D)
        stream = NoiseStream(source, factorization.recurrence(), of.rounds)
        yield name, partial(stream.add_, torch.zeros(D), 1.0)


def opake_noise() -> Iterator[tuple[str, Add]]:
    """Opake's noise functions, whose state goes from call to call."""
    import opake.random
    from opake.dpftrl.noise import identity_strategy, mf_gaussian_noise
    from opake.types import clipped

    names = [*[*STRATEGIES][:5], "independent"]
    for name, recipe in zip(names, [*opake_recipes(), identity_strategy()], strict=True):
        update = {"w": torch.zeros(D)}
        add, state = mf_gaussian_noise(
            update,
            recipe,
            n_steps=300,
            min_sep=30,
            max_participations=10,
            noise_multiplier=1.0,
            key=opake.random.key(0),
        )
        held = [state]

        def one(add: Any = add, update: Any = update, held: list[Any] = held) -> None:
            held[0] = add(clipped(update, max_norm=1.0), held[0])[1]

        yield name, one


def pfl_noise() -> Iterator[tuple[str, Add]]:
    """Normals by NumPy, correlated by pfl's forward substitution."""
    from pfl.privacy.ftrl_mechanism import ForwardSubstitution

    matrix = next(pfl())[1](CONTRACTS[0])[0]
    solve, generator = ForwardSubstitution(matrix, 29), np.random.default_rng(0)
    yield "banded, b − 1 bands", lambda: solve.step(generator.standard_normal(D, np.float32))


def flower_noise() -> Iterator[tuple[str, Add]]:
    """What Flower's own wrappers add to an aggregate."""
    from flwr.supercore.differential_privacy import add_gaussian_noise_inplace

    yield "independent", partial(add_gaussian_noise_inplace, [np.zeros(D, np.float32)], 1.0)


def nanoseconds(add: Add, warm: int = 32, rounds: int = 7) -> float:
    """A number's share of one round of noise, once past rounds are stored."""
    taken = []
    for number in range(warm + rounds):
        begun = time.perf_counter()
        add()
        if number >= warm:
            taken.append(time.perf_counter() - begun)
    return round(float(np.median(taken)) / D * 1e9, 1)


def rows(library: str, made: Iterator[Made]) -> Iterator[dict[str, Any]]:
    """Each strategy at each contract; matrices with b − 1 bands at the first alone, for their time."""
    for name, make in made:
        for contract in CONTRACTS[:1] if name.startswith("banded, ") else CONTRACTS:
            begun = time.perf_counter()
            strategy, stated = make(contract)
            found = import_strategy(strategy, contract, stated)
            print(library, name, contract, f"{time.perf_counter() - begun:.1f} s", flush=True)
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


#: Strategies and noise of each library, by the name of its distribution.
LIBRARIES: dict[
    str, tuple[Callable[[], Iterator[Made]] | None, Callable[[], Iterator[tuple[str, Add]]] | None]
] = {
    "opake": (opake, opake_noise),
    "jax-privacy": (jax_privacy, None),
    "pfl": (pfl, pfl_noise),
    "flwr": (None, flower_noise),
}


def measured(
    label: str, made: Iterator[Made] | None, noise: Iterator[tuple[str, Add]] | None
) -> list[dict[str, Any]]:
    """The rows of a library."""
    found = [*rows(label, made)] if made else []
    for name, add in noise or ():
        found.append({"library": label, "noise of": name, "nanoseconds": nanoseconds(add)})
        print(found[-1], flush=True)
    return found


def page(all_rows: list[dict[str, Any]]) -> str:
    """The two tables."""
    order = [*STRATEGIES, "independent"]
    names = ["n, k, b", "strategy", "library", "RMSE", "sensitivity", "stated", "seconds"]
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    strategies = [row for row in all_rows if "strategy" in row]
    for row in sorted(strategies, key=lambda row: (row["n, k, b"], order.index(row["strategy"]))):
        kind = "" if row["kind"] == "exact" else " (bound)"
        stated = "" if row["stated"] is None else f"{row['stated']:.4f}"
        lines.append(
            f"| {row['n, k, b']} | {row['strategy']} | {row['library']} | {row['rmse']:.3f} | "
            f"{row['sensitivity']:.4f}{kind} | {stated}{' **too small**' * row['under-noised']} | "
            f"{row['seconds']:g} |"
        )
    noise = {(row["noise of"], row["library"]): row["nanoseconds"] for row in all_rows if "noise of" in row}
    libraries = sorted({library for _, library in noise})
    lines += ["", f"| noise, ns a number | {' | '.join(libraries)} |", "|---" * (len(libraries) + 1) + "|"]
    for name in order:
        cells = (str(noise.get((name, library), "")) for library in libraries)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    torch.set_num_threads(1)
    kept, written = RESULTS / "neighbours.json", RESULTS / "neighbours.md"
    all_rows = json.loads(kept.read_text("utf-8")) if kept.exists() else []
    todo = {"fedmf": (ours, our_noise)}
    for name, makers in LIBRARIES.items():
        if importlib.util.find_spec(name.replace("-", "_")):
            todo[f"{name} {version(name)}"] = makers
    for label, makers in todo.items():
        found = measured(label, *(make() if make else None for make in makers))
        all_rows = [row for row in all_rows if row["library"] != label] + found
    text = ",\n".join(json.dumps(row, ensure_ascii=False) for row in all_rows)
    kept.write_text(f"[\n{text}\n]\n", "utf-8")
    head = written.read_text("utf-8").split("| n, k, b")[0] if written.exists() else "# Neighbours\n\n"
    written.write_text(head + page(all_rows), "utf-8")


if __name__ == "__main__":
    main()
