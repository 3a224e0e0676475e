"""The directory of a sweep: finished runs, runs that go on, and results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Self

from fedmf.errors import ConfigError, rebuilding
from fedmf.records import WriterLock


class SweepPlace:
    """A sweep's directory, which one process at a time uses.

    Args:
        path: where; made if it is not there, for its owner alone.

    Raises:
        ConfigError: it cannot be made, or is something else.
        LedgerError: another process uses it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        try:
            if path.is_dir() and any(path.iterdir()) and not (path / "finished").is_dir():
                raise ConfigError(f"directory of the sweep {path} must be new or a sweep's; it holds others.")
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name in ("finished", "runs"):
                (path / name).mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"directory of the sweep {path} cannot be used: {error.strerror or error}."
            ) from None
        self._lock = WriterLock(self.path / "sweep")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def finished(self, digest: str) -> Path:
        """File of what is kept of a run."""
        return self.path / "finished" / f"{digest}.json"

    def run(self, digest: str) -> Path:
        """A run's own directory."""
        return self.path / "runs" / digest

    def kept(self, digest: str) -> dict[str, Any] | None:
        """What is kept of a run; None if it is not finished.

        Raises:
            ConfigError: the file is damaged.
        """
        file = self.finished(digest)
        if not file.is_file():
            return None
        with rebuilding(f"result {file}", ConfigError):
            kept = json.loads(file.read_text(encoding="utf-8"))
            kept["metrics"] = {int(t): row for t, row in kept["metrics"].items()}
            if not kept["metrics"] or not kept["columns"]:
                raise ValueError("no metrics")
            return kept
