"""Users trained per second: language models and a residual network, fedmf in groups, its loop, and pfl.

    python simulations/benchmarks/models.py [--models lstm transformer …] [--pfl PYTHON] [--threads N]
                                            [--repeats R] [--json]

Every engine trains the models of `models_engines/workload.py` on the same data with the same local settings,
in a process of its own, one after another, in ``--repeats`` interleaved passes. A ratio is the median over
passes of the ratio of the passes' median rounds. All get the same number of threads (``OMP_NUM_THREADS``);
pfl runs as one process with them, and as two with half of them each. It needs an environment of its own
(``pip install pfl==0.6.0 torch``) whose Python ``--pfl`` names; without it those rows are left out, and said
to be. The last column is the share of the time of fedmf's gradients, on one thread, that products of
matrices, convolutions and attention take: what no other program around the same library could save.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent / "models_engines"
sys.path[:0] = [str(HERE), str(ROOT)]

import workload  # noqa: E402

GROUPED = "fedmf, grouped"


@dataclass(frozen=True)
class Engine:
    """What trains users.

    Args:
        name: shown.
        command: of its process, without the model.
        processes: how many share the threads.
    """

    name: str
    command: tuple[str, ...]
    processes: int = 1

    def answer(self, model: str, threads: int) -> dict[str, list[float]]:
        """The last line that it prints, an object of JSON.

        Raises:
            RuntimeError: it failed.
        """
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        pinned = str(max(1, threads // self.processes))
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": pinned, "MKL_NUM_THREADS": pinned}
        done = subprocess.run(
            [*self.command, "--model", model], capture_output=True, text=True, env=environment
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith('{"')]
        if done.returncode or not lines:
            raise RuntimeError(f"{self.name}: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
        return json.loads(lines[-1])

    def round_seconds(self, model: str, threads: int) -> float:
        """The median round after the warm-up, in a new process."""
        return statistics.median(self.answer(model, threads)["seconds"][workload.WARM_UP :])


def engines(pfl: str | None) -> list[Engine]:
    """All that can run here, fedmf in groups first."""
    ours = (sys.executable, str(HERE / "fedmf_run.py"))
    rows = [Engine(GROUPED, ours), Engine("fedmf, loop", (*ours, "--local-engine", "loop"))]
    if pfl is not None:
        script = str(HERE / "pfl_run.py")
        torchrun = (pfl, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script)
        rows += [Engine("pfl, one process", (pfl, script)), Engine("pfl, two processes", torchrun, 2)]
    return rows


@dataclass(frozen=True)
class Result:
    """What one engine did with one model.

    Args:
        name: of the engine.
        rate: users a second, median over passes.
        ratio: users a second of fedmf in groups over this, median over passes.
    """

    name: str
    rate: float
    ratio: float


def measure(rows: list[Engine], models: list[str], threads: int, repeats: int) -> dict[str, list[Result]]:
    """Results by model, in the order of the engines."""
    seconds: dict[tuple[str, str], list[float]] = {}
    for turn in range(repeats):
        for model in models:
            for row in rows:
                seconds.setdefault((model, row.name), []).append(row.round_seconds(model, threads))
                rate = workload.COHORT / seconds[model, row.name][-1]
                print(f"pass {turn + 1}: {model}, {row.name}: {rate:,.1f} users/s", file=sys.stderr)
    return {
        model: [
            Result(
                row.name,
                workload.COHORT / statistics.median(seconds[model, row.name]),
                statistics.median(
                    theirs / ours
                    for theirs, ours in zip(seconds[model, row.name], seconds[model, GROUPED], strict=True)
                ),
            )
            for row in rows
        ]
        for model in models
    }


def show(results: dict[str, list[Result]], shares: dict[str, float], threads: int) -> None:
    table = Table(
        title=f"users per second, cohorts of {workload.COHORT}, {threads} threads (times fedmf in groups)"
    )
    table.add_column("model")
    for result in next(iter(results.values())):
        table.add_column(result.name, justify="right")
    table.add_column("products", justify="right")
    for model, found in results.items():
        cells = [f"{r.rate:,.1f}" + ("" if r.name == GROUPED else f" ({r.ratio:.2f})") for r in found]
        table.add_row(workload.WORKLOADS[model].text, *cells, f"{shares[model]:.0%}")
    Console(width=None if sys.stdout.isatty() else 180).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", nargs="+", choices=workload.WORKLOADS, default=list(workload.WORKLOADS))
    parser.add_argument("--pfl", help="Python of an environment that has pfl 0.6.0")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    options = parser.parse_args()
    if options.pfl is None:
        print("pfl is left out: no --pfl given.", file=sys.stderr)
    rows = engines(options.pfl)
    results = measure(rows, options.models, options.threads, options.repeats)
    products = Engine("products", (*rows[0].command, "--products"))
    shares = {model: float(products.answer(model, 1)["share"]) for model in options.models}  # type: ignore[arg-type]
    if not options.json:
        show(results, shares, options.threads)
        return
    for model, found in results.items():
        for r in found:
            row = {
                "name": f"{model}: {r.name}",
                "value": r.rate,
                "unit": "users/s",
                "threads": options.threads,
            }
            print(json.dumps({**row, "baseline": GROUPED, "ratio": 1 / r.ratio, "products": shares[model]}))


if __name__ == "__main__":
    main()
