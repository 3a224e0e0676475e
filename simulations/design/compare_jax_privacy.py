"""RMSE, MaxSE and time of our optimised mechanisms beside those of jax-privacy, judged by the same code.

    python -m venv JAX_ENV && JAX_ENV/bin/pip install jax jax-privacy torch scipy threadpoolctl
    JAX_ENV/bin/python simulations/design/compare_jax_privacy.py [--quick] [--only NAME] [--json]

The judge takes the matrix of either side, computes ‖AC⁻¹‖_F/√n, or the largest row norm of AC⁻¹, densely
and the (k, b) sensitivity with `fedmf`, so that neither side's own figures count. Times are those of
the first call, with compilation, as a user meets them; the cache of fedmf is off. A ratio below 1 is in
favour of fedmf.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ["FEDMF_CACHE"] = "off"

import numpy as np

from fedmf.mechanisms.errors import Objective
from fedmf.mechanisms.matrix import Dense
from fedmf.mechanisms.registry import build, names
from fedmf.mechanisms.sensitivity import stated_sensitivity
from fedmf.participation import Participation

Matrix = np.ndarray
MEAN = (
    ("banded-toeplitz", 64, 4, 16, 8),
    ("banded-toeplitz", 512, 4, 128, 32),
    ("banded-toeplitz", 1000, 1, 1000, 64),
    ("banded-toeplitz", 2000, 5, 400, 200),
    ("banded", 64, 4, 16, 8),
    ("banded", 256, 4, 64, 16),
    ("banded", 256, 8, 32, 8),
    ("dense", 64, 1, 64, 0),
    ("dense", 64, 4, 16, 0),
    ("dense", 256, 4, 64, 0),
    ("blt", 256, 1, 256, 2),
    ("blt", 512, 4, 128, 3),
    ("blt", 2000, 5, 400, 3),
    ("banded-inverse", 64, 4, 16, 4),
    ("banded-inverse", 256, 4, 64, 8),
    ("banded-inverse", 512, 4, 128, 16),
    ("banded-inverse", 1000, 10, 100, 4),
    ("banded-inverse", 2000, 5, 400, 16),
)
MAX = (
    ("square-root", 256, 1, 256, 0),
    ("square-root", 2000, 1, 2000, 0),
    ("banded-toeplitz", 64, 4, 16, 8),
    ("banded-toeplitz", 512, 4, 128, 32),
    ("banded-toeplitz", 1000, 1, 1000, 64),
    ("banded-toeplitz", 2000, 5, 400, 200),
    ("normalized-banded", 64, 4, 16, 8),
    ("normalized-banded", 256, 4, 64, 16),
    ("normalized-banded", 256, 8, 32, 8),
    ("dense", 64, 1, 64, 0),
    ("dense", 256, 1, 256, 0),
    ("dense", 64, 4, 16, 0),
    ("blt", 256, 1, 256, 2),
    ("blt", 512, 4, 128, 3),
    ("blt", 2000, 5, 400, 3),
)
LABELS = {"rmse": "RMSE", "max": "MaxSE"}
SETTINGS = (*(("rmse", *setting) for setting in MEAN), *(("max", *setting) for setting in MAX))


@dataclass
class Row:
    """One setting: the error that was minimised, and seconds, of either side."""

    error: str
    mechanism: str
    n: int
    k: int
    b: int
    size: int
    theirs: float
    ours: float
    seconds_theirs: float
    seconds_ours: float


def judged(error: str, C: Matrix, k: int, b: int) -> float:
    """(1/√n)·‖AC⁻¹‖_F·sens or max_t ‖(AC⁻¹)_t‖·sens for prefix sums."""
    rows = np.linalg.norm(np.cumsum(np.linalg.solve(C, np.eye(len(C))), axis=0), axis=1)
    size = rows.max() if error == "max" else np.sqrt((rows**2).mean())
    return float(size * stated_sensitivity(Dense(C), Participation(len(C), k, b)).value)


def label(error: str, mechanism: str, n: int, k: int, b: int, size: int) -> str:
    """By which a setting is kept."""
    return f"{LABELS[error]} {mechanism}, n = {n}, k = {k}, b = {b}" + (f", {size}" if size else "")


def theirs(error: str, mechanism: str, n: int, k: int, b: int, size: int) -> Matrix:
    import jax.numpy as jnp
    from jax_privacy.matrix_factorization import banded, buffered_toeplitz, dense, toeplitz

    reduce = jnp.max if error == "max" else jnp.mean
    if mechanism == "square-root":
        made = toeplitz.materialize_lower_triangular(toeplitz.optimal_max_error_strategy_coefs(n), n)
    elif mechanism == "banded-toeplitz":
        coefficients = toeplitz.optimize_banded_toeplitz(n, size, reduction_fn=reduce)
        made = toeplitz.materialize_lower_triangular(coefficients, n)
    elif mechanism == "banded-inverse":  # after 2.0.0; these were measured on 8967688
        coefficients = toeplitz.optimize_banded_inverse_toeplitz(
            n=n, min_sep=b, num_bands=size, max_participations=k
        )
        made = np.linalg.inv(toeplitz.materialize_lower_triangular(coefficients, n))
    elif mechanism.endswith("banded"):
        made = banded.optimize(n, bands=size, max_optimizer_steps=300, reduction_fn=reduce).materialize()
    elif mechanism == "dense":
        made = dense.optimize(n, epochs=k, reduction_fn=reduce)
    else:
        made = buffered_toeplitz.optimize(
            n=n,
            min_sep=b,
            max_participations=k,
            error="max" if error == "max" else "mean",
            min_buffers=size,
            max_buffers=size,
        ).materialize(n)
    return np.asarray(made, dtype=np.float64)


def ours(error: str, mechanism: str, n: int, k: int, b: int, size: int) -> Matrix:
    own = {"buffers" if mechanism == "blt" else "bands": size} if size else {}
    made = build(mechanism, Participation(n, k, b), params=own, objective=Objective.parse(error))
    return made.factorization.materialize()


def timed(make: Callable[..., Matrix], *arguments: object) -> tuple[Matrix, float]:
    start = time.perf_counter()
    return make(*arguments), time.perf_counter() - start


def rows(largest: int, only: list[str] | None, wanted: list[str] | None) -> Iterator[Row]:
    for error, *setting in SETTINGS:
        mechanism, n, k, b, _ = setting
        if mechanism not in (only or names()) or n > largest or error not in (wanted or ("rmse", "max")):
            continue
        mine, seconds = timed(ours, error, *setting)
        other, their_seconds = timed(theirs, error, *setting)
        errors = judged(error, other, k, b), judged(error, mine, k, b)
        yield Row(error, *setting, *errors, their_seconds, seconds)


def heading() -> list[str]:
    """What every claim of speed carries: command, day and machine."""
    return [
        "# Designs compared with jax-privacy",
        "",
        "    JAX_ENV/bin/python " + " ".join(sys.argv),
        "",
        f"Measured on {date.today().isoformat()}, {os.cpu_count()} cores, {platform.machine()}.",
        "Errors, with the sensitivity, are judged by one dense computation. Seconds are fedmf's;",
        "the last ratio is that of fedmf's seconds to those of jax-privacy, compilation included.",
        "",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="n <= 256 only")
    parser.add_argument("--only", action="append", help="this mechanism only; repeatable")
    parser.add_argument("--error", action="append", choices=("rmse", "max"), help="this error only")
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    parser.add_argument("--kept", type=Path, help="add jax-privacy's errors to this JSON file")
    parser.add_argument("--output", type=Path, help="also write the table as markdown")
    options = parser.parse_args()
    try:
        import jax
        import jax_privacy  # noqa: F401
    except ImportError as missing:
        print(
            f"needs jax-privacy ({missing}); in a scratch environment: "
            "pip install jax jax-privacy torch scipy threadpoolctl",
            file=sys.stderr,
        )
        return 2
    jax.config.update("jax_enable_x64", True)
    lines = [
        "| error | mechanism | n | k | b | bands or buffers | jax-privacy | fedmf | ratio − 1 | "
        "seconds | ratio |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    if not options.json:
        print("\n".join(lines))
    kept = json.loads(options.kept.read_text()) if options.kept and options.kept.exists() else {}
    for row in rows(256 if options.quick else 10**9, options.only, options.error):
        lines.append(
            f"| {LABELS[row.error]} | {row.mechanism} | {row.n} | {row.k} | {row.b} | {row.size or ''} | "
            f"{row.theirs:.6f} | "
            f"{row.ours:.6f} | {row.ours / row.theirs - 1:+.1e} | {row.seconds_ours:.2f} | "
            f"{row.seconds_ours / row.seconds_theirs:.3f} |"
        )
        kept[label(row.error, row.mechanism, row.n, row.k, row.b, row.size)] = round(row.theirs, 9)
        print(
            json.dumps({**asdict(row), "ratio": row.ours / row.theirs}) if options.json else lines[-1],
            flush=True,
        )
    if options.kept:
        options.kept.write_text(json.dumps(kept, indent=1) + "\n")
    if options.output:
        options.output.write_text("\n".join([*heading(), *lines]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
