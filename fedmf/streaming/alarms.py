"""Alarms for the operator: rows that are anomalies by the last release before them.

Nothing protects the rows that are scored, so the file of alarms must stay with the operator. Rows
are scored before any clipping, and releases do not depend on alarms.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Final, Self, final

import numpy as np

from fedmf.errors import ConfigError
from fedmf.streaming.private_release import NO_DENSITY, PrivateRelease, check_rate
from fedmf.streaming.settings import Settings
from fedmf.streaming.stream_rows import Reader, RowBlock

_MOST_ROWS: Final = 4096


@final
class Alarms:
    """A CSV file of the rows with a score above the threshold of the last release before them.

    Its columns are row (1 for the first row of the input below its header), score, threshold and
    release (t).

    Args:
        path: of the file, which only the operator may read; what it has stays.
        settings: of the stream.
        false_alarms: share of ordinary rows that may be in it.

    The file is opened on entering a ``with`` block, which raises ConfigError if it cannot be
    written.

    Raises:
        ConfigError: the releases of this stream have no density.
        ValueError: a share that is not between 0 and 1.
    """

    def __init__(self, path: Path, settings: Settings, false_alarms: float) -> None:
        squares = settings.second_moment in ("full", "diagonal")
        same_workload = settings.workloads[0] == settings.workloads[-1]
        if not (squares and same_workload and settings.moment_method.second_noise):
            raise ConfigError(NO_DENSITY)
        check_rate(false_alarms)
        self._path = path
        self._encoding = settings.encoding
        self._rate = false_alarms
        self._release: PrivateRelease | None = None
        self._threshold = np.inf
        self.rows = 0
        self.missing = 0
        self.alarms = 0

    def __enter__(self) -> Self:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            descriptor = os.open(self._path, flags, 0o600)
        except OSError as error:
            raise ConfigError(
                f"alarms (file) must be writable; got {self._path}: {error.strerror}."
            ) from None
        self._file = os.fdopen(descriptor, "w", newline="")
        self._lines = csv.writer(self._file, lineterminator="\n")
        if not os.fstat(descriptor).st_size:
            self._lines.writerow(["row", "score", "threshold", "release"])
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def watch(self, release: PrivateRelease | None, block: RowBlock, first: int) -> None:
        """Score rows by a release, and write those above its threshold.

        Without a release, or with one of too few rows, there are no scores.

        Args:
            release: the last one before the rows.
            block: the rows.
            first: number of the first of them in the input.
        """
        if release is None or release.covariance is None:
            return
        if not np.isfinite(release.covariance).all():
            return
        if self._release is None or release.t != self._release.t:
            self._threshold = release.threshold(self._rate)
            self._release = release
        values = block.measured
        if self._encoding is not None:
            centers, scales, _, _ = self._encoding.units.T
            with np.errstate(over="ignore"):
                values = centers + scales * values
        scores = release.score(values)
        missing = int(np.isnan(scores).sum())
        self.missing += missing
        self.rows += len(block) - missing
        threshold = f"{self._threshold:.6g}"
        for i in np.flatnonzero(scores > self._threshold).tolist():
            self.alarms += 1
            self._lines.writerow([first + i, f"{scores[i]:.6g}", threshold, release.t])

    def score(self, release: PrivateRelease | None, reader: Reader) -> None:
        """Score all rows of an input by one release."""
        first = 1
        while True:
            block = reader.read(_MOST_ROWS)
            if block is None:
                return
            self.watch(release, block, first)
            first += len(block)

    def __str__(self) -> str:
        if not self.rows + self.missing:
            return (
                "no row followed a release of enough rows; use --score FILE to score rows with the"
                " last one"
            )
        text = (
            f"{self.alarms:,} of {self.rows:,} scored rows are above the threshold for"
            f" {100 * self._rate:g} % of ordinary ones"
        )
        if self.missing:
            text += f", {self.missing:,} have a missing or unreadable cell and no score"
        return text
