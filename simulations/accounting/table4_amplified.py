"""DP-λCGD (Kalinin et al. 2026), Table 4, amplified columns: ours beside the paper's.

    python simulations/accounting/table4_amplified.py [--rows TEXT]... [--error 0.02] [--show]

n = 3900, k = 10, b = 390, δ = 1e-5, zero-out adjacency; RMSE of prefix sums times the noise. DP-SGD
uses Poisson sampling, all other rows Balls-in-Bins. The strategies are those of the paper:
optimized, where they are, without regard to the sampling. The paper's accountant samples the
privacy loss plainly.

Each finished cell is added to docs/results/table4-amplified.json at once: a run that is stopped
goes on where it was, and a smaller --error computes anew only what was less accurate.
docs/results/table4-amplified.md shows the cells that are there.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

from cells import Cells

from fedmf.accounting.balls_in_bins import BallsInBinsPair
from fedmf.accounting.noise_level import amplified_noise
from fedmf.accounting.poisson import poisson_noise_multiplier
from fedmf.mechanisms.objective import query_variances
from fedmf.mechanisms.registry import build
from fedmf.mechanisms.workload import prefix
from fedmf.participation import Participation

CONTRACT = Participation(3900, 10, 390)
DELTA = 1e-5
EPSILONS = (8.0, 4.0, 2.0, 1.0, 0.5, 0.25)
RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
PAPER: dict[str, tuple[str, dict[str, float], tuple[float, ...]]] = {
    "DP-SGD": ("identity", {}, (21.82, 26.27, 31.68, 40.10, 59.17, 100.27)),
    "DP-λCGD (λ=0.975)": ("cgd", {"lambda": 0.975}, (9.33, 14.03, 21.45, 36.40, 68.37, 125.69)),
    "DP-λCGD (λ=0.95)": ("cgd", {"lambda": 0.95}, (10.27, 15.28, 21.45, 31.70, 56.75, 103.44)),
    "DP-λCGD (λ=0.9)": ("cgd", {"lambda": 0.9}, (13.25, 18.42, 24.73, 33.66, 54.33, 97.73)),
    "BISR (p=2)": ("bisr", {"bands": 2}, (30.52, 40.58, 49.44, 58.16, 71.20, 105.09)),
    "BISR (p=4)": ("bisr", {"bands": 4}, (21.00, 27.97, 34.87, 42.50, 58.27, 98.52)),
    # The paper prints 20.25 at ε = 1, a misprint of 30.25.
    "BISR (p=16)": ("bisr", {"bands": 16}, (11.50, 15.75, 21.10, 30.25, 52.81, 96.45)),
    "BISR (p=64)": ("bisr", {"bands": 64}, (6.81, 9.87, 15.92, 28.80, 53.89, 101.90)),
    "BISR (p=390)": ("bisr", {"bands": 390}, (6.34, 11.30, 20.77, 38.96, 73.70, 139.68)),
    "BSR (p=2)": ("bsr", {"bands": 2}, (39.65, 51.87, 62.97, 74.14, 88.33, 116.43)),
    "BSR (p=4)": ("bsr", {"bands": 4}, (29.29, 39.32, 48.13, 57.03, 70.47, 104.90)),
    "BSR (p=16)": ("bsr", {"bands": 16}, (16.88, 22.41, 28.59, 36.78, 55.03, 97.09)),
    "BSR (p=64)": ("bsr", {"bands": 64}, (9.62, 13.32, 18.88, 29.34, 52.16, 97.51)),
    "BSR (p=390)": ("bsr", {"bands": 390}, (5.49, 9.31, 17.06, 31.95, 60.43, 114.52)),
    "BandMF (p=2)": ("banded-toeplitz", {"bands": 2}, (37.67, 49.08, 59.95, 71.17, 86.25, 114.94)),
    "BandMF (p=4)": ("banded-toeplitz", {"bands": 4}, (27.00, 36.99, 45.90, 55.35, 68.64, 104.42)),
    "BandMF (p=16)": ("banded-toeplitz", {"bands": 16}, (15.00, 21.20, 28.13, 37.06, 56.29, 99.33)),
    "BandMF (p=64)": ("banded-toeplitz", {"bands": 64}, (8.77, 13.25, 19.76, 31.40, 56.07, 104.68)),
    "BandMF (p=390)": (
        "banded-toeplitz",
        {"bands": 390},
        (5.84, 10.42, 19.16, 35.94, 68.02, 128.79),
    ),
    "BandInvMF (p=2)": ("banded-inverse", {"bands": 2}, (9.70, 14.90, 24.41, 43.66, 82.77, 125.87)),
    "BandInvMF (p=4)": ("banded-inverse", {"bands": 4}, (8.07, 12.48, 20.76, 37.37, 70.90, 130.48)),
    "BandInvMF (p=16)": (
        "banded-inverse",
        {"bands": 16},
        (6.56, 11.23, 20.17, 37.09, 71.08, 130.90),
    ),
    "BandInvMF (p=64)": (
        "banded-inverse",
        {"bands": 64},
        (6.39, 11.36, 20.87, 39.13, 74.06, 140.38),
    ),
    # Without amplification, too, the paper's figure is below a certified bound: see
    # docs/dev/errata.md.
    "BandInvMF (p=390)": (
        "banded-inverse",
        {"bands": 390},
        (5.66, 9.86, 17.76, 33.25, 62.84, 119.20),
    ),
    "BLT": ("blt", {}, (5.87, 10.67, 19.50, 35.97, 69.41, 127.69)),
}
# What half of ε multiplies the noise by, about: where the next search begins.
_LESS_EPSILON = 1.5
NOTES = (
    (
        "DP-SGD agrees within 0.3 %, the closed forms within 2 %, more often above the paper than"
        " below. For"
    ),
    (
        "λ = 0.95, plain sampling from P leaves the noise of 10⁵ draws uncertain by 2 % at δ ="
        " 10⁻⁵, and few"
    ),
    (
        "rare draws give a value that is more often too low than too high. The paper does not say"
        " how many"
    ),
    (
        "draws it used, so this explains the size of the differences and does not prove their"
        " cause. BISR"
    ),
    (
        "with p = 16 at ε = 1 confirms that the printed 20.25 is a misprint of 30.25. BandInvMF"
        " with p = 64"
    ),
    (
        "is lower by 6 to 9 % at every ε. With p = 390 the paper's figure is below a certified"
        " bound without"
    ),
    (
        "amplification already ([errata](../dev/errata.md#bandinvmf-with-p--b)). With p = 2 it is"
        " the family"
    ),
    (
        "of DP-λCGD: ours is 1 to 5 % above the row λ = 0.975, as it should be, the paper's up to"
        " 21 %. No"
    ),
    (
        "one λ explains its six cells (0.982 fits ε ≥ 1 within 2.2 %, 0.983 fits ε = 0.5, and the"
        " cell at"
    ),
    (
        "0.25 is nearly that of the row λ = 0.975). For the other p we found no explanation. The"
        " offsets of p"
    ),
    (
        "= 64 and p = 390 are the same at every ε, so they lie in the strategy and not in the"
        " accountant."
    ),
)


def cells_of(label: str, relative_error: float) -> Callable[[float], dict[str, float]]:
    """From ε to the cell: RMSE, half of its 95 % interval, the draws. To be called from large to
    small ε.
    """
    name, params, _ = PAPER[label]
    strategy = build(name, CONTRACT, params=params).factorization
    scale = math.sqrt(float(query_variances(strategy, prefix(CONTRACT.rounds)).mean()))

    def poisson(epsilon: float) -> dict[str, float]:
        q = CONTRACT.max_participations / CONTRACT.rounds
        noise = poisson_noise_multiplier(epsilon, DELTA, q, CONTRACT.rounds)
        return {"rmse": scale * noise, "half_width": 0.0}

    start: float | None = None

    def bins(epsilon: float) -> dict[str, float]:
        nonlocal start
        found = amplified_noise(pair, epsilon, DELTA, relative_error, start=start)
        start = _LESS_EPSILON * found.value
        return {
            "rmse": scale * found.value,
            "half_width": 1.96 * scale * found.standard_error,
            "noise": found.value,
            "draws": found.estimate.samples,
        }

    if label == "DP-SGD":
        return poisson
    pair = BallsInBinsPair.of(strategy, CONTRACT)
    return bins


def compute(label: str, relative_error: float, cells: Cells, after: Callable[[], None]) -> None:
    """Finish a row, from the largest ε to the smallest."""
    error = 0.0 if label == "DP-SGD" else relative_error
    missing = [epsilon for epsilon in EPSILONS if not cells.has(f"{label}, ε={epsilon:g}", error)]
    if not missing:
        # A wide optimized strategy takes long to build.
        return
    cell_of = cells_of(label, relative_error)
    for epsilon in missing:
        cells.add(f"{label}, ε={epsilon:g}", error, cell_of(epsilon))
        after()


def table(cells: Cells) -> str:
    """The finished cells: paper and ours."""
    widest = 100 * cells.widest
    lines = [
        (
            "RMSE at n = 3900, k = 10, b = 390, δ = 10⁻⁵ with amplification (DP-λCGD, Table 4): the"
            " paper's"
        ),
        f"figure and ours, whose 95 % intervals are within ± {widest:.2f} %.",
        "DP-SGD with Poisson sampling (upper bounds), the rest with Balls-in-Bins. Written by",
        "`simulations/accounting/table4_amplified.py`; what was not computed is left empty.",
        "",
        "| mechanism | " + " | ".join(f"ε = {epsilon:g}" for epsilon in EPSILONS) + " |",
        "|---|" + "---|" * len(EPSILONS),
    ]
    differ = finished = 0
    for label, (_, _, published) in PAPER.items():
        shown = []
        for epsilon, paper in zip(EPSILONS, published, strict=True):
            found = cells.get(f"{label}, ε={epsilon:g}")
            if found is None:
                shown.append("")
                continue
            finished += 1
            differ += abs(found["rmse"] / paper - 1) > 0.01
            shown.append(f"{paper:.2f} / {found['rmse']:.2f}")
        if any(shown):
            lines.append(f"| {label} | " + " | ".join(shown) + " |")
    lines += [
        "",
        f"{finished} cells of {len(PAPER) * len(EPSILONS)}; {differ} differ by more than 1 %.",
    ]
    return "\n".join([*lines, "", *NOTES]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--rows", action="append", default=[], help="part of a row's name; default: all rows"
    )
    parser.add_argument(
        "--error", type=float, default=0.02, help="relative standard error of delta"
    )
    parser.add_argument(
        "--show", action="store_true", help="only write the table from the finished cells"
    )
    options = parser.parse_args()
    cells = Cells(RESULTS / "table4-amplified.json")

    def write() -> None:
        (RESULTS / "table4-amplified.md").write_text(table(cells), encoding="utf-8")

    write()
    for label in PAPER:
        if not options.show and (not options.rows or any(part in label for part in options.rows)):
            compute(label, options.error, cells, write)
            print(label, flush=True)


if __name__ == "__main__":
    main()
