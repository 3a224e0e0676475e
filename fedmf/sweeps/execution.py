"""Execution of a sweep: tuning runs first, then each cell's reported runs with the chosen values.

Each run is finished in one durable step, so a stopped sweep continues where it was.
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
from fedmf.runs.run import Run
from fedmf.runs.session import Session
from fedmf.runs.simulation import resume, run_in_process, start
from fedmf.runs.tables.configuration import Scalar, run_of
from fedmf.sweeps.pictures import write_pictures
from fedmf.sweeps.results import MetricColumn, SweepResult
from fedmf.sweeps.sweep import Cell, Sweep, comma_list, described
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
    """Execute all unfinished runs, and write tables, pictures and evaluations.

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
        work = _Work(sweep, folder, keep_runs, on_run)
        with parallel_config("loky", n_jobs=processes, inner_max_num_threads=threads):
            for cell, tuned in itertools.product(sweep.cells, sweep.candidates):
                work.request("tuning", cell, tuned, sweep.tuning_seeds)
            work.run()
            for cell in sweep.cells:
                work.request("reported", cell, work.best_candidate(cell), sweep.seeds)
            work.run()
        runs = work.frame()
        metric = work.metric.among(runs["value"])
        result = SweepResult(folder, sweep, metric, runs, tuple(work.errors.values()))
        result.write(work.records)
        write_pictures(result, result.by_round(work.records))
        return result
    finally:
        lock.release()


def _folder(path: Path) -> Path:
    """Create the directory of the sweep if it is missing, readable by its owner alone."""
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
    """Requested runs, the records of finished ones, and the errors of failed ones.

    Args:
        sweep: the configurations to compare.
        folder: the directory of the sweep.
        keep_runs: whether run directories are kept.
        on_run: as in `run_sweep`.
    """

    def __init__(
        self,
        sweep: Sweep,
        folder: Path,
        keep_runs: bool,
        on_run: Callable[[int, int, str], None] | None,
    ) -> None:
        self.sweep = sweep
        self._folder = folder
        self._keep_runs = keep_runs
        self._on_run = on_run
        #: The label and the keys of each run, by digest.
        self._requested: dict[str, tuple[str, Mapping[str, Scalar]]] = {}
        self._rows: list[dict[str, Any]] = []
        #: By digest, as `_record_of` makes them.
        self.records: dict[str, dict[str, Any]] = {}
        self.errors: dict[str, str] = {}

    def request(
        self, part: str, cell: Cell, tuned: Mapping[str, Scalar], seeds: Sequence[int]
    ) -> None:
        """Request the runs of a cell with tuned values, one per seed; equal runs are one."""
        values = self.sweep.tuned_of(cell, tuned)
        for seed in seeds:
            planned = self.sweep.planned(cell, tuned, seed)
            row = {"cell": str(cell), "variant": cell.variant, **dict(cell.point), **values}
            self._rows.append({**row, "part": part, "seed": seed, "run": planned.digest})
            label = comma_list(str(cell), described(values), f"seed {seed}")
            self._requested.setdefault(planned.digest, (label, planned.keys))

    def run(self) -> None:
        """Run every requested run to its end."""
        jobs = []
        for digest, (label, keys) in self._requested.items():
            if digest not in self.records and digest not in self.errors:
                attempt = delayed(_attempt)
                jobs.append(
                    attempt(digest, label, keys, self._folder, self._keep_runs, os.getpid())
                )
        results: Any = Parallel(return_as="generator_unordered")(jobs)
        for digest, error in results:
            self._note(digest, error)

    def _note(self, digest: str, error: str | None) -> None:
        """Read the record of a run that ended, or note its error, and report progress."""
        failure = ""
        if error is None:
            file = _finished(self._folder, digest)
            with rebuilding(f"result {file}", ConfigError):
                self.records[digest] = json.loads(file.read_text(encoding="utf-8"))
            self._column(digest)  # raises for a metric that the runs do not have
        else:
            label, _ = self._requested[digest]
            self.errors[digest] = f"{label}: {error}"
            failure = f"failed: {self.errors[digest]}"
        if self._on_run is not None:
            finished = len(self.records) + len(self.errors)
            self._on_run(finished, len(self.sweep.promises), failure)

    def _column(self, digest: str) -> MetricColumn:
        columns = self.records[digest]["columns"]
        name = self.sweep.metric
        if not name:
            name = next(iter(columns))
        if name not in columns:
            raise ConfigError(
                f"metric (of the sweep) must be one of {', '.join(columns)}; got {name!r}."
            )
        return MetricColumn(**columns[name])

    @property
    def metric(self) -> MetricColumn:
        """The metric that is compared; the loss if all runs failed."""
        if not self.records:
            return MetricColumn("loss", "loss")
        return self._column(next(iter(self.records)))

    def _value(self, digest: str) -> float:
        """The metric at the end of a run; NaN if it failed."""
        if digest not in self.records:
            return math.nan
        column = self.metric.column
        values = []
        for row in self.records[digest]["metrics"]:
            value = row.get(column)
            if value is not None:
                values.append(value)
        if not values:
            return math.nan
        return fmean(values[-self.sweep.last :])

    def frame(self) -> pd.DataFrame:
        """A row for each run of each cell: its keys, its part and seed, and its metric."""
        rows = [{**row, "value": self._value(row["run"])} for row in self._rows]
        return pd.DataFrame(rows)

    def best_candidate(self, cell: Cell) -> Mapping[str, Scalar]:
        """The candidate with the best mean over the tuning seeds.

        It is the first of equally good ones, and the first of all if every run failed.
        """
        sign = 1.0
        if not self.metric.higher_is_better:
            sign = -1.0
        best = self.sweep.candidates[0]
        if not self.sweep.tuning_seeds:
            return best
        best_score = -math.inf
        for tuned in self.sweep.candidates:
            values = []
            for seed in self.sweep.tuning_seeds:
                planned = self.sweep.planned(cell, tuned, seed)
                values.append(self._value(planned.digest))
            score = sign * fmean(values)
            if score > best_score:
                best = tuned
                best_score = score
        return best


