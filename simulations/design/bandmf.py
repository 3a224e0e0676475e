"""McKenna (2024/25), "Scaling up the banded matrix factorization mechanism": Figures 1, 2, 6, 7, 8,
10, 11.

    python simulations/design/bandmf.py [--figure 1a|1b|2|6|7|8|10|11]...

Where the paper's text lacks a number it is named in the picture's title. Amplified curves use
cyclic Poisson sampling: ⌈n/p⌉ rounds of the Gaussian mechanism with sampling probability p·k/n,
accounted with privacy loss distributions. "Best" is the best of the mechanisms drawn.
"""

from __future__ import annotations

import argparse
import logging
from functools import cache

import numpy as np
from large_trees import tree_rmse
from pictures import Curves, draw, epochs, ratios, rmse, rmse_of

from fedmf.accounting.gaussian import gaussian_sigma
from fedmf.matrices.sensitivity import sensitivity_of
from fedmf.matrices.toeplitz import Toeplitz
from fedmf.mechanisms.query_variances import toeplitz_query_variances
from fedmf.mechanisms.registry import build, names
from fedmf.participation import Participation

DELTA = 1e-8
ROUNDS = "rounds n"
EPSILON = "privacy loss ε"
BANDS = "bandwidth p"
RELATIVE = "RMSE relative to the best"
TO_FULL = "RMSE relative to full-batch DP-SGD"


@cache
def sampled_sigma(epsilon: float, steps: int, probability: float, rough: bool = False) -> float:
    """σ of `steps` rounds of the Gaussian mechanism with Poisson sampling; rough: by Rényi
    divergences.

    Both are upper bounds. Those of Rényi divergences are 2 to 50 % above the others and computed in
    a second.
    """
    if probability >= 1.0:
        return gaussian_sigma(epsilon, DELTA) * steps**0.5
    import dp_accounting as dp
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    logging.getLogger("absl").setLevel(logging.ERROR)  # orders left out only raise σ
    orders = [*range(2, 65), 96, 128, 256, 512]

    def accountant() -> dp.PrivacyAccountant:
        return (
            RdpAccountant(orders)
            if rough
            else PLDAccountant(value_discretization_interval=2e-4 * epsilon)
        )

    def event(sigma: float) -> dp.DpEvent:
        return dp.SelfComposedDpEvent(
            dp.PoissonSampledDpEvent(probability, dp.GaussianDpEvent(sigma)), steps
        )

    return float(dp.calibrate_dp_mechanism(accountant, event, epsilon, DELTA, tol=1e-3))


