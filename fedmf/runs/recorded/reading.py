"""The one opener of a run's records for reading."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedmf.errors import ConfigError, LedgerError
from fedmf.records import Ledger, load_key
from fedmf.statements import PrivacyStatement, RunHeader, run_statement

KEY, LEDGER = "noise.key", "ledger.sqlite"


@dataclass(frozen=True)
class Evidence:
    """A run's records, open for reading, all reads of the same rounds.

    Attributes:
        path: of the run.
        header: its description.
        ledger: of its rounds.
    """

    path: Path
    header: RunHeader
    ledger: Ledger

    @cached_property
    def statement(self) -> PrivacyStatement:
        """The privacy statement of these rounds.

        Raises:
            LedgerError: a record contradicts the header.
        """
        return run_statement(self.header, self.ledger)


def read_header(path: Path) -> RunHeader:
    """The header that a run directory's ledger keeps.

    Raises:
        ConfigError: it is not a run directory.
        LedgerError, ValueError: a damaged ledger, or one of another format.
    """
    with opened_evidence(path) as evidence:
        return evidence.header


def open_ledger(path: Path, read_only: bool = False) -> tuple[Ledger, RunHeader]:
    """The ledger of a run directory, verified, and the header that it keeps.

    Raises:
        ConfigError: it is not a run directory, or its key cannot be used.
        LedgerError, ValueError: a damaged ledger, or one that holds less than was released.
    """
    if not (path / LEDGER).is_file():
        raise ConfigError(f"{path} is not a run directory: it has no {LEDGER}.")
    key = load_key(path / KEY) if not read_only or (path / KEY).exists() else None
    ledger = Ledger.open(path / LEDGER, key, read_only)
    try:
        header = RunHeader.from_dict(ledger.header)
        if key is not None and header.key_public is not key.public:
            raise LedgerError(
                f"key_public of the header must be that of {path / KEY}; it is {header.key_public}."
            )
    except BaseException:
        ledger.close()
        raise
    return ledger, header


@contextlib.contextmanager
def opened_evidence(path: Path) -> Iterator[Evidence]:
    """A run's records for reading: every reader has them from here. A process that continues the run is not
    disturbed, and what it commits meanwhile is not seen.

    Raises:
        ConfigError, LedgerError, ValueError: as `open_ledger`.
    """
    ledger, header = open_ledger(path, read_only=True)
    with ledger:
        yield Evidence(path, header, ledger)