def _finished(folder: Path, digest: str) -> Path:
    """The file with the record of a run."""
    return folder / "finished" / f"{digest}.json"


def _attempt(
    digest: str, label: str, keys: Mapping[str, Scalar], folder: Path, keep: bool, parent: int
) -> tuple[str, str | None]:
    """Run to the horizon, unless a record exists; return the digest and an error in one line."""
    if os.getpid() != parent:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    file = _finished(folder, digest)
    place = folder / "runs" / digest
    try:
        if not file.is_file():
            record = _record_of(label, keys, place, keep)
            write_durably(file, (json.dumps(record) + "\n").encode())
        if not keep:
            shutil.rmtree(place, ignore_errors=True)
    except Exception as error:
        return digest, one_line(str(error)) or type(error).__name__
    return digest, None


def _session(run: Run, place: Path) -> Session:
    """Start a run, or continue it unless it is a simulation that lost rounds at the last stop."""
    if (place / LEDGER).is_file():
        session = resume(run, place)
        if not session.server.lost or run.privacy.noise_seed is None:
            return session
        session.close()
        shutil.rmtree(place, ignore_errors=True)
    return start(run, place)


def _record_of(label: str, keys: Mapping[str, Scalar], place: Path, keep: bool) -> dict[str, Any]:
    """Run to the horizon; return keys, metrics by round, columns and the privacy statement."""
    run = run_of(keys)
    with _session(run, place) as session:
        session.label = f"{label}: "
        run_in_process(session)
        if keep:
            session.draw()
        metrics = []
        for t, row in sorted(session.metrics.items()):
            metrics.append({"round": t, **row})
        return {
            "keys": dict(keys),
            "metrics": metrics,
            "columns": _columns_of(session.task),
            "statement": session.statement().to_dict(),
        }


def _end_with(parent: int) -> None:
    """A worker does not outlive the program that asked for its runs."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _columns_of(task: Task) -> dict[str, dict[str, Any]]:
    """The metrics of a task by name, as fields of `MetricColumn`; its first metric comes first."""
    metrics = []
    for metric in task.metrics:
        column = central(metric.name, task.dataset)
        metrics.append(MetricColumn(metric.name, column, metric.higher_is_better, metric.is_share))
    metrics.append(MetricColumn("loss", central("loss", task.dataset)))
    written = metric_columns(task)
    columns = {}
    for metric in metrics:
        if metric.column in written:
            columns[metric.name] = dataclasses.asdict(metric)
    return columns
