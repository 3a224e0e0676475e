"""Other libraries and this one: error and time of design at one (n, k, b), noise, users trained a
second.

    python simulations/design/neighbors.py [--only designs | timings]

Each call judges the libraries that its environment has in addition to what fedmf needs: pfl, flwr,
opake, opacus, correlated-noise-mechanism, jax-privacy. It keeps what it found in
docs/results/neighbors.json and writes the page from all that is kept. RMSE is that of prefix sums
at ε = 8 and δ = 1e-5 with the exact sensitivity of `fedmf.import_strategy`, whatever the library
states. All times are processor time, in one thread: a design's that of its first call; noise's that
of adding one round of it to a vector of 10⁶ numbers, int64 for this package and float32 for others,
once past rounds are stored, median of seven rounds; users a second are those of
simulations/benchmarks/engine.py.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ |= {"FEDMF_CACHE": "off", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
os.environ |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}

import numpy as np
import torch

from fedmf.accounting.gaussian import gaussian_sigma
from fedmf.mechanisms.closed_forms import identity
from fedmf.mechanisms.imported import import_strategy
from fedmf.mechanisms.objective import errors
from fedmf.mechanisms.registry import build
from fedmf.mechanisms.workload import prefix
from fedmf.noise.key import Domain, NoiseKey
from fedmf.noise.noise_stream import NoiseStream
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
    "BandInvMF, 16 bands": {"name": "banded-inverse", "bands": 16},
    "dense": {"name": "dense"},
}
TOEPLITZ = "banded Toeplitz, 30 bands"
BLT = "BLT"
D = 10**6
SIGMA = gaussian_sigma(8.0, 1e-5)
#: Of a BLT whose noise is timed, where a design would take longer than the noise.
DECAYS = [0.99, 0.9, 0.6, 0.2]
WEIGHTS = [0.02, 0.05, 0.1, 0.2]
Stated = Callable[[], float] | float | None
Made = tuple[str, Callable[[Participation], tuple[Any, Stated]]]
Add = Callable[[], object]


def opake_recipes() -> tuple[Any, ...]:
    """In the order of STRATEGIES; without column normalization."""
    from opake.dpftrl import noise

    return (
        noise.lambda_cgd_strategy(lambda_=0.9, normalized=False),
        noise.bisr_strategy(bandwidth=16, normalized=False),
        noise.bsr_strategy(bandwidth=16, alpha=1.0, beta=0.0),
        noise.band_mf_strategy(bands=30),
        noise.blt_strategy(),
    )


def opake() -> Iterator[Made]:
    """Coefficients of its recipes, which state their sensitivity."""

    def made(of: Participation, recipe: Any) -> tuple[Any, Stated]:
        asked = {"n_steps": of.rounds, "min_sep": of.min_separation}
        asked["max_participations"] = of.max_participations
        return recipe.coefficients(**asked), partial(recipe.sensitivity, **asked)

    for name, recipe in zip([*STRATEGIES][:5], opake_recipes(), strict=True):
        yield name, partial(made, recipe=recipe)


def pfl() -> Iterator[Made]:
    """Its one mechanism: a banded matrix for prefix sums, noise by composing k rounds of unit
    norm.
    """
    from pfl.internal.ops import pytorch_ops
    from pfl.internal.ops.selector import set_framework_module

    set_framework_module(pytorch_ops)
    from pfl.privacy.ftrl_mechanism import BandedMatrixFactorizationMechanism as Mechanism
    from pfl.privacy.ftrl_mechanism import FTRLMatrixFactorizer

    def banded(of: Participation) -> tuple[Any, float]:
        n = of.rounds
        b = of.min_separation
        mask = Mechanism._get_banded_matrix_mask(n, b - 1).astype(np.float64)
        gram = np.asarray(FTRLMatrixFactorizer(np.tril(np.ones((n, n))), mask).optimize())
        return np.linalg.cholesky(gram), float(np.sqrt(-(-n // b)))

    yield "banded, b − 1 bands", banded


def jax_privacy() -> Iterator[Made]:
    """Those of `jax_privacy_errors.py`, with the library's general sensitivity; two came after
    2.0.0.
    """
    import jax
    from jax_privacy.matrix_factorization import sensitivity, toeplitz
    from jax_privacy_errors import theirs

    jax.config.update("jax_enable_x64", True)
    made = {TOEPLITZ: ("banded-toeplitz", 30), BLT: ("blt", 0), "dense": ("separated", 0)}
    if hasattr(toeplitz, "optimize_banded_inverse_toeplitz"):
        made |= {"BISR, 16 bands": ("bisr", 16), "BandInvMF, 16 bands": ("banded-inverse", 16)}

    def design(of: Participation, mechanism: str, size: int) -> tuple[Any, Stated]:
        n = of.rounds
        k = of.max_participations
        b = of.min_separation
        C = theirs("rmse", mechanism, n, k, b, size)
        stated = partial(sensitivity.get_min_sep_sensitivity_upper_bound, C, b, k)
        return C if mechanism == "separated" else C[:, 0], stated

    for name, (mechanism, size) in made.items():
        yield name, partial(design, mechanism=mechanism, size=size)


def cnm_blt(of: Participation) -> tuple[Any, Stated]:
    """The BLT of `CNMEngine` with four buffers, as in its README, and the sensitivity that it
    counts.
    """
    from correlated_noise_mechanism.blt_optimizer_diffloss import BLTDifferentiableLossOptimizer
    from correlated_noise_mechanism.utils import calculate_sensitivity_squared

    torch.set_default_dtype(torch.float64)  # as importing it does
    n = of.rounds
    k = of.max_participations
    b = of.min_separation
    made = BLTDifferentiableLossOptimizer(n, 4, b, k).optimize(num_iterations=50, lr=0.01)
    torch.set_default_dtype(torch.float32)
    weights = made["omega"].numpy()
    decays = made["theta"].numpy()

    def stated() -> float:
        return float(calculate_sensitivity_squared(weights, decays, 4, k, b, n)) ** 0.5

    return np.append(1.0, decays ** np.arange(n - 1)[:, None] @ weights), stated


def design(strategy: str, of: Participation) -> Any:
    """Our factorization."""
    params = dict(STRATEGIES[strategy])
    kind = params.pop("name")
    bands = params.pop("bands", None)
    if kind == "banded":
        bands = of.min_separation - 1
    return build(kind, of, bands=bands, params=params).factorization


def ours() -> Iterator[Made]:
    """Designs of this package."""

    def column(of: Participation, name: str) -> tuple[Any, None]:
        made = design(name, of).materialize()
        return made if name.startswith(("banded, ", "dense")) else made[:, 0], None

    for name in STRATEGIES:
        yield name, partial(column, name=name)


def our_noise() -> Iterator[tuple[str, Add]]:
    """Noise of this package for the designs above, and independent noise."""
    of = CONTRACTS[0]
    made = {name: design(name, of) for name in STRATEGIES if name != "dense"}
    made["independent"] = identity(of.rounds)
    for name, factorization in made.items():
        inverse = factorization.streaming_inverse()
        stream = NoiseStream(NoiseKey.from_seed(0), Domain.TRAINING, inverse, of.rounds, D, 2.0**35)
        yield name, partial(stream.release, torch.zeros(D, dtype=torch.int64))


def opake_noise() -> Iterator[tuple[str, Add]]:
    """Opake's noise functions, whose state goes from call to call."""
    import opake.random
    from opake.dpftrl.noise import identity_strategy, mf_gaussian_noise
    from opake.types import clipped

    names = [*[*STRATEGIES][:5], "independent"]
    for name, recipe in zip(names, [*opake_recipes(), identity_strategy()], strict=True):
        update = {"w": torch.zeros(D)}
        given = {"n_steps": 300, "min_sep": 30, "max_participations": 10, "noise_multiplier": 1.0}
        add, state = mf_gaussian_noise(update, recipe, key=opake.random.key(0), **given)
        held = [state]

        def one(add: Any = add, update: Any = update, held: list[Any] = held) -> None:
            held[0] = add(clipped(update, max_norm=1.0), held[0])[1]

        yield name, one