def contract(n: int, k: int) -> Participation:
    return Participation(n, k, n // k)


def amplified(n: int, k: int, p: int, epsilon: float, rough: bool = False) -> float:
    """RMSE·σ of banded Toeplitz under cyclic Poisson sampling, p ≤ n/k."""
    once = Participation(n, 1, n)
    return rmse("banded-toeplitz", once, bands=p) * sampled_sigma(
        epsilon, -(-n // p), p * k / n, rough
    )


def best_amplified(n: int, k: int, epsilon: float) -> tuple[int, float]:
    """The best power of two p ≤ n/k and its RMSE·σ: near the best by Rényi divergences, or n/k
    itself.
    """
    powers = [2**i for i in range((n // k).bit_length())]
    near = min(range(len(powers)), key=lambda i: amplified(n, k, powers[i], epsilon, rough=True))
    candidates = {*powers[max(0, near - 2) : near + 2], powers[-1]}
    value, p = min((amplified(n, k, p, epsilon), p) for p in candidates)
    return p, value


def figure_1a() -> None:
    p = 16
    curves = {}
    for label, name, largest in (
        ("BandMF, general", "banded", 4096),
        ("BandMF, Toeplitz", "banded-toeplitz", 2**16),
        ("BandMF, normalized", "normalized-banded-toeplitz", 4096),
        ("BSR", "bsr", 2**16),
    ):
        ns = [n for n in (2**i for i in range(6, 17, 2)) if n <= largest]
        curves[label] = [(n, rmse(name, contract(n, 1), bands=p)) for n in ns]
    draw("bandmf-fig1a", {"bandwidth 16, one epoch": (ratios(curves), ROUNDS, RELATIVE)})


def compared(n: int, k: int, epsilon: float) -> dict[str, float]:
    """RMSE·σ of the mechanisms of Figures 1 (b) and 7."""
    own = contract(n, k)
    sigma = gaussian_sigma(epsilon, DELTA)
    wanted = {
        "square root (FHU)": "square-root",
        "BLT": "blt",
        "BandMF, p = b": "banded-toeplitz",
    }
    found = {
        label: (
            sigma
            * rmse(
                name, own, **({"bands": own.min_separation} if name == "banded-toeplitz" else {})
            )
        )
        for label, name in wanted.items()
        if name in names()
    }
    found["tree"] = sigma * tree_rmse(own)
    stamps = [sigma * stamped(n, k, s) for s in (1, 2, 4, 8, 16)]
    return found | {
        "stamped square root": min(stamps),
        "DP-SGD, amplified": amplified(n, k, 1, epsilon),
        "BandMF, amplified": best_amplified(n, k, epsilon)[1],
    }


def stamped(n: int, k: int, repetitions: int) -> float:
    """RMSE of the block-diagonal repetition of the square root of n/s rounds, prefix sums carried
    along.
    """
    m = n // repetitions
    block = build("square-root", Participation(m, 1, m)).factorization
    within = toeplitz_query_variances(block, np.ones(m))
    total = np.add.outer(np.arange(repetitions) * within[-1], within).mean()
    per_block = -(-k // repetitions)
    inside = Participation(m, per_block, min(n // k, m))
    square = sensitivity_of(block, inside).value ** 2 * min(repetitions, k)
    return float(np.sqrt(total * square))


def panel(settings: list[tuple[float, int, int, float]]) -> Curves:
    curves: dict[str, list[tuple[float, float]]] = {}
    for x, n, k, epsilon in settings:
        for label, value in compared(n, k, epsilon).items():
            curves.setdefault(label, []).append((x, value))
    return ratios(curves)


def figure_1b() -> None:
    curves = panel([(epsilon, 16384, 8, epsilon) for epsilon in (1.0, 2.0, 4.0, 8.0, 16.0)])
    draw("bandmf-fig1b", {"16,384 rounds, 8 epochs, δ = 10⁻⁸": (curves, EPSILON, RELATIVE)})


def against_full_batches(epsilon: float, ks: tuple[int, ...]) -> Curves:
    """RMSE of n = 16384 rounds by bands, over that of full-batch DP-SGD, a curve for each k.

    Errors are those of mean gradients: a sum over k epochs in n rounds has batches k/n of the data.
    """
    n = 16384
    full = gaussian_sigma(epsilon, DELTA) * rmse("identity", Participation(n, n, 1)) / n
    return {
        epochs(k): [
            (2**i, amplified(n, k, 2**i, epsilon) / k / full) for i in range((n // k).bit_length())
        ]
        for k in ks
    }


def figure_2() -> None:
    bands = against_full_batches(1.0, (1, 2, 8, 32, 128))
    best = {
        epochs(k): [(epsilon, best_amplified(4096, k, epsilon)[0]) for epsilon in (1.0, 4.0, 16.0)]
        for k in (1, 4, 16)
    }
    draw(
        "bandmf-fig2",
        {
            "16,384 rounds, ε = 1, δ = 10⁻⁸": (bands, BANDS, TO_FULL),
            "4,096 rounds, δ = 10⁻⁸, powers of two up to n/k": (best, EPSILON, "best bandwidth p"),
        },
        "xy",
    )


def figure_6() -> None:
    n = 16384
    epsilons = (1.0, 2.0, 4.0, 8.0, 16.0)
    relative = "relative to amplified BandMF"
    sampling = {}
    correlation = {}
    for k in (1, 4, 16, 64):
        best = [best_amplified(n, k, epsilon)[1] for epsilon in epsilons]
        alone = rmse("banded-toeplitz", contract(n, k), bands=n // k)
        sampling[epochs(k)] = [
            (epsilon, gaussian_sigma(epsilon, DELTA) * alone / value)
            for epsilon, value in zip(epsilons, best, strict=True)
        ]
        correlation[epochs(k)] = [
            (epsilon, amplified(n, k, 1, epsilon) / value)
            for epsilon, value in zip(epsilons, best, strict=True)
        ]
    draw(
        "bandmf-fig6",
        {
            "RMSE without sampling, p = n/k": (sampling, EPSILON, relative),
            "RMSE of amplified DP-SGD": (correlation, EPSILON, relative),
        },
        "xy",
    )


def figure_7() -> None:
    rounds = panel([(n, n, 8, 4.0) for n in (256, 1024, 4096, 16384)])
    by_epochs = panel([(k, 8192, k, 4.0) for k in (1, 2, 4, 8, 16, 32)])
    draw(
        "bandmf-fig7",
        {
            "8 epochs, ε = 4": (rounds, ROUNDS, RELATIVE),
            "8,192 rounds, ε = 4": (by_epochs, "epochs k", RELATIVE),
        },
    )


def figure_8() -> None:
    curves = against_full_batches(8.0, (1, 2, 8, 16, 256))
    draw("bandmf-fig8", {"16,384 rounds, ε = 8, δ = 10⁻⁸": (curves, BANDS, TO_FULL)}, "xy")


def figure_10() -> None:
    n = 2000
    k = 5
    low = 200
    high = 400
    best = build("banded-toeplitz", Participation(n, k, high), bands=high).factorization
    c = best.columns([0])[:high, 0]
    fade = np.where(np.arange(high) >= low, (high - np.arange(high)) / (high - low), 1.0)
    matrices = {"BandMF": best, "BandMF with taper": Toeplitz(c * fade, n)}
    if "blt" in names():
        matrices["BLT"] = build("blt", Participation(n, k, high)).factorization
    first = {label: list(enumerate(C.columns([0])[:high, 0], 1)) for label, C in matrices.items()}
    curves = {
        label: [(b, rmse_of(C, Participation(n, k, b))) for b in range(low, high + 1, 20)]
        for label, C in matrices.items()
    }
    draw(
        "bandmf-fig10",
        {
            "first column of C": (first, "lag (rounds)", "coefficient"),
            "2,000 rounds, 5 participations": (curves, "separation b (rounds)", "RMSE"),
        },
        "",
    )


def figure_11() -> None:
    curves = {
        f"bandwidth {p}": [
            (
                n,
                rmse("one-parameter", contract(n, 1), bands=p)
                / rmse("banded-toeplitz", contract(n, 1), bands=p),
            )
            for n in (2**i for i in range(6, 15, 2))
            if p <= n
        ]
        for p in (4, 16, 64)
    }
    draw("bandmf-fig11", {"1/i + c, one epoch": (curves, ROUNDS, "RMSE relative to the optimum")})


FIGURES = {
    "1a": figure_1a,
    "1b": figure_1b,
    "2": figure_2,
    "6": figure_6,
    "7": figure_7,
    "8": figure_8,
    "10": figure_10,
    "11": figure_11,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--figure", action="append", choices=FIGURES, help="default: all")
    for name in parser.parse_args().figure or FIGURES:
        FIGURES[name]()


if __name__ == "__main__":
    main()
