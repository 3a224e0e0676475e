"""ν-DP-FTRL (Choquette-Choo et al. 2024, arXiv:2310.06771): mean estimation and linear regression.

    python simulations/stationary/nu_dp_ftrl.py            # quick: 16 replicas, about a minute
    python simulations/stationary/nu_dp_ftrl.py --full     # 64 replicas and three times as many steps

Figures 1 and 2, Tables 1, 2 and 4, the bounds in finite time and what one can stop at any step; Figure 3 is
in simulations/design/optimized_lti.py. Every limit is exact (see exact.py) and carried out beside it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from asymptotics import table1, table2, table4
from finite import anytime, rates
from regression import SWEEPS, mean_estimation, sweep

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "design"))
from pictures import RESULTS, draw

SEED = 20240507


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="64 replicas and more steps")
    parser.add_argument("--replicas", type=int, default=16)
    options = parser.parse_args()
    replicas, steps = (64, 100_000) if options.full else (options.replicas, 30_000)
    ratios, pictures1 = mean_estimation(replicas, SEED)
    draw("nu-dp-ftrl-fig1", pictures1, "xy")
    print("figure 1", flush=True)
    slopes, pictures2 = [], {}
    for which in SWEEPS:
        rows, pictures2[f"by {which.name}"] = sweep(which, replicas, SEED)
        slopes += rows
        print("\n".join(rows), flush=True)
    draw("nu-dp-ftrl-fig2", pictures2, "xy")
    in_time, picture = rates(10 * steps)
    curves, checks, other = anytime(steps, replicas, SEED)
    panels = {"the best learning rate for T steps": picture, "one run, stopped at any step": other}
    draw("nu-dp-ftrl-finite", panels, "xy")
    page = (Path(__file__).parent / "page.md").read_text(encoding="utf-8")
    text = page.format(
        replicas=replicas, ratios="\n".join(ratios), slopes="\n".join(slopes), table1="\n".join(table1()),
        table2="\n".join(table2()), table4="\n".join(table4()), in_time="\n".join(in_time),
        curves="\n".join(curves), checks="\n".join(checks),
    )  # fmt: skip
    (RESULTS / "nu-dp-ftrl.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
