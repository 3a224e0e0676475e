"""Neighbouring worlds of the whole command: hostile behaviours × data sets × engines × message modes.

    python simulations/accounting/non_interference.py [--engine inprocess] [--data digits table] [--health]

In each cell `fedmf simulate` and `fedmf account --publish` run in two worlds that differ in one user's raw
data, and everything that leaves is compared (docs/audit.md). A cell shows the number of differences outside
noised values; the norm of what the hostile user contributed, in clip norms, stands beside it. Exit code 1 if
there is any difference.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from fedmf.cli.app import run as command
from fedmf.runs import session

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
from support.worlds import STAGES, Stage, Verdict, compare, differences, observe  # pyright: ignore[reportMissingImports]

#: Counts of contributions and of clipped ones, after every second round.
HEALTH = {"health.share": 0.5, "health.rounds-per-release": 2}
ENGINES = ("inprocess", "isolated", "ray")
MODES = ("slice", "per-user")


@contextmanager
def one_cluster() -> Iterator[None]:
    """One local Ray cluster and pool of actors for all runs: Flower's engine would start them each time."""
    import ray
    from flwr.server.superlink.fleet.vce.backend import raybackend

    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path)}},
    )
    pools: list[Any] = []

    class Kept(raybackend.BasicActorPool):
        def add_actors_to_pool(self, num_actors: int) -> None:
            if not self.num_actors:
                super().add_actors_to_pool(num_actors)

        def terminate_all_actors(self) -> None:
            """They go with the cluster."""

    def the_pool(*arguments: Any, **named: Any) -> Kept:
        if not pools:
            pools.append(Kept(*arguments, **named))
        return pools[0]

    shutdown = ray.shutdown
    try:
        with (
            mock.patch.object(ray, "shutdown"),
            mock.patch.object(raybackend, "BasicActorPool", the_pool),
        ):
            yield
    finally:
        shutdown()


def settings(engine: str, mode: str) -> dict[str, Any]:
    keys: dict[str, Any] = {"execution.messages": mode, "execution.workers": 2}
    return keys | ({"execution.isolation": "process"} if engine == "isolated" else {})


def stages(
    folder: Path, name: str, keys: dict[str, Any], names: Sequence[str]
) -> Iterator[tuple[str, Stage]]:
    """A stage for each world: actors keep what they loaded from a place."""
    for number, behaviour in enumerate(names):
        place = folder / f"world-{number:03d}"
        place.mkdir()
        yield behaviour, Stage.small(place, name, **keys)


def verdicts(
    name: str,
    engine: str,
    mode: str,
    beside: dict[str, Any],
    behaviours: Sequence[str],
    done: Callable[[], None],
) -> Iterator[Verdict]:
    arguments = ["--engine", "ray"] if engine == "ray" else []
    with tempfile.TemporaryDirectory() as folder:
        names = ["benign", "again", *behaviours]
        worlds = stages(Path(folder), name, settings(engine, mode) | beside, names)
        seen = []
        for _, stage in itertools.islice(worlds, 2):
            stage.act(None)
            seen.append(observe(command, stage, arguments))
        benign, again = seen
        if benign.code or benign.published["exit code"] != "0":
            raise RuntimeError(f"{name}, {engine}, {mode}: {benign.stderr}{benign.stdout}")
        if unequal := differences(benign, again):
            raise RuntimeError(
                f"{name}, {engine}, {mode}: the benign world differs from itself: {'; '.join(unequal)}"
            )
        for behaviour, stage in worlds:
            yield compare(command, stage, (1, behaviour), benign, arguments)
            done()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--engine", nargs="+", choices=ENGINES, default=["inprocess", "ray"])
    parser.add_argument("--data", nargs="+", choices=tuple(STAGES), default=list(STAGES))
    parser.add_argument("--messages", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--behaviour", nargs="+", help="default: all of each data set")
    parser.add_argument("--health", action="store_true", help="release noisy counts of contributions too")
    parser.add_argument("--json", action="store_true", help="one JSON object per cell")
    options = parser.parse_args()
    wanted = [
        (name, engine, mode)
        for engine in options.engine
        for name in options.data
        for mode in options.messages
    ]
    names = {
        name: [b for b in STAGES[name].behaviours if b in (options.behaviour or STAGES[name].behaviours)]
        for name in options.data
    }
    found: dict[tuple[str, str], dict[tuple[str, str], Verdict]] = {}
    # The learning curve takes most of a small run's time.
    console = Console(file=sys.stderr)
    with (
        mock.patch.object(session, "draw_learning_curve", return_value=False),
        one_cluster() if "ray" in options.engine else mock.patch.dict(os.environ),
        Progress(console=console, redirect_stdout=False, redirect_stderr=False) as progress,
    ):
        bar = progress.add_task("worlds", total=sum(len(names[name]) for name, _, _ in wanted))
        for name, engine, mode in wanted:
            beside = HEALTH if options.health else {}
            for verdict in verdicts(name, engine, mode, beside, names[name], lambda: progress.advance(bar)):
                found.setdefault((name, verdict.behaviour), {})[engine, mode] = verdict
    everything = [
        (engine, mode, verdict) for row in found.values() for (engine, mode), verdict in row.items()
    ]
    outside = sum(len(verdict.outside) for *_, verdict in everything)
    if options.json:
        for engine, mode, v in everything:
            cell = {"data": v.data, "behaviour": v.behaviour, "engine": engine, "messages": mode}
            print(json.dumps({**cell, "outside": list(v.outside), "norm": v.norm}))
    else:
        show(found, [(engine, mode) for engine in options.engine for mode in options.messages])
    print(
        f"{len(everything)} pairs of worlds, {len({v.behaviour for *_, v in everything})} behaviours; "
        f"differences outside noised values: {outside}",
        file=sys.stderr if options.json else sys.stdout,
    )
    sys.exit(int(outside > 0))


def show(
    found: dict[tuple[str, str], dict[tuple[str, str], Verdict]], columns: Sequence[tuple[str, str]]
) -> None:
    table = Table(title="differences outside noised values (contribution in clip norms)")
    for heading in ("data", "behaviour", *(f"{engine} {mode}" for engine, mode in columns)):
        table.add_column(heading)
    lines = []
    for (name, behaviour), row in found.items():
        shown = []
        for column in columns:
            verdict = row[column]
            shown.append(f"{len(verdict.outside)} ({verdict.norm:.2f})")
            lines += [f"{name} {behaviour} {' '.join(column)}: {line}" for line in verdict.outside]
        table.add_row(name, behaviour, *shown)
    Console(width=140).print(table)
    for line in lines:
        print(line[:500])


if __name__ == "__main__":
    main()
