"""The audit of a correct mechanism and of one with σ/1.5, seed by seed.

    python simulations/accounting/audit.py [--seeds 20] [--canaries 2000] [--mechanism bisr] [--json]

Each line gives the lower bounds on ε (as a Gaussian mechanism, at the stated confidence) of both; the first
must stay below the claimed ε in every seed, the second exceed it in nearly all.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from unittest import mock

from rich.console import Console
from rich.progress import track
from rich.table import Table

from fedmf.accounting import release
from fedmf.audit import audit
from fedmf.factorization.sensitivity.stated import stated_sensitivity
from fedmf.runs.tables.configuration import run_of


def understated(*arguments: object) -> object:
    """The sensitivity divided by 1.5, and with it the noise."""
    true = stated_sensitivity(*arguments)  # type: ignore[arg-type]
    return dataclasses.replace(true, value=true.value / 1.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--canaries", type=int, default=2000)
    parser.add_argument("--confidence", type=float, default=0.99)
    parser.add_argument("--mechanism", default="bisr")
    parser.add_argument("--json", action="store_true", help="one JSON object per seed")
    options = parser.parse_args()
    run = run_of(
        {
            "data.users": 24,
            "cohorts": {"rounds": 12, "size": 6},
            "privacy.noise-seed": 0,
            "mechanism.kind": options.mechanism,
        }
    )
    rows = []
    for seed in track(range(options.seeds), "auditing", console=Console(stderr=True)):
        correct = audit(run, options.canaries, confidence=options.confidence, seed=seed)
        with mock.patch.object(release, "stated_sensitivity", understated):
            broken = audit(run, options.canaries, confidence=options.confidence, seed=seed)
        rows.append((seed, correct, broken))
    if options.json:
        for seed, correct, broken in rows:
            print(
                json.dumps(
                    {
                        "seed": seed,
                        "claimed": run.privacy.requested_epsilon,
                        "correct": correct.bound.epsilon_gdp,
                        "broken": broken.bound.epsilon_gdp,
                    }
                )
            )
        return
    claimed = run.privacy.requested_epsilon
    table = Table(title=f"ε claimed {claimed:g}, lower bounds at confidence {options.confidence:g}")
    for heading in ("seed", "correct", "refuted", "σ/1.5", "refuted"):
        table.add_column(heading, justify="right")
    for seed, correct, broken in rows:
        table.add_row(
            str(seed),
            f"{correct.bound.epsilon_gdp:.2f}",
            str(correct.refuted),
            f"{broken.bound.epsilon_gdp:.2f}",
            str(broken.refuted),
        )
    table.add_row(
        "refuted", "", str(sum(c.refuted for _, c, _ in rows)), "", str(sum(b.refuted for _, _, b in rows))
    )
    Console().print(table)


if __name__ == "__main__":
    main()
