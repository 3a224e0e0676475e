"""Carrying a sweep out: tuning runs first, then each cell's reported runs with the values it
chose.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
from joblib import Parallel, delayed, parallel_config

from fedmf.errors import ConfigError, one_line, rebuilding
from fedmf.ledger.durable_files import write_durably
from fedmf.ledger.lock import WriterLock
from fedmf.runs.directory import LEDGER
from fedmf.runs.outputs import central, metric_columns
from fedmf.runs.session import Session
from fedmf.runs.simulation import resume, run_in_process, start
from fedmf.runs.tables.configuration import Scalar, run_of
from fedmf.sweeps.results import MetricColumn, SweepResult
from fedmf.sweeps.sweep import Cell, Sweep, described
from fedmf.training import Task
from fedmf.values import check_whole


def run_sweep(
    sweep: Sweep,
    path: str | Path,
    processes: int = 1,
    threads: int = 1,
    keep_runs: bool = False,
    on_run: Callable[[int, int, str], None] | None = None,
) -> SweepResult:
    """Execute all unfinished runs, and write the table, the figure and the evaluations.

    Args:
        sweep: the configurations to compare.
        path: the directory of the sweep; if it is not new, its finished runs are reused.
        processes: number of concurrent runs; with 1, they run in this process.
        threads: number of threads of each process.
        keep_runs: whether to keep run directories; otherwise only metrics and statements are kept.
        on_run: called with the numbers of finished runs and of all runs, and a line about a failed
            run.

    Raises:
        ConfigError: the place cannot be used.
        RuntimeError: a worker process ended; the same call continues the sweep.

    Guarantees:
        A run is finished in one durable step; one that was stopped continues where its ledger ends.
    """
    for name, value in (("processes", processes), ("threads", threads)):
        check_whole(f"{name} (of the sweep)", value)
    folder = _folder(Path(path))
    lock = WriterLock(folder / "sweep")
    try:
        work = _Work(sweep, folder, keep_runs, on_run or (lambda *_: None))
        with parallel_config("loky", n_jobs=processes, inner_max_num_threads=threads):
            for cell, tuned in itertools.product(sweep.cells, sweep.candidates):
                work.ask("tuning", cell, tuned, sweep.tuning_seeds)
            work.run()
            for cell in sweep.cells:
                work.ask("reported", cell, work.chosen(cell), sweep.seeds)
            work.run()
        result = SweepResult(folder, sweep, work.metric, work.frame(), tuple(work.errors.values()))
        result.write(work.kept)
        return result
    finally:
        lock.release()


def _folder(path: Path) -> Path:
    """The directory of the sweep, made if it is not there, for its owner alone."""
    try:
        if path.is_dir() and any(path.iterdir()) and not (path / "finished").is_dir():
            raise ConfigError(
                f"directory of the sweep {path} must be new or contain a sweep; it contains other"
                " files."
            )
        for name in ("", "finished", "runs"):
            (path / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"directory of the sweep {path} cannot be used: {reason}.") from None
    return path.resolve()


class _Work:
    """Requested runs, the records of finished ones, and why others failed."""

    def __init__(
        self, sweep: Sweep, folder: Path, keep: bool, tell: Callable[[int, int, str], None]
    ) -> None:
        self.sweep = sweep
        self._folder = folder
        self._keep = keep
        self._tell = tell
        self._asked: dict[
            str, tuple[str, Mapping[str, Scalar]]
        ] = {}  # what people call it, and its keys
        self._rows: list[dict[str, Any]] = []
        self.kept: dict[str, dict[str, Any]] = {}
        self.errors: dict[str, str] = {}

    def ask(self, part: str, cell: Cell, tuned: Mapping[str, Scalar], seeds: Sequence[int]) -> None:
        """Runs of a cell with tuned values, one a seed; equal runs are one."""
        for seed in seeds:
            planned = self.sweep.planned(cell, tuned, seed)
            values = self.sweep.tuned_of(cell, tuned)
            keys = {"variant": cell.variant, **dict(cell.point), **values}
            self._rows.append(
                {"cell": str(cell), **keys, "part": part, "seed": seed, "run": planned.digest}
            )
            called = ", ".join(filter(None, (str(cell), described(values), f"seed {seed}")))
            self._asked.setdefault(planned.digest, (called, planned.keys))

    def run(self) -> None:
        """Run everything to its end."""
        left = [
            digest
            for digest in self._asked
            if digest not in self.kept and digest not in self.errors
        ]
        jobs = (
            delayed(_attempt)(digest, *self._asked[digest], self._folder, self._keep, os.getpid())
            for digest in left
        )
        results: Any = Parallel(return_as="generator_unordered")(jobs)
        for digest, error in results:
            if error is None:
                file = _finished(self._folder, digest)
                with rebuilding(f"result {file}", ConfigError):
                    self.kept[digest] = json.loads(file.read_text(encoding="utf-8"))
                self._column(digest)  # refuses a metric that the runs do not have
            else:
                self.errors[digest] = f"{self._asked[digest][0]}: {error}"
            failed = f"failed: {self.errors[digest]}" if error else ""
            self._tell(len(self.kept) + len(self.errors), len(self.sweep.promises), failed)

    def _column(self, digest: str) -> MetricColumn:
        columns = self.kept[digest]["columns"]
        name = self.sweep.metric
        if name and name not in columns:
            raise ConfigError(
                f"metric (of the sweep) must be one of {', '.join(columns)}; got {name!r}."
            )
        return MetricColumn(**columns[name or next(iter(columns))])

    @property
    def metric(self) -> MetricColumn:
        """That of the runs; the loss if all failed."""
        return self._column(next(iter(self.kept))) if self.kept else MetricColumn("loss", "loss")

    def _value(self, digest: str) -> float:
        """The metric at the end of a run: NaN if it failed."""
        rows = self.kept.get(digest, {}).get("metrics", [])
        column = self.metric.column
        values = [row[column] for row in rows if row.get(column) is not None]
        return fmean(values[-self.sweep.last :]) if values else math.nan

    def frame(self) -> pd.DataFrame:
        """A row for each run of each cell: what it is, and its metric."""
        return pd.DataFrame([{**row, "value": self._value(row["run"])} for row in self._rows])

    def chosen(self, cell: Cell) -> Mapping[str, Scalar]:
        """The candidate of the best mean over tuning seeds, the first of equal ones or where all
        failed.
        """
        sign = 1.0 if self.metric.higher_is_better else -1.0
        best = (-math.inf, self.sweep.candidates[0])
        for tuned in self.sweep.candidates:
            digests = [
                self.sweep.planned(cell, tuned, seed).digest for seed in self.sweep.tuning_seeds
            ]
            score = sign * fmean(map(self._value, digests)) if digests else math.nan
            best = (score, tuned) if score > best[0] else best
        return best[1]


def _finished(folder: Path, digest: str) -> Path:
    """The file with the record of a run."""
    return folder / "finished" / f"{digest}.json"


def _session(run: Run, place: Path) -> Session:
    """Start a run, or continue it unless it is a simulation that lost rounds since a checkpoint."""
    if (place / LEDGER).is_file():
        session = resume(run, place)
        if not session.server.lost or run.privacy.noise_seed is None:
            return session
        session.close()
        shutil.rmtree(place, ignore_errors=True)
    return start(run, place)


def _attempt(
    digest: str, called: str, keys: Mapping[str, Scalar], folder: Path, keep: bool, parent: int
) -> tuple[str, str | None]:
    """Bring a run to its horizon, unless it is there, and say in a line what went wrong if anything
    did.
    """
    if os.getpid() != parent:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    file = _finished(folder, digest)
    place = folder / "runs" / digest
    try:
        if not file.is_file():
            run = run_of(keys)
            with _session(run, place) as session:
                session.label = f"{called}: "
                run_in_process(session)
                if keep:
                    session.draw()
                rows = [{"round": t, **row} for t, row in sorted(session.metrics.items())]
                kept = {"keys": dict(keys), "metrics": rows, "columns": _columns_of(session.task)}
                kept["statement"] = session.statement().to_dict()
            write_durably(file, (json.dumps(kept) + "\n").encode())
        if not keep:
            shutil.rmtree(place, ignore_errors=True)
    except Exception as error:
        return digest, one_line(str(error)) or type(error).__name__
    return digest, None


def _end_with(parent: int) -> None:
    """A worker does not outlive the program that asked for its runs."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _columns_of(task: Task) -> dict[str, dict[str, Any]]:
    """By the names people give them: column, direction, whether a share; the task's first metric
    first.
    """
    made = [
        MetricColumn(m.name, central(m.name, task.dataset), m.higher_is_better, m.is_share)
        for m in task.metrics
    ]
    made.append(MetricColumn("loss", central("loss", task.dataset)))
    return {one.name: dataclasses.asdict(one) for one in made if one.column in metric_columns(task)}
