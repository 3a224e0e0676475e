"""Which versions of Flower serve."""

from __future__ import annotations

import logging
from importlib.metadata import PackageNotFoundError, version
from typing import Final

#: The oldest that serves and the newest that was tried.
OLDEST: Final = (1, 38)
NEWEST_TRIED: Final = (1, 42)

_SERVE: Final = f"flwr {OLDEST[0]}.{OLDEST[1]} or newer"


def check_version(installed: str | None) -> str | None:
    """Refuse a version that does not serve.

    Args:
        installed: version of flwr; None where there is none.

    Returns:
        A line about a version that is newer than any that was tried; None for those that were.

    Raises:
        ImportError: Flower is not there, or older than what serves.
    """
    if installed is None:
        raise ImportError(
            f"fedmf.flower needs {_SERVE}, which is not installed: pip install 'fedmf[flower]'."
        )
    major, minor = (int(part) for part in installed.split(".")[:2])
    if (major, minor) < OLDEST:
        raise ImportError(
            f"fedmf.flower needs {_SERVE}; flwr {installed} is installed: pip install 'flwr>=1.38'."
        )
    if (major, minor) > NEWEST_TRIED:
        tried = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST_TRIED[0]}.{NEWEST_TRIED[1]}"
        return f"flwr {installed} is newer than those that fedmf was tried with, {tried}; it may work"
    return None


def look_at_flower() -> None:
    """Check the installed version, and log a warning where it was not tried.

    Raises:
        ImportError: see `check_version`.
    """
    try:
        installed = version("flwr")
    except PackageNotFoundError:
        installed = None
    line = check_version(installed)
    if line is not None:
        logging.getLogger("fedmf").warning(line)
