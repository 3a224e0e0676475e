"""What went wrong in a task's own code, in one line."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

#: Packages whose frames are not the task's own.
LIBRARIES = frozenset({"fedmf", "functorch", "numpy", "torch", *sys.stdlib_module_names})
MOST_CHARACTERS = 300


def described(error: BaseException) -> str:
    """Type, message and the deepest place in the task's own code, if it passed through any.

    >>> described(ValueError("two\\nlines"))
    'ValueError: two lines'
    """
    message = " ".join(_text(error).split())[:MOST_CHARACTERS].rstrip(".")
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in LIBRARIES:
            return f"{type(error).__name__}: {message} ({frame.f_code.co_filename}:{line})"
    return f"{type(error).__name__}: {message}"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as another:  # an exception of somebody's own may fail at anything
        pass_interrupt(another)
        return "no message"


def pass_interrupt(error: BaseException) -> None:
    """Raise what only the operator can have caused; everything else may come from a user's data."""
    if isinstance(error, KeyboardInterrupt):
        raise error


@contextmanager
def silent() -> Iterator[None]:
    """Without Python's warnings: whether a number overflows, say, is nobody's business but the user's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
