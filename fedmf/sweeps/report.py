"""What a sweep writes: results for programs, a long table, tables for papers, a picture."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

from fedmf.records import write_durably
from fedmf.sweeps.picture import draw
from fedmf.sweeps.results import CellResult, SweepResult
from fedmf.sweeps.table import Table, result_table

RESULTS, RUNS = "results.json", "runs.parquet"
TABLE_MARKDOWN, TABLE_LATEX, PICTURE = "table.md", "table.tex", "comparison.png"
NOT_COVERED: Final = (
    "what was chosen by looking at this sweep, beyond its tuned keys",
    "metrics, which are not noised unless their column ends in _private",
    "sweeps and runs before and after this one",
)


def write_reports(result: SweepResult, kept: Mapping[str, Mapping[str, Any]]) -> None:
    """Write everything into the sweep's directory.

    Args:
        result: of the sweep.
        kept: what is kept of each run, by digest.
    """
    table = result_table(result)
    write_durably(result.path / TABLE_MARKDOWN, table.markdown().encode())
    write_durably(result.path / TABLE_LATEX, table.latex().encode())
    write_durably(result.path / RESULTS, (json.dumps(_json(result, table), indent=1) + "\n").encode())
    _write_runs(result, kept)
    draw(result, result.path / PICTURE)


def _json(result: SweepResult, table: Table) -> dict[str, Any]:
    return _without_infinities(
        {
            "sweep": result.sweep.to_dict(),
            "metric": asdict(result.metric),
            "cells": [_cell(result, cell) for cell in result.cells],
            "table": {"header": table.header, "rows": table.rows},
            "warnings": result.warnings,
            "failures": result.failures,
            "privacy": {
                **asdict(result.privacy),
                "text": result.privacy.render(),
                "not_covered": NOT_COVERED,
            },
            "seconds": result.seconds,
        }
    )


def _cell(result: SweepResult, found: CellResult) -> dict[str, Any]:
    against = result.against_baseline(found)
    return {
        "variant": found.cell.variant,
        "point": dict(found.cell.point),
        "tuned": found.tuned,
        "tuning": [
            {**candidate, "mean": mean}
            for candidate, mean in zip(result.sweep.candidates, found.tuning, strict=False)
        ],
        "values": {str(seed): value for seed, value in found.values.items()},
        "mean": asdict(result.interval(found)),
        "against_baseline": None if against is None else asdict(against),
        "runs": {str(seed): digest for seed, digest in found.runs.items()},
    }


def _without_infinities(value: Any) -> Any:
    """JSON has none: null stands for them and for NaN."""
    if isinstance(value, Mapping):
        return {name: _without_infinities(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_without_infinities(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write_runs(result: SweepResult, kept: Mapping[str, Mapping[str, Any]]) -> None:
    """A row for each evaluation of each run of each cell."""
    import pandas as pd

    rows = [row for cell in result.cells for row in _rows(result, cell, kept)]
    buffer = io.BytesIO()
    pd.DataFrame(rows).to_parquet(buffer, index=False)
    write_durably(result.path / RUNS, buffer.getvalue())


def _rows(
    result: SweepResult, found: CellResult, kept: Mapping[str, Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    candidates = result.sweep.candidates
    runs = [(digest, "tuning", seed, candidates[i]) for digest, (i, seed) in found.tuning_runs.items()]
    runs += [(digest, "reported", seed, found.tuned or {}) for seed, digest in found.runs.items()]
    for digest, part, seed, tuned in runs:
        for t, metrics in sorted(kept[digest]["metrics"].items()) if digest in kept else ():
            yield {
                "variant": found.cell.variant,
                **dict(found.cell.point),
                **result.sweep.tuned_of(found.cell, tuned),
                "part": part,
                "seed": seed,
                "run": digest,
                "round": t,
                **metrics,
            }
