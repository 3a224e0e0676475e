"""Functions of a user's own, named in configurations and found wherever they are needed."""

from __future__ import annotations

import pkgutil
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedmf.errors import ConfigError


def check_function_name(of: str, name: str) -> None:
    """Refuse what does not read ``package.module:function``.

    Args:
        of: the owner of the function, for the message.
        name: the name.

    Raises:
        ValueError: it does not.
    """
    if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", name):
        raise ValueError(f"function (of {of}) must read package.module:function; got {name!r}.")


def function_of(of: str, name: str) -> Callable[..., Any]:
    """The function of a name that `check_function_name` accepts.

    Raises:
        ConfigError: it cannot be imported, or is no function.
    """
    here = Path.cwd()
    if (
        str(here) not in sys.path
    ):  # a console script does not search it; python -m, Ray and Flower do
        sys.path.append(str(here))
    try:
        found = pkgutil.resolve_name(name)
    except Exception as error:
        raise ConfigError(
            f"function (of {of}) {name!r} failed: {type(error).__name__}: {error} "
            f"(modules are searched on Python's path and in {here})"
        ) from error
    if not callable(found):
        raise ConfigError(
            f"function (of {of}) must be callable; got {name!r}, a {type(found).__name__}."
        )
    return found
