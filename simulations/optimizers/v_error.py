"""Fig. 4 of the JME paper: expected error of Adam's v for d = 10⁶ and n = 1000, and that of v by
blocks.

    python simulations/optimizers/v_error.py [--quick]

Single participation, replace-one adjacency, ‖x_t‖ ≤ 1, β₁ = 0.9, β₂ = 0.999, C = I and C = A^{1/2}.
Errors are Σ_t E‖v̂_t − v_t‖² over all coordinates, in closed form (`fedmf.optim`) and, for fewer
coordinates, by Monte Carlo on the package's noise streams: all terms that matter are proportional
to d. A block's v is given to each of its coordinates; that a block has but one v is not counted as
an error.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import numpy as np
import torch
from second_moment_errors import released_variances, squared_biases, squared_variances

from fedmf.matrices.factorization import Factorization
from fedmf.matrices.joint_sensitivity import UserRange
from fedmf.matrices.toeplitz import Toeplitz
from fedmf.mechanisms.closed_forms import identity
from fedmf.mechanisms.closed_forms import square_root as plain_root
from fedmf.mechanisms.workload import exponential
from fedmf.moments import jme
from fedmf.noise.key import Domain, NoiseKey
from fedmf.noise.noise_stream import NoiseStream
from fedmf.participation import Participation

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "design"))
from pictures import RESULTS, draw

D = 10**6
BETAS = (0.9, 0.999)
BLOCKS = (100, 10_000)


def weights(rounds: int) -> np.ndarray:
    """A₂ as in the paper: (1 − β₂)β₂^{t−i}, without the correction for the start."""
    return (1 - BETAS[1]) * exponential(BETAS[1], rounds).materialize()


def square_root(decay: float, rounds: int) -> Factorization:
    """A^{1/2} of the exponential average."""
    return Toeplitz(plain_root(rounds).strategy_coefs * decay ** np.arange(rounds), rounds)


def predicted(C: tuple[Factorization, Factorization], sigma: float) -> dict[str, float]:
    """Σ_t E‖v̂_t − v_t‖² by method for noise multiplier σ, d = 10⁶ and the same x in every
    round.
    """
    n = C[0].rounds
    made = jme(*C, Participation(n, 1, n), UserRange(1.0, 2, "replace-one"), sigma)
    assert made.second_std is not None
    A_2 = weights(n)
    squared = D * squared_variances(A_2, C[0], made.first_std, 1, np.full((n, n), 1.0 / D)).sum()
    found = {
        "DP-Adam": squared + D * (squared_biases(A_2, C[0], made.first_std) ** 2).sum(),
        "DP-Adam, debiased": squared,
        "JME-Adam": D * released_variances(A_2, C[1], made.second_std, 1).sum(),
    }
    for size in BLOCKS:
        found[f"block JME-Adam, blocks of {size:,}"] = (
            D * released_variances(A_2, C[1], made.second_std, size).sum()
        )
    return {name: float(value) for name, value in found.items()}


def powers(C: tuple[Factorization, Factorization]) -> dict[str, tuple[float, float]]:
    """(p, q) with error p·σ⁴ + q·σ² by method, from two values of σ."""
    one = predicted(C, 1.0)
    two = predicted(C, 2.0)
    return {
        name: ((two[name] - 4 * one[name]) / 12, (16 * one[name] - two[name]) / 12) for name in one
    }


def noise_rows(C: Factorization, dimension: int, domain: Domain) -> torch.Tensor:
    """All rows of a real stream, scaled to τ = 1; shape (n, dimension)."""
    std = 2.0**33
    stream = NoiseStream(
        NoiseKey.from_seed(4), domain, C.streaming_inverse(), C.rounds, dimension, std
    )
    rows = torch.zeros(C.rounds, dimension, dtype=torch.int64)
    stream.release_rows(rows)
    return rows / std


def measured(
    C: tuple[Factorization, Factorization], sigma: float, rows: tuple[torch.Tensor, torch.Tensor]
) -> dict[str, float]:
    """The same from the noise of real streams with x = 0, scaled to 10⁶ coordinates."""
    n, dimension = rows[0].shape
    made = jme(*C, Participation(n, 1, n), UserRange(1.0, 2, "replace-one"), sigma)
    assert made.second_std is not None
    decay = BETAS[1]
    variances = made.first_std**2 * C[0].noise_row_variances()
    v = {
        name: torch.zeros(dimension, dtype=torch.float64) for name in ("biased", "debiased", "jme")
    }
    errors = dict.fromkeys(v, 0.0)
    for t in range(n):
        u = made.first_std * rows[0][t]
        q = made.second_std * rows[1][t]
        for name, energy in (("biased", u**2), ("debiased", u**2 - variances[t]), ("jme", q)):
            v[name].mul_(decay).add_(energy, alpha=1 - decay)
            errors[name] += float(v[name].square().sum()) * D / dimension
    names = {"DP-Adam": "biased", "DP-Adam, debiased": "debiased", "JME-Adam": "jme"}
    return {name: errors[short] for name, short in names.items()}


def main() -> None:
    """Curves, table, picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="n = 100 and fewer points")
    options = parser.parse_args()
    n, points, sample = (100, 5, 200) if options.quick else (1000, 13, 1000)
    pairs = {
        "C = I": (identity(n), identity(n)),
        "C = A^{1/2}": (square_root(BETAS[0], n), square_root(BETAS[1], n)),
    }
    sigmas = np.geomspace(0.05, 20, points)
    forms = {label: powers(C) for label, C in pairs.items()}
    lines = [
        (
            f"Σ_t E‖v̂_t − v_t‖² of v, n = {n}, d = 10⁶, β₂ = {BETAS[1]}, single participation,"
            " replace-one."
        ),
        (
            f"In brackets: Monte Carlo over formula ({sample:,} coordinates of real noise streams,"
            " x = 0)."
        ),
        "",
        "| factorization | method | "
        + " | ".join(f"σ = {s:g}" for s in (0.5, 2.0, 8.0))
        + " | equal to JME at σ |",
        "|---|---|---|---|---|---|",
    ]
    for label, C in pairs.items():
        domains = (Domain.FIRST_MOMENT, Domain.SECOND_MOMENT)
        rows = tuple(
            noise_rows(one, sample, domain) for one, domain in zip(C, domains, strict=True)
        )
        seen = {s: measured(C, s, rows) for s in (0.5, 2.0, 8.0)}
        for name, (p, q) in forms[label].items():
            cells = []
            for s, values in seen.items():
                formula = p * s**4 + q * s**2
                ratio = f" ({values[name] / formula:.3f})" if name in values else ""
                cells.append(f"{formula:.3g}{ratio}")
            lines.append(
                f"| {label} | {name} | "
                + " | ".join(cells)
                + f" | {_crossing(forms[label], name)} |"
            )
    (RESULTS / "optimizers-v-error.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    titles = {"C = I": "independent noise", "C = A^{1/2}": "square-root noise"}
    panels = {
        titles[label]: (
            {
                name: [(float(s), p * s**4 + q * s**2) for s in sigmas]
                for name, (p, q) in methods.items()
            },
            "noise multiplier σ",
            "squared error of v, all rounds",
        )
        for label, methods in forms.items()
    }
    draw("optimizers-fig4", panels, "xy")
    print("\n".join(lines))


def _crossing(forms: dict[str, tuple[float, float]], name: str) -> str:
    """σ from which on a method that squares has a larger error than JME-Adam."""
    p, q = forms[name]
    return f"{math.sqrt((forms['JME-Adam'][1] - q) / p):.3g}" if name.startswith("DP") else ""


if __name__ == "__main__":
    main()
