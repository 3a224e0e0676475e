"""The long form of the end-to-end audit: correct runs and runs with σ/1.5 at ε = 8, trial by trial.

    python simulations/accounting/audit_end_to_end.py [--trials 10] [--runs 20] [--mechanism bisr] [--json]

Each trial is `audit_end_to_end` of a run of 360 users in 12 rounds: `--runs` real runs with a canary for
each user, and the whole command in neighbouring worlds. A correct run must be refuted in no trial, one whose
noise is divided by 1.5 (every record stays as it was) in nearly all, by its canaries alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from fedmf.cli.app import run as command
from fedmf.noise import BlockedNoise
from fedmf.runs import run_of, server, session

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
from support.worlds import EndToEnd, audit_end_to_end  # pyright: ignore[reportMissingImports]


@dataclass
class _Weakened:
    noise: Any
    factor: float

    def add_(self, out: Any, scale: float) -> None:
        self.noise.add_(out, scale / self.factor)


def weaker(factor: float) -> type[BlockedNoise]:
    """Noise whose standard deviation is divided by a factor."""

    class Weaker(BlockedNoise):
        def blocks(self) -> Iterator[tuple[slice, Any]]:
            for part, noise in super().blocks():
                yield part, _Weakened(noise, factor)

    return Weaker


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--runs", type=int, default=20, help="real runs of 360 canaries in a trial")
    parser.add_argument("--world-runs", type=int, default=0, help="runs of each world of a correct trial")
    parser.add_argument("--confidence", type=float, default=0.99)
    parser.add_argument("--mechanism", default="bisr")
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--factor", type=float, default=1.5)
    parser.add_argument("--json", action="store_true", help="one JSON object per trial")
    options = parser.parse_args()
    run = run_of(
        {
            "data.users": 360,
            "cohorts": {"rounds": 12, "size": 120},
            "privacy.epsilon": options.epsilon,
            "mechanism.kind": options.mechanism,
        }
    )
    rows: list[tuple[EndToEnd, EndToEnd]] = []
    console = Console(file=sys.stderr)
    with (
        mock.patch.object(session, "draw_learning_curve", return_value=False),
        Progress(console=console, redirect_stdout=False, redirect_stderr=False) as progress,
    ):
        bar = progress.add_task("runs", total=None)

        def audited(behaviours: tuple[str, ...]) -> EndToEnd:
            return audit_end_to_end(
                run,
                command,
                behaviours,
                options.runs,
                options.world_runs,
                options.confidence,
                lambda: progress.advance(bar),
            )

        for _ in range(options.trials):
            correct = audited(("raise", "nan", "huge", "wrong-rows", "empty"))
            with mock.patch.object(server, "BlockedNoise", weaker(options.factor)):
                rows.append((correct, audited(())))
    if options.json:
        for correct, broken in rows:
            numbers = {"claimed_mu": correct.mu_claimed, "canaries": correct.canaries}
            measured = {"correct_mu": correct.bound.mu, "broken_mu": broken.bound.mu}
            refuted = {"correct_refuted": correct.refuted, "broken_refuted": broken.refuted}
            print(json.dumps({**numbers, **measured, **refuted}))
    else:
        show(rows, options)


def show(rows: list[tuple[EndToEnd, EndToEnd]], options: argparse.Namespace) -> None:
    first = rows[0][0]
    title = f"μ claimed {first.mu_claimed:.4g} (ε = {options.epsilon:g}), {first.canaries} canaries a trial"
    table = Table(title=f"{title}, lower bounds at confidence {options.confidence:g}")
    for heading in ("trial", "correct", "largest exact μ", "refuted", f"σ/{options.factor:g}", "refuted"):
        table.add_column(heading, justify="right")
    for number, (correct, broken) in enumerate(rows, 1):
        exact = max((world.mu_exact for world in correct.worlds), default=float("nan"))
        cells = (f"{correct.bound.mu:.3f}", f"{exact:.3f}", str(correct.refuted))
        table.add_row(str(number), *cells, f"{broken.bound.mu:.3f}", str(broken.refuted))
    counts = (sum(c.refuted for c, _ in rows), sum(b.refuted for _, b in rows))
    table.add_row("refuted", "", "", str(counts[0]), "", str(counts[1]))
    Console(width=140).print(table)
    for correct, _ in rows:
        for line in correct.contradictions:
            print(line)


if __name__ == "__main__":
    main()
