"""Errors with a one-line message for the user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_MOST_CHARACTERS: Final = 2000


class LedgerError(ValueError):
    """A ledger cannot be created, opened, read or extended; the message is one line."""


class BusyError(LedgerError):
    """Another process has the record open, and this one may succeed later."""


class ParticipationViolation(LedgerError):
    """A round would break, or rows already do break, the participation contract."""


class ConfigError(ValueError):
    """A configuration cannot be run; the message is one line."""


class HorizonExceededError(RuntimeError):
    """A round past the horizon n was requested, for which no noise was calibrated."""


class UnsoundSumError(RuntimeError):
    """A user's contribution is above the clip norm, on the reference path too: a bug of fedmf."""


class PlatformError(ImportError):
    """Records cannot be written safely on this platform."""

    def __init__(self) -> None:
        super().__init__(
            "fedmf needs Linux or macOS: records are locked with fcntl, which this platform does"
            " not have. On Windows use WSL."
        )


@contextmanager
def rebuilding(record: str, error: type[ValueError] = ValueError) -> Iterator[None]:
    """Turn any error raised while a recorded value is rebuilt into one line that names the record.

    >>> with rebuilding("header"):
    ...     {}["rounds"]
    Traceback (most recent call last):
    ValueError: header must be as fedmf wrote it; it is damaged (KeyError: 'rounds').
    """
    try:
        yield
    except error as expected:
        if str(expected) == one_line(str(expected)):
            raise
        raise error(one_line(str(expected))) from None
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as reason:
        details = one_line(f"{type(reason).__name__}: {reason}")
        raise error(f"{record} must be as fedmf wrote it; it is damaged ({details}).") from None


def one_line(text: str) -> str:
    """Shorten a message to one line; of a long one, only beginning and end remain.

    >>> one_line("two\\nlines"), len(one_line("x" * 10**6)) <= _MOST_CHARACTERS
    ('two lines', True)
    """
    line = " ".join(text.split())
    if len(line) <= _MOST_CHARACTERS:
        return line
    half = _MOST_CHARACTERS // 2 - 2
    return f"{line[:half]} … {line[-half:]}"


def pass_interrupt(error: BaseException) -> None:
    """Raise an interrupt by the operator; any other error may come from a user's data."""
    if isinstance(error, KeyboardInterrupt):
        raise error