def pfl_noise() -> Iterator[tuple[str, Add]]:
    """Normals by NumPy, correlated by pfl's forward substitution."""
    from pfl.privacy.ftrl_mechanism import ForwardSubstitution

    next(pfl())
    matrix = design("banded, b − 1 bands", CONTRACTS[0]).materialize()
    solve = ForwardSubstitution(matrix, 29)
    generator = np.random.default_rng(0)
    yield "banded, b − 1 bands", lambda: solve.step(generator.standard_normal(D, np.float32))


def flower_noise() -> Iterator[tuple[str, Add]]:
    """What Flower's own wrappers add to an aggregate."""
    from flwr.supercore.differential_privacy import add_gaussian_noise_inplace

    yield "independent", partial(add_gaussian_noise_inplace, [np.zeros(D, np.float32)], 1.0)


def jax_noise() -> Iterator[tuple[str, Add]]:
    """Its privatizers, compiled, in float32."""
    import jax
    import jax.numpy as jnp
    from jax_privacy.matrix_factorization import buffered_toeplitz, streaming_matrix, toeplitz
    from jax_privacy.noise_addition import matrix_factorization_privatizer

    blt = buffered_toeplitz.BufferedToeplitz.build(DECAYS, WEIGHTS, dtype=jnp.float32)
    column = jnp.linspace(1, 0.1, 30, dtype=jnp.float32)
    update = jnp.zeros(D, jnp.float32)
    for name, matrix in {
        TOEPLITZ: toeplitz.inverse_as_streaming_matrix(column),
        BLT: blt.inverse_as_streaming_matrix(),
        "independent": streaming_matrix.identity(),
    }.items():
        made = matrix_factorization_privatizer(matrix, stddev=1.0, prng_key=0, dtype=jnp.float32)
        add = jax.jit(made.update, donate_argnums=1)
        held = [made.init(update)]

        def one(add: Any = add, held: list[Any] = held) -> None:
            noisy, held[0] = add(update, held[0])
            noisy.block_until_ready()

        yield name, one


