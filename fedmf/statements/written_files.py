"""Comparison of what a run or stream wrote into its directory with its ledger."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import tomllib
from collections import deque
from pathlib import Path
from typing import Final

from fedmf.errors import LedgerError, rebuilding
from fedmf.ledger.ledger import Ledger
from fedmf.ledger.released_integers import DIGESTS, INTEGERS
from fedmf.statements.statement import JSON, OPERATORS, TEXT, PrivacyStatement
from fedmf.values import dotted

_log = logging.getLogger("fedmf")
#: Keys of a statement that change with the releases.
_PROGRESS: Final = (
    *OPERATORS,
    "rounds_released",
    "epsilon_so_far",
    "released_files",
    "assumptions",
)
#: Numbers may differ by this much, relative to them: machines round differently.
_ROUNDING: Final = 1e-6
_CHUNK: Final = 1 << 20
_DELETE: Final = "Restore the file from a copy, or delete it; fedmf account needs only the ledger."


def check_contents(ledger: Ledger) -> None:
    """Verify what opening a ledger does not read: its state, and the contents of its commits.

    A writer may have replaced the file of a large state since the ledger was opened. Then the
    newest state is verified.

    Raises:
        LedgerError: one of them is not as it was written.
    """
    for _ in ledger.contents():
        pass
    try:
        ledger.state()
    except LedgerError:
        with Ledger.open(ledger.path, read_only=True) as latest:
            latest.state()


def check_statement(folder: Path, statement: PrivacyStatement) -> None:
    """Compare the statement that was written into a directory, if any, with that of the ledger.

    One that was written after fewer releases is compared in what does not change with them.

    Args:
        folder: the directory.
        statement: computed from the ledger.

    Raises:
        LedgerError: it says something else, or cannot be read.
    """
    file = folder / JSON
    if not file.exists():
        return
    ignored = ["this_copy"]
    with rebuilding(str(file), LedgerError):
        written = PrivacyStatement(json.loads(file.read_bytes()))
        if written["rounds_released"] < statement["rounds_released"]:
            ignored += _PROGRESS
    recorded = dotted(statement)
    found = dotted(written)
    for key in sorted(recorded.keys() | found.keys()):
        if key.partition(".")[0] not in ignored:
            _require_same(key, file, recorded.get(key), found.get(key))
    text = folder / TEXT
    if text.exists() and text.read_bytes() != written.render_text().encode():
        raise LedgerError(f"{text} must say the same as {file}; it differs. {_DELETE}")


def check_configuration(file: Path, configuration: str) -> None:
    """Compare a configuration file, if it exists, with the one in the ledger, key by key.

    Raises:
        LedgerError: it says something else, or cannot be read.
    """
    if not file.exists():
        return
    with rebuilding(str(file), LedgerError):
        found = dotted(tomllib.loads(file.read_text(encoding="utf-8")))
    recorded = dotted(tomllib.loads(configuration))
    for key in sorted(recorded.keys() | found.keys()):
        _require_same(key, file, recorded.get(key), found.get(key))


def check_released(folder: Path, width: int, ledger: Ledger) -> None:
    """Compare the files of released integers with their SHA-256 in the ledger.

    The integers of the last commit may be missing: the process that made it writes them just now,
    or the next one will. Integers of later commits are not read.

    Args:
        folder: that of the released integers.
        width: number of integers in a record.
        ledger: of the run or stream.

    Raises:
        LedgerError: a file is missing, or is not as it was released.

    Logs a warning if the folder holds other files, which nothing was compared with.
    """
    commits = deque(ledger.commits(), maxlen=2)
    record = 8 * width
    file = folder / INTEGERS
    if commits and file.is_file() and file.stat().st_size < commits[-1].records * record:
        commits.pop()
    if not commits:
        return
    commit = commits[-1]
    digests = commit.about[DIGESTS]
    for name, digest in digests.items():
        size = None
        if name == INTEGERS:
            size = commit.records * record
        found = _sha256(folder / name, size)
        if found != digest:
            raise LedgerError(
                f"{folder / name} must be as it was released, with the SHA-256 {digest:.12}… of the"
                f" ledger; got {found:.12}…. Restore it from a copy."
            )
    others = sorted(entry.name for entry in folder.iterdir() if entry.name not in digests)
    if others:
        _log.warning(
            "%s should hold only the files that were released; it also holds %s. The ledger does"
            " not say what they are: move them elsewhere before you publish the folder.",
            folder,
            ", ".join(others),
        )


def _require_same(key: str, file: Path, recorded: object, found: object) -> None:
    """Reject a value of a file that is not the recorded one up to rounding."""
    if isinstance(recorded, int | float) and isinstance(found, int | float):
        same = math.isclose(recorded, found, rel_tol=_ROUNDING)
    else:
        same = recorded == found
    if not same:
        raise LedgerError(
            f"{key} in {file} must be {recorded!r:.100}, as the ledger says; got {found!r:.100}."
            f" {_DELETE}"
        )


def _sha256(file: Path, size: int | None) -> str:
    """Return the SHA-256 of the first bytes of a file; None for all.

    Raises:
        LedgerError: there is no such file.
    """
    if not file.is_file():
        raise LedgerError(f"{file} is missing. Restore it from a copy.")
    left = file.stat().st_size if size is None else size
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while content := opened.read(min(_CHUNK, left)):
            digest.update(content)
            left -= len(content)
    return digest.hexdigest()
