"""Functions of the user, named in configurations and imported where they are needed."""

from __future__ import annotations

import pkgutil
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedmf.errors import ConfigError


def check_function_name(owner: str, name: str) -> None:
    """Reject a name that does not have the form ``package.module:function``.

    Args:
        owner: the owner of the function, for the message.
        name: the name.

    Raises:
        ValueError: another form.
    """
    if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", name):
        raise ValueError(f"function (of {owner}) must read package.module:function; got {name!r}.")


def search_in(folder: Path) -> None:
    """Let modules be imported from a folder, after all other places."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def function_of(owner: str, name: str) -> Callable[..., Any]:
    """Import the function of a name that `check_function_name` accepts.

    Raises:
        ConfigError: it cannot be imported, or is not callable.
    """
    folder = Path.cwd()
    search_in(folder)  # as python -m, Ray and Flower do, but no console script
    try:
        function = pkgutil.resolve_name(name)
    except Exception as error:
        raise ConfigError(
            f"function (of {owner}) {name!r} failed: {type(error).__name__}: {error} (modules are"
            f" searched on Python's path, in {folder}, and next to a configuration file)"
        ) from error
    if not callable(function):
        raise ConfigError(
            f"function (of {owner}) must be callable; got {name!r}, a {type(function).__name__}."
        )
    return function