def private_step(kind: Any, **more: Any) -> Add:
    """What an optimizer of Opacus does between clipping and the step."""
    p = torch.nn.Parameter(torch.zeros(D))
    given = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "expected_batch_size": 1, **more}
    optimizer = kind(torch.optim.SGD([p]), **given)
    update = torch.zeros(D)

    def one() -> None:
        p.summed_grad = update.view(D)  # type: ignore[attr-defined]
        optimizer.add_noise()

    return one


def opacus_noise() -> Iterator[tuple[str, Add]]:
    """Its one optimizer."""
    from opacus.optimizers import DPOptimizer

    yield "independent", private_step(DPOptimizer)


def cnm_noise() -> Iterator[tuple[str, Add]]:
    """Its optimizer, in float32."""
    from correlated_noise_mechanism import CNMOptimizer

    torch.set_default_dtype(torch.float32)
    given = {"a": torch.tensor(WEIGHTS), "lamda": torch.tensor(DECAYS), "steps": 300}
    yield BLT, private_step(CNMOptimizer, mode="Multi-Epoch-BLT", **given)


def nanoseconds(add: Add, warm: int = 32, rounds: int = 7) -> float:
    """A number's share of one round of noise, once past rounds are stored."""
    taken = []
    for number in range(warm + rounds):
        begun = time.process_time()
        add()
        if number >= warm:
            taken.append(time.process_time() - begun)
    return round(float(np.median(taken)) / D * 1e9, 1)


def rows(library: str, made: Iterable[Made]) -> Iterator[dict[str, Any]]:
    """Each strategy at each contract; matrices with b − 1 bands at the first alone, for their
    time.
    """
    for name, make in made:
        for contract in CONTRACTS[:1] if name.startswith("banded, ") else CONTRACTS:
            begun = time.process_time()
            strategy, stated = make(contract)
            seconds = time.process_time() - begun
            found = import_strategy(
                strategy, contract, float(stated()) if callable(stated) else stated
            )
            print(library, name, contract, f"{seconds:.1f} s", flush=True)
            error = errors(found.factorization, prefix(contract.rounds), found.sensitivity, SIGMA)
            yield {
                "library": library,
                "strategy": name,
                "n, k, b": (
                    f"{contract.rounds}, {contract.max_participations}, {contract.min_separation}"
                ),
                "rmse": round(error.rmse, 4),
                "sensitivity": round(found.sensitivity.value, 5),
                "kind": found.sensitivity.kind,
                "stated": None if found.stated is None else round(found.stated, 5),
                "under-noised": found.under_noised,
                "seconds": round(seconds, 2),
            }


#: Strategies and noise of each library, by the name of its distribution.
LIBRARIES: dict[
    str, tuple[Callable[[], Iterable[Made]], Callable[[], Iterable[tuple[str, Add]]]]
] = {
    "opake": (opake, opake_noise),
    "jax-privacy": (jax_privacy, jax_noise),
    "pfl": (pfl, pfl_noise),
    "flwr": (tuple, flower_noise),
    "opacus": (tuple, opacus_noise),
    "correlated-noise-mechanism": (lambda: [(BLT, cnm_blt)], cnm_noise),
}
MODEL = "small mlp"


def here() -> dict[str, str]:
    """Libraries of this environment, with their versions."""
    found = [name for name in LIBRARIES if importlib.util.find_spec(name.replace("-", "_"))]
    return {name: f"{name} {version(name)}" for name in found}


