"""Exit codes, by which systemd, cron and scripts tell apart why a command ended."""

from __future__ import annotations

import errno
from typing import Final

from fedmf.errors import BusyError, HorizonExceededError, LedgerError, UnsoundSumError

#: The exit codes of commands and their meaning.
EXIT_CODES: Final = {
    0: "success",
    1: "another error, such as no client that answers",
    2: "usage, configuration or input",
    3: (
        "refused for privacy: record damaged, older than one seen before, budget used up, or a run"
        " without noise in a composition"
    ),
    74: "storage: disk full, failing or not writable, or the output was closed by its reader",
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


def exit_code(error: BaseException) -> int:
    """Return the exit code, from `EXIT_CODES`, of a command that an error ends.

    >>> from fedmf.errors import ConfigError
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
