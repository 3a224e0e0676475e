"""W/s, the price in σ of releases that are integers, for several mechanisms and sizes.

python simulations/noise/rounding_cost.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fedmf.accounting.gaussian import gaussian_sigma
from fedmf.matrices.factorization import Factorization
from fedmf.matrices.sensitivity import sensitivity_of
from fedmf.mechanisms.banded_toeplitz import banded_toeplitz
from fedmf.mechanisms.blt_family import blt
from fedmf.mechanisms.closed_forms import bisr, bsr, cgd
from fedmf.noise.units import Part, calibrated
from fedmf.participation import Participation

#: d, n and users in a sum.
SIZES: Final = ((10**3, 10**2, 100), (10**6, 10**3, 1000), (10**8, 10**4, 1000), (10, 10**6, 1))
EPSILONS: Final = (0.1, 1.0, 8.0)
#: Rounds up to which designs are optimized; later ones repeat.
OPTIMISED: Final = 10**4


def banded(of: Participation) -> Factorization:
    """Optimized where that takes seconds."""
    return banded_toeplitz(10, of) if of.rounds <= OPTIMISED else bsr(10, of.rounds)


def buffered(of: Participation) -> Factorization:
    """Optimized for at most 10⁴ rounds, and continued."""
    rounds = min(of.rounds, OPTIMISED)
    made = blt(3, Participation(rounds, of.max_participations, rounds // of.max_participations))
    return type(made)(made.decays, made.weights, of.rounds)


MECHANISMS: Final[dict[str, Callable[[Participation], Factorization]]] = {
    "λ-CGD, λ = 0.9": lambda of: cgd(0.9, of.rounds),
    "BISR, 10 bands": lambda of: bisr(10, of.rounds),
    "banded Toeplitz, 10 bands": banded,
    "BLT, 3 buffers": buffered,
}


def main() -> None:
    """Print a row for each size, mechanism and ε."""
    print("| d | n | mechanism | s | ε | B | ρ | η | W/s | p with (1 + e^ε) |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for size, rounds, users in SIZES:
        of = Participation(rounds, 10, rounds // 10)
        for name, make in MECHANISMS.items():
            C = make(of)
            s = sensitivity_of(C, of).value
            for epsilon in EPSILONS:
                sigma = gaussian_sigma(epsilon, 1e-6)
                _, rounding = calibrated([Part(C, size, users)], s, sigma)
                noise = rounding.parts[0]
                scale = noise.std * float(C.streaming_inverse().diagonal().max())
                cells = [
                    f"{size:.0e}",
                    f"{rounds:.0e}",
                    name,
                    f"{s:.2f}",
                    f"{epsilon:g}",
                    str(noise.bits),
                ]
                cells += [f"{scale:.1e}", f"{noise.eta:.1e}", f"{rounding.movement / s:.1e}"]
                cells.append(f"{noise.failure:.0e}")
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