def trained() -> Iterator[dict[str, Any]]:
    """Users a second of this package, of a loop, and of each library that trains."""
    peers = here()
    peers.pop("correlated-noise-mechanism", None)
    if "jax-privacy" in peers:
        peers["jax"] = f"jax {version('jax')}, one scan"
    script = Path(__file__).resolve().parents[1] / "benchmarks" / "engine.py"
    command = [
        sys.executable,
        str(script),
        "--models",
        MODEL,
        "--json",
        "--turns",
        "15",
        "--peers",
        *peers,
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    labels = {"loop": "torch, a loop", "engine auto (compiled)": "fedmf"} | peers
    for row in map(json.loads, filter(lambda line: line.startswith("{"), done.stdout.splitlines())):
        peer = row["name"].removeprefix(f"{MODEL}: ")
        yield {
            "library": labels[peer],
            "peer": peer * (peer in peers),
            "users": round(row["value"]),
        }


def measured(only: str | None) -> Iterator[dict[str, Any]]:
    """The rows of this environment."""
    todo = {"fedmf": (ours, our_noise)} | {label: LIBRARIES[name] for name, label in here().items()}
    for label, (made, noise) in todo.items():
        yield from rows(label, made() if only != "timings" else ())
        for name, add in noise() if only != "designs" else ():
            yield {"library": label, "noise of": name, "nanoseconds": nanoseconds(add)}
            print(label, name, flush=True)
    if only != "designs":
        yield from trained()


def table(names: list[str], lines: list[list[str]]) -> list[str]:
    """A table of Markdown."""
    return [f"| {' | '.join(cells)} |" for cells in (names, ["---"] * len(names), *lines)]


def cell(row: dict[str, Any] | None) -> str:
    """RMSE and seconds of a design, and whether the library's own noise would be too small."""
    if row is None:
        return ""
    return (
        f"{row['rmse']:.3f}, {row['seconds']:.3g} s"
        + ", **too little noise**" * row["under-noised"]
    )


def page(all_rows: list[dict[str, Any]]) -> str:
    """The three tables."""
    order = [*STRATEGIES, "independent"]
    users = list[list[str]]()
    found = {
        (row["n, k, b"], row["strategy"], row["library"]): row
        for row in all_rows
        if "strategy" in row
    }
    makers = [*dict.fromkeys(["fedmf", *sorted(library for *_, library in found)])]
    places = sorted(
        {place[:2] for place in found}, key=lambda place: (place[0], order.index(place[1]))
    )
    designs = [
        [*place, *(cell(found.get((*place, library))) for library in makers)] for place in places
    ]
    noise = {
        (row["noise of"], row["library"]): row["nanoseconds"]
        for row in all_rows
        if "noise of" in row
    }
    others = {name: [] for name in order if (name, "fedmf") in noise}
    for (name, library), taken in sorted(noise.items()):
        if library != "fedmf":
            others[name].append(f"{library}: {taken}")
    times = [[name, str(noise[name, "fedmf"]), ", ".join(told)] for name, told in others.items()]
    for row in sorted((row for row in all_rows if "users" in row), key=lambda row: -row["users"]):
        users.append([row["library"], f"{20 * row['users']:,}"])
    lines = [
        "## Errors",
        "",
        "RMSE and seconds, `python simulations/design/neighbors.py --only designs`:",
        "",
    ]
    lines += table(["n, k, b", "strategy", *makers], designs)
    lines += ["", "## Noise", "", "Nanoseconds per number, `neighbors.py --only timings`:", ""]
    lines += table(["mechanism", "fedmf", "others"], times)
    lines += [
        "",
        "## Training",
        "",
        "MLP 784-64-10, 20 images per user, two steps of 10, one core,",
    ]
    lines += [f'`simulations/benchmarks/engine.py --models "{MODEL}" --peers NAME`:', ""]
    lines += table(["library", "images/s"], users)
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=("designs", "timings"))
    only = parser.parse_args().only
    torch.set_num_threads(1)
    kept = RESULTS / "neighbors.json"
    written = RESULTS / "neighbors.md"
    all_rows: list[dict[str, Any]] = []
    for row in measured(only):
        all_rows = json.loads(kept.read_text("utf-8")) if kept.exists() else []
        same = ("library", "strategy", "n, k, b", "noise of", "peer")
        all_rows = [
            old for old in all_rows if any(old.get(key) != row.get(key) for key in same)
        ] + [row]
        text = ",\n".join(json.dumps(row, ensure_ascii=False) for row in all_rows)
        kept.write_text(f"[\n{text}\n]\n", "utf-8")
    head = (
        written.read_text("utf-8").split("## Errors")[0]
        if written.exists()
        else "# Other libraries\n\n"
    )
    written.write_text(head + page(all_rows), "utf-8")


if __name__ == "__main__":
    main()
