"""Noise by theorem beside noise by Monte Carlo, for Balls-in-Bins.

    python simulations/accounting/deterministic_bounds.py [--setting TEXT] [--mechanism NAME] [--epsilon E]

Each mechanism is what `fedmf design` finds for the amplified error at that ε; both accountants then see the
same C. Finished cells are kept in docs/results/deterministic-bounds.json; a run that is stopped goes on.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from cells import Cells

from fedmf.accounting.amplification.sampling import amplified_noise_of
from fedmf.accounting.amplification.search import amplified_mechanism
from fedmf.accounting.deterministic import BinOverlaps, deterministic_noise
from fedmf.factorization.mechanisms.choice import NamedMechanism
from fedmf.participation import Participation
from fedmf.workload.toeplitz import prefix

SETTINGS = {
    "n = 2048, b = 256": Participation(2048, 8, 256),
    "n = 3900, b = 390": Participation(3900, 10, 390),
}
MECHANISMS = ("identity", "cgd", "bisr", "bifr", "blt", "banded-toeplitz", "bsr")
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
DELTA, ERROR = 1e-5, 0.03
RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"


def cell(contract: Participation, name: str, epsilon: float) -> dict[str, object]:
    """Both noises, the theorem that was used, CPU seconds of each, parameters."""
    mechanism, _ = amplified_mechanism(
        NamedMechanism(name), contract, prefix(contract.rounds), "balls-in-bins", epsilon, DELTA
    )
    C = mechanism.factorization
    start = time.process_time()
    sampled = amplified_noise_of("balls-in-bins", C, contract, epsilon, DELTA, ERROR)
    middle = time.process_time()
    proved = deterministic_noise(BinOverlaps.of(C, contract), epsilon, DELTA)
    assert proved is not None
    return {
        "monte_carlo": sampled.noise_std,
        "standard_error": sampled.standard_error,
        "deterministic": proved.value,
        "theorem": proved.theorem,
        "monte_carlo_seconds": middle - start,
        "deterministic_seconds": time.process_time() - middle,
        "params": dict(mechanism.params),
    }


def table(cells: Cells) -> str:
    """Ratio of the noises, the theorem, CPU seconds; bold where the theorem is within 3 %."""
    lines = [
        "# Noise by theorem beside noise by Monte Carlo",
        "",
        "Balls-in-Bins, zero-out adjacency, δ = 10⁻⁵. Each cell: deterministic noise over the Monte Carlo",
        "estimate (bold within 3 %), the [theorem](../theory/amplification.md) used (E: equal bins,",
        "–: no amplification), CPU seconds of the two; parameters",
        "from the search for the amplified error. The estimate's standard error is 3 % of δ, about 0.2 % of",
        "the noise.",
        "Written by `simulations/accounting/deterministic_bounds.py`; what was not computed is left empty.",
    ]
    letters = {"equal bins": "E", "no amplification": "–"}
    for setting in SETTINGS:
        lines += [
            "",
            f"## {setting}",
            "",
            "| mechanism | " + " | ".join(f"ε = {e:g}" for e in EPSILONS) + " |",
        ]
        lines.append("|---|" + "---|" * len(EPSILONS))
        for name in MECHANISMS:
            shown = []
            for epsilon in EPSILONS:
                found = cells.get(f"{setting}, {name}, ε={epsilon:g}")
                if found is None:
                    shown.append("")
                    continue
                ratio = found["deterministic"] / found["monte_carlo"]
                figure = f"**{ratio:.3f}**" if ratio <= 1.03 else f"{ratio:.3f}"
                params = ", ".join(f"{key} {value:.3g}" for key, value in found["params"].items())
                seconds = f"{found['deterministic_seconds']:.0f} s, {found['monte_carlo_seconds']:.0f} s"
                shown.append(f"{figure} {letters[found['theorem']]}; {seconds}; {params}".removesuffix("; "))
            lines.append(f"| {name} | " + " | ".join(shown) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--setting", default="", help="part of a setting's name; default: both")
    parser.add_argument("--mechanism", action="append", default=[], choices=MECHANISMS, help="default: all")
    parser.add_argument("--epsilon", action="append", type=float, default=[], help="default: all five")
    parser.add_argument("--show", action="store_true", help="only write the table from the finished cells")
    options = parser.parse_args()
    cells = Cells(RESULTS / "deterministic-bounds.json")
    for setting, contract in SETTINGS.items():
        for epsilon in reversed(options.epsilon or EPSILONS):
            for name in options.mechanism or MECHANISMS:
                label = f"{setting}, {name}, ε={epsilon:g}"
                if options.show or options.setting not in setting or cells.has(label, ERROR):
                    continue
                cells.add(label, ERROR, cell(contract, name, epsilon))
                print(label, cells.get(label), flush=True)
                (RESULTS / "deterministic-bounds.md").write_text(table(cells), encoding="utf-8")
    (RESULTS / "deterministic-bounds.md").write_text(table(cells), encoding="utf-8")


if __name__ == "__main__":
    main()
