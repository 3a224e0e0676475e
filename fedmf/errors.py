"""Errors with a one-line message for the user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_MOST_CHARACTERS: Final = 2000


class LedgerError(ValueError):
    """A ledger cannot be created, opened, read or extended; the message is one line."""


class ParticipationViolation(LedgerError):
    """A round would break, or rows already do break, the participation contract."""


class ConfigError(ValueError):
    """A configuration that cannot be run; the message is one line."""


class HorizonExceededError(RuntimeError):
    """A round past the horizon n was asked for: nothing about it was calibrated, so no noise
    exists.
    """


class UnsoundSumError(RuntimeError):
    """A bug of fedmf: a user's contribution is above the clip norm, on the reference path too."""


class PlatformError(ImportError):
    """Records cannot be kept safely on this platform."""

    def __init__(self) -> None:
        super().__init__(
            "fedmf needs Linux or macOS: records are locked with fcntl, which this platform does"
            " not have. On Windows use WSL."
        )


@contextmanager
def rebuilding(what: str, error: type[ValueError] = ValueError) -> Iterator[None]:
    """While a value is made again of what was recorded: whatever damage leads to becomes one line.

    >>> with rebuilding("header"):
    ...     {}["rounds"]
    Traceback (most recent call last):
    ValueError: header must be as fedmf wrote it; it is damaged (KeyError: 'rounds').
    """
    try:
        yield
    except error as already:
        if str(already) == one_line(str(already)):
            raise
        raise error(one_line(str(already))) from None
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as reason:
        said = one_line(f"{type(reason).__name__}: {reason}")
        raise error(f"{what} must be as fedmf wrote it; it is damaged ({said}).") from None


def one_line(text: str) -> str:
    """A message in one line that a value in it cannot make endless: of a long one beginning and
    end.

    >>> one_line("two\\nlines"), len(one_line("x" * 10**6)) <= _MOST_CHARACTERS
    ('two lines', True)
    """
    line = " ".join(text.split())
    half = _MOST_CHARACTERS // 2 - 2
    return line if len(line) <= _MOST_CHARACTERS else f"{line[:half]} … {line[-half:]}"
