"""Configurations that ship with fedmf, found wherever it is installed."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

_log = logging.getLogger("fedmf")

#: How they are called in commands: ``configs/digits.toml``.
FOLDER: Final = "configs"
_PACKAGE: Final = Path(__file__).resolve().parents[2]


def shipped_file(name: str) -> Path:
    """Where one of them, or a folder of them, is: in the package, or beside it in a checkout."""
    inside = _PACKAGE / FOLDER
    return (inside if inside.is_dir() else _PACKAGE.parent / FOLDER) / name


def found_or_shipped(path: Path) -> Path:
    """The file itself if there is something; else the shipped one that ``NAME`` or ``configs/NAME`` means.

    >>> found_or_shipped(Path("configs/no-such.toml")) == Path("configs/no-such.toml")
    True
    >>> found_or_shipped(Path("configs/million.toml")).is_file()
    True
    """
    parts = path.parts[1:] if path.parts[:1] == (FOLDER,) else path.parts
    if os.path.exists(path) or path.is_absolute() or not parts or ".." in parts:
        return path
    other = shipped_file("/".join(parts))
    if not os.path.isfile(other):  # which an impossible name does not make raise
        return path
    _log.warning("there is no %s here: the configuration of that name that ships with fedmf is taken", path)
    return other
