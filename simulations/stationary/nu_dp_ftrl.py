"""ν-DP-FTRL (Choquette-Choo et al. 2024, arXiv:2310.06771): mean estimation and linear regression.

    python simulations/stationary/nu_dp_ftrl.py            # quick: 16 replicas, about a minute
    python simulations/stationary/nu_dp_ftrl.py --full     # 64 replicas and three times as many
    steps

Figures 1 and 2, Tables 1, 2 and 4, the bounds in finite time and what one can stop at any step;
Figure 3 is in simulations/design/optimized_lti.py. Every limit is exact (see exact.py) and carried
out beside it.
"""

from __future__ import annotations

import argparse
import re
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
    slopes = []
    pictures2 = {}
    for which in SWEEPS:
        rows, pictures2[f"by {which.name}"] = sweep(which, replicas, SEED)
        slopes += rows
        print("\n".join(rows), flush=True)
    draw("nu-dp-ftrl-fig2", pictures2, "xy")
    in_time, picture = rates(10 * steps)
    tables, other = anytime(steps, replicas, SEED)
    panels = {"the best learning rate for T steps": picture, "one run, stopped at any step": other}
    draw("nu-dp-ftrl-finite", panels, "xy")
    tables |= {"ratios": ratios, "slopes": slopes, "in time": in_time}
    tables |= {"table 1": table1(), "table 2": table2(), "table 4": table4()}
    path = RESULTS / "nu-dp-ftrl.md"
    page = re.sub(r"\d+ replicas", f"{replicas} replicas", path.read_text(encoding="utf-8"))
    for name, rows in tables.items():
        page = renewed(page, name, rows)
    path.write_text(page, encoding="utf-8")


def renewed(page: str, name: str, rows: list[str]) -> str:
    """The table behind a comment of this name anew; its head stays unless the rows begin with
    one.
    """
    before, comment, after = page.partition(f"<!-- {name} -->\n\n")
    table = after[: after.index("\n\n")].splitlines()
    head = [] if rows[1].startswith("|---") else table[:2]
    return before + comment + "\n".join([*head, *rows]) + after[len("\n".join(table)) :]


if __name__ == "__main__":
    main()
