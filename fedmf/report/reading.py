"""What a report shows of one run, read from its directory and verified as `fedmf account` does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedmf.errors import ConfigError
from fedmf.report.spent import Histories, SpentPrivacy, privacy_spent
from fedmf.runs import LEDGER, METRICS, opened_evidence, read_phases
from fedmf.statements import PrivacyStatement, RunHeader

#: Rows of C⁻¹ that are shown.
_SHOWN: Final = 48


@dataclass(frozen=True, eq=False)
class NoiseLevel:
    """Standard deviations of one coordinate, per round; empty arrays in a run without noise.

    Attributes:
        mean: of the noise in the round's mean update, τ·‖[C⁻¹]_t‖/m with τ the deviation of the streamed z
            and m the planned cohort size, shape (n,).
        total: of that in the sum of the means up to the round, τ·‖[A C⁻¹]_t‖/m, A of ones, shape (n,).
        signal: ζ/(mean·√d): how many times longer than the noise a mean update could be at most, if all m
            updates were as long as the clip norm and pointed the same way, shape (n,).
        correlation: the leading block of C⁻¹, at most 48 rows.
    """

    mean: NDArray[np.float64]
    total: NDArray[np.float64]
    signal: NDArray[np.float64]
    correlation: NDArray[np.float64]


def noise_level(header: RunHeader) -> NoiseLevel:
    """Of a run's plan; nothing of it depends on data or on who took part."""
    plan = header.plan
    if plan.noise_multiplier == 0:
        return NoiseLevel(np.zeros(0), np.zeros(0), np.zeros(0), np.zeros((0, 0)))
    C, n = plan.mechanism.factorization, plan.participation.rounds
    scale = plan.noise_std * plan.inflation / plan.cohorts.size
    mean = scale * np.sqrt(C.noise_row_variances())
    total = scale * np.sqrt(C.query_variances(np.ones(n)))
    block = C.leading(min(n, _SHOWN))
    correlation = block.recurrence().apply(np.eye(block.rounds))
    return NoiseLevel(mean, total, plan.privacy.clip_norm / (mean * math.sqrt(header.dimension)), correlation)


#: Larger numbers are not drawn.
_LARGEST: Final = 1e300
_STREAM: Final = "state.sqlite"

#: Column of the metrics table ↦ ((rounds released, value), …), values finite.
Metrics = Mapping[str, tuple[tuple[int, float], ...]]


@dataclass(frozen=True, eq=False)
class RunFigures:
    """One run.

    Attributes:
        name: of its directory, without the way to it.
        settings: the run as its header describes it, dotted names to text.
        statement: computed from its verified records.
        metrics: of its metrics table; that file is no part of the authenticated record.
        spent: ε over rounds.
        noise: of every round.
        histories: who took part when; **not private**.
        phases: seconds by phase and rounds released; **not private**: users' examples decide what is slow.
    """

    name: str
    settings: Mapping[str, str]
    statement: PrivacyStatement
    metrics: Metrics
    spent: SpentPrivacy
    noise: NoiseLevel
    histories: Histories
    phases: Mapping[int, Mapping[str, float]]


def read_run(path: Path) -> RunFigures:
    """Read a finished, running or stopped run; nothing is written, so a read-only copy will do.

    Raises:
        ConfigError: it is not a run directory, or its metrics table cannot be read.
        LedgerError, ValueError: its records are damaged or contradict each other.
    """
    if (path / _STREAM).is_file() and not (path / LEDGER).exists():
        raise ConfigError(f"{path} keeps the state of a stream; fedmf report is about runs.")
    with opened_evidence(path) as evidence:
        header, ledger, own_records = evidence.records
        statement = evidence.statement
        trained = Histories.of(ledger)
        beside = {name: Histories.of(record) for name, record in own_records.items()}
    return RunFigures(
        path.resolve().name,
        dict(_flat(header.run)),
        statement,
        _metrics(path / METRICS),
        privacy_spent(header.plan, statement, trained, beside),
        noise_level(header),
        trained,
        read_phases(path),
    )


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows = []
    for name, value in values.items():
        whole = f"{prefix}{name}"
        rows += _flat(value, f"{whole}.") if isinstance(value, Mapping) else [(whole, str(value))]
    return rows


def _metrics(path: Path) -> Metrics:
    """Every column of numbers but the rounds and ε, which the statement knows better."""
    if not path.exists():
        return {}
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = parquet.ParquetFile(path).read()
        rounds = table.column("round").cast(pa.int64()).to_pylist()
    except (OSError, KeyError, pa.ArrowException) as error:
        raise ConfigError(f"{path} (metrics of the run) cannot be read: {error}.") from None
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if name in ("round", "epsilon") or not _numeric(column.type):
            continue
        pairs = zip(rounds, column.to_pylist(), strict=True)
        columns[name] = tuple((t, float(y)) for t, y in pairs if t is not None and _drawable(y))
    return columns


def _numeric(kind: Any) -> bool:
    from pyarrow import types

    return types.is_floating(kind) or types.is_integer(kind)


def _drawable(value: float | None) -> bool:
    return value is not None and abs(value) <= _LARGEST
