"""One run of a sweep: carried out or gone on with, and what is kept of it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedmf.records import write_durably
from fedmf.runs import (
    LEDGER,
    RoundRecord,
    Run,
    Scalar,
    central,
    metric_columns,
    run_in_process,
    run_of,
)
from fedmf.runs.simulation import resume, start
from fedmf.training import Task


def carry_out_run(keys: Mapping[str, Scalar], place: Path, finished: Path, keep: bool) -> None:
    """Bring a run to its horizon and keep its metrics and statement.

    Args:
        keys: of its configuration.
        place: its directory; of a run that was stopped, or to be made.
        finished: file for what is kept; it appears whole, when all is done.
        keep: whether the run's directory stays.
    """
    begun, run, failures = time.monotonic(), run_of(keys), 0

    def count(record: RoundRecord) -> None:
        nonlocal failures
        failures += len(record.report.failures) if record.report else 0

    opened = resume if (place / LEDGER).is_file() else start
    with opened(run, place) as session:
        run_in_process(session, count)
        if keep:
            session.draw()
        kept = {
            "keys": dict(keys),
            "metrics": session.metrics,
            "columns": columns_of(run, session.task),
            "statement": session.statement().to_dict(),
            "failed_contributions": failures,
            "seconds": time.monotonic() - begun,
        }
    write_durably(finished, (json.dumps(kept) + "\n").encode())
    if not keep:
        shutil.rmtree(place, ignore_errors=True)


def columns_of(run: Run, task: Task) -> dict[str, dict[str, Any]]:
    """By the names people give them: column, direction, whether a share; the task's first metric first."""
    judged = [(metric.name, metric.higher_is_better, metric.is_share) for metric in task.metrics]
    columns: dict[str, dict[str, Any]] = {}
    for name, higher, share in [*judged, ("loss", False, False)]:
        meaning = {"higher_is_better": higher, "is_share": share}
        columns[name] = {"column": central(name, task.dataset), **meaning}
    present = metric_columns(task)
    return {name: column for name, column in columns.items() if column["column"] in present}
