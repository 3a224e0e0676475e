"""Errors with a one-line message for the user."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_MOST_CHARACTERS: Final = 2000
#: The exit codes of commands and their meaning.
EXIT_CODES: Final = {
    0: "success",
    1: "another error, such as no client that answers",
    2: "usage, configuration or input",
    3: "refused for privacy: record damaged, older than one seen before, or budget used up",
    74: "storage: disk full, failing or not writable, or a reader of the output that went away",
    75: "busy: another process has it open",
    130: "interrupted by SIGINT",
    143: "interrupted by SIGTERM",
}
USAGE: Final = 2
REFUSED: Final = 3
STORAGE: Final = 74
BUSY: Final = 75
#: Errors of a disk, by the operating system and by SQLite (READONLY, IOERR and FULL).
_DISK_ERRORS: Final = (
    errno.EACCES,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EIO,
    errno.ENOSPC,
    errno.EPIPE,
    errno.EROFS,
)
_SQLITE_ERRORS: Final = (8, 10, 13)


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


def exit_code(error: BaseException) -> int:
    """Return the exit code, from `EXIT_CODES`, of a command that an error ends.

    >>> exit_code(ConfigError("users must be given")), exit_code(BusyError("it is open"))
    (2, 75)
    """
    if _is_of_disk(error):
        return STORAGE
    if isinstance(error, BusyError):
        return BUSY
    if isinstance(error, LedgerError | HorizonExceededError | UnsoundSumError):
        return REFUSED
    if isinstance(error, ValueError | ImportError | MemoryError):
        return USAGE
    return 1


def _is_of_disk(error: BaseException) -> bool:
    """Whether an error is, or was raised because of, an error of the disk."""
    each: BaseException | None = error
    while each is not None:
        if isinstance(each, OSError) and each.errno in _DISK_ERRORS:
            return True
        if getattr(each, "sqlite_errorcode", 0) & 0xFF in _SQLITE_ERRORS:
            return True
        each = each.__cause__ or each.__context__
    return False


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
