"""A file of check-ins: who was there, and when."""

from __future__ import annotations

import csv
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np

from fedmf.cohorts.check_in.check_ins import CheckIns
from fedmf.errors import ConfigError

_DAY: Final = 86_400
_LONGEST: Final = 4000


def read_check_ins(path: Path, rounds_per_day: int) -> CheckIns:
    """Check-ins of a CSV file with the columns ``user`` and ``time``.

    Users are numbered in the order of their ids, rounds from midnight (UTC) of the first day on; the last day
    is a whole one too, so that a trace which begins again goes on at the right hour.

    Args:
        path: times are seconds since 1970, or ISO 8601 (UTC where they name no zone).
        rounds_per_day: how many rounds a day has.

    Raises:
        ConfigError: unreadable, other columns, no row, a time that is none, or more than 4000 days.
    """
    ids, times = [], []
    if path.exists() and not path.is_file():  # a device may never end
        raise ConfigError(f"check-ins {path} must be a file; got something else.")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file)
            columns = next(rows, [])
            if sorted(columns) != ["time", "user"]:
                given = ", ".join(columns)[:100] or "none"
                raise ConfigError(f"check-ins {path} must have the columns user, time; got {given}.")
            who, when = columns.index("user"), columns.index("time")
            for row in rows:
                if len(row) != 2 or not row[who]:
                    raise ConfigError(
                        f"check-ins {path} must name user and time; line {rows.line_num} has not."
                    )
                ids.append(row[who])
                times.append(_seconds(row[when], path, rows.line_num))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot read check-ins {path}: {reason}.") from None
    if not ids:
        raise ConfigError(f"check-ins {path} must have at least one row; got none.")
    seconds = np.array(times)
    first = math.floor(seconds.min() / _DAY)
    days = math.floor(seconds.max() / _DAY) + 1 - first
    if days > _LONGEST:
        raise ConfigError(f"check-ins {path} must span at most {_LONGEST} days; they span {days}.")
    names, users = np.unique(np.array(ids), return_inverse=True)
    rounds = np.floor((seconds - first * _DAY) * rounds_per_day / _DAY).astype(np.int64)
    placed = np.unique(np.minimum(rounds, days * rounds_per_day - 1) * names.size + users)
    starts = np.searchsorted(placed, np.arange(days * rounds_per_day + 1) * names.size)
    return CheckIns(names.size, starts, (placed % names.size).astype(np.int32))


def _seconds(text: str, path: Path, line: int) -> float:
    """Seconds since 1970."""
    try:
        seconds = float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            seconds = math.nan
        else:
            seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if not math.isfinite(seconds):
        raise ConfigError(
            f"time (of a check-in) must be seconds or ISO 8601; got {text[:40]!r} in line {line} of {path}."
        )
    return seconds
