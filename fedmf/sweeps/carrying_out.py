"""Carrying a sweep out: tuning runs first, then each cell's reported runs with the values it chose."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from fedmf.errors import ConfigError
from fedmf.runs import Scalar
from fedmf.sweeps.place import SweepPlace
from fedmf.sweeps.processes import Crew
from fedmf.sweeps.report import write_reports
from fedmf.sweeps.results import CellResult, MetricColumn, SweepResult, metric_column
from fedmf.sweeps.sweep import Cell, PlannedRun, Sweep


@dataclass(frozen=True)
class Progress:
    """How far a sweep is.

    Attributes:
        finished: runs that are finished, from earlier processes too.
        failed: runs that failed in this one.
        total: runs in all.
        line: what has just happened, if it is worth a line.
    """

    finished: int
    failed: int
    total: int
    line: str = ""


#: Called with how far a sweep is.
Observer = Callable[[Progress], None]


def carry_out(
    sweep: Sweep,
    path: str | Path,
    processes: int = 1,
    threads: int = 1,
    keep_runs: bool = False,
    observer: Observer | None = None,
) -> SweepResult:
    """Carry out what is not finished yet, and write tables, picture and results.

    Worker processes import the program's main module anew: a script calls this under
    ``if __name__ == "__main__"``.

    Args:
        sweep: what is compared.
        path: the directory of the sweep; new, or of an earlier sweep, whose runs count where they are
            the same.
        processes: how many runs at once.
        threads: of each.
        keep_runs: whether run directories stay; otherwise their metrics and statements do.
        observer: called with every `Progress`.

    Raises:
        ConfigError: the place cannot be used.

    Guarantees:
        A run is finished in one durable step; one that was stopped continues where its ledger ends.
    """
    for name, value in (("processes", processes), ("threads", threads)):
        if type(value) is not int or value < 1:
            raise ConfigError(f"{name} (of the sweep) must be a whole number ≥ 1; got {value!r}.")
    with SweepPlace(Path(path)) as place, Crew(processes, threads) as crew:
        begun, work = time.monotonic(), _Work(sweep, place)
        tell = observer or (lambda _: None)
        work.ask_for_tuning()
        while work.advance() or work.queue or crew.free < processes:
            tell(work.progress())
            while crew.free and work.queue:
                planned = work.queue.popleft()
                digest = planned.digest
                crew.begin(digest, (planned.keys, place.run(digest), place.finished(digest), keep_runs))
            if crew.free < processes:
                for digest, error in crew.finished():
                    tell(work.progress(work.note(digest, error)))
        result = work.result(time.monotonic() - begun)
        write_reports(result, work.kept)
        tell(work.progress())
        return result


class _Work:
    """What is finished, what failed, what is still to be done."""

    def __init__(self, sweep: Sweep, place: SweepPlace) -> None:
        self.sweep, self._place = sweep, place
        self.queue: deque[PlannedRun] = deque()
        self.kept: dict[str, Mapping[str, Any]] = {}
        self._errors: dict[str, str] = {}
        self._asked: dict[str, str] = {}
        self._chosen: dict[Cell, Mapping[str, Scalar] | None] = {}
        self._total = len(sweep.promises)

    def ask_for_tuning(self) -> None:
        """Queue the runs that choose, or nothing is to be chosen."""
        if self.sweep.tuned:
            for cell in self.sweep.cells:
                for tuned in self.sweep.candidates:
                    self._ask(cell, tuned, self.sweep.tuning_seeds)

    def advance(self) -> bool:
        """Queue the reported runs of cells whose tuning is done; whether there were any."""
        any_new = False
        for cell in self.sweep.cells:
            if cell in self._chosen or not self._is_tuned(cell):
                continue
            any_new, chosen = True, self._choose(cell)
            self._chosen[cell] = chosen
            if chosen is not None:
                self._ask(cell, chosen, self.sweep.seeds)
        return any_new

    def note(self, digest: str, error: str | None) -> str:
        """Take in a run that ended; a line if it failed."""
        if error is None:
            self.kept[digest] = self._read(digest)
            return ""
        self._errors[digest] = error
        return f"failed: {self._asked[digest]}: {error}"

    def progress(self, line: str = "") -> Progress:
        """How far it is."""
        return Progress(len(self.kept), len(self._errors), self._total, line)

    def _ask(self, cell: Cell, tuned: Mapping[str, Scalar], seeds: Sequence[int]) -> None:
        for seed in seeds:
            planned = self.sweep.planned(cell, tuned, seed)
            if planned.digest in self._asked:
                continue
            named = self.sweep.tuned_of(cell, tuned)
            more = "".join(f", {name}={value}" for name, value in named.items())
            self._asked[planned.digest] = f"{cell}{more}, seed {seed}"
            if self._place.finished(planned.digest).is_file():
                self.kept[planned.digest] = self._read(planned.digest)
            else:
                self.queue.append(planned)

    def _read(self, digest: str) -> Mapping[str, Any]:
        kept = self._place.kept(digest)
        assert kept is not None
        metric_column(self.sweep.metric, kept)  # refuses a metric that the runs do not have
        return kept

    def _digests(self, cell: Cell, tuned: Mapping[str, Scalar], seeds: Sequence[int]) -> dict[int, str]:
        return {seed: self.sweep.planned(cell, tuned, seed).digest for seed in seeds}

    def _is_tuned(self, cell: Cell) -> bool:
        if not self.sweep.tuned:
            return True
        digests = (
            digest
            for tuned in self.sweep.candidates
            for digest in self._digests(cell, tuned, self.sweep.tuning_seeds).values()
        )
        return all(digest in self.kept or digest in self._errors for digest in digests)

    def _choose(self, cell: Cell) -> Mapping[str, Scalar] | None:
        """The candidate of the best mean over tuning seeds, the first of equal ones; None if all failed."""
        if not self.sweep.tuned:
            return {}
        scores = self._scores(cell)
        able = {i: score for i, score in scores.items() if math.isfinite(score)}
        if not able:
            return None
        sign = 1.0 if self._metric().higher_is_better else -1.0
        return self.sweep.candidates[max(able, key=lambda i: (sign * able[i], -i))]

    def _scores(self, cell: Cell) -> dict[int, float]:
        """Mean metric of each candidate; NaN where a run failed."""
        scores: dict[int, float] = {}
        for i, tuned in enumerate(self.sweep.candidates):
            digests = self._digests(cell, tuned, self.sweep.tuning_seeds).values()
            whole = all(digest in self.kept for digest in digests)
            scores[i] = fmean(self._value(digest) for digest in digests) if whole else math.nan
        return scores

    def _metric(self) -> MetricColumn:
        if not self.kept:
            return MetricColumn(self.sweep.metric or "loss", "", False, False)
        return metric_column(self.sweep.metric, next(iter(self.kept.values())))

    def _value(self, digest: str) -> float:
        kept = self.kept[digest]
        return metric_column(self.sweep.metric, kept).final(kept["metrics"], self.sweep.last)

    def result(self, seconds: float) -> SweepResult:
        """All cells as they came out."""
        cells = []
        for cell in self.sweep.cells:
            chosen = self._chosen[cell]
            digests = {} if chosen is None else self._digests(cell, chosen, self.sweep.seeds)
            tuning = self._scores(cell) if self.sweep.tuned else {}
            cells.append(
                CellResult(
                    cell=cell,
                    tuned=None if chosen is None else self.sweep.tuned_of(cell, chosen),
                    values={seed: self._value(d) for seed, d in digests.items() if d in self.kept},
                    runs=digests,
                    tuning=tuple(tuning.values()),
                    tuning_runs=self._tuning_runs(cell),
                )
            )
        failures = tuple(f"{self._asked[digest]}: {error}" for digest, error in self._errors.items())
        return SweepResult(self._place.path, self.sweep, self._metric(), tuple(cells), failures, seconds)

    def _tuning_runs(self, cell: Cell) -> Mapping[str, tuple[int, int]]:
        """Candidate and seed of each tuning run, by digest."""
        if not self.sweep.tuned:
            return {}
        return {
            digest: (i, seed)
            for i, tuned in enumerate(self.sweep.candidates)
            for seed, digest in self._digests(cell, tuned, self.sweep.tuning_seeds).items()
        }
