"""Cells of a results table that take minutes each: kept in a JSON file, so that a run can be
continued.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

__all__ = ["Cells"]


class Cells:
    """Finished cells by name, written to a file after each new one.

    Delete the file (or an entry) to compute anew, for instance after a change to an accountant.

    Args:
        path: of the JSON file; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._cells: dict[str, dict[str, Any]] = (
            json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        )

    def get(self, name: str) -> dict[str, Any] | None:
        """The cell, if it is finished."""
        return self._cells.get(name)

    @property
    def widest(self) -> float:
        """The largest half width of an interval, relative to its value."""
        return max(
            (cell["half_width"] / cell["rmse"] for cell in self._cells.values()), default=0.0
        )

    def has(self, name: str, error: float) -> bool:
        """Whether the cell is there, with a relative error of delta that is no larger than this."""
        return name in self._cells and self._cells[name]["error"] <= error

    def add(self, name: str, error: float, cell: dict[str, Any]) -> None:
        """Keep a cell."""
        self._cells[name] = {**cell, "error": error}
        # Replaced as a whole: an interrupted run leaves the old file.
        fresh = self._path.with_suffix(".partial")
        fresh.write_text(
            json.dumps(self._cells, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        os.replace(fresh, self._path)
