"""The records of a run directory, for whoever reads them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from fedmf.accounting import RunHeader
from fedmf.errors import ConfigError, LedgerError
from fedmf.noise import NoiseKey
from fedmf.records import Ledger, load_key
from fedmf.runs.recorded.header import evaluation_header, recorded_header

__all__ = [
    "EVALUATION_LEDGER",
    "KEY",
    "LEDGER",
    "key_of",
    "opened_evaluations",
    "opened_record",
    "read_header",
    "require_run",
]

KEY, LEDGER = "noise.key", "ledger.sqlite"
#: The record of private evaluations.
EVALUATION_LEDGER = "evaluation.sqlite"


def opened_evaluations(path: Path, header: RunHeader, key: NoiseKey | None, read_only: bool) -> Ledger | None:
    """The ledger of a run's evaluations, if its plan has any.

    Raises:
        LedgerError: it is missing, or it is that of another run.
    """
    if header.plan.evaluation is None:
        return None
    ledger = Ledger.open(path / EVALUATION_LEDGER, key, read_only)
    if ledger.header != json.loads(json.dumps(evaluation_header(header))):
        ledger.close()
        raise LedgerError(f"{path / EVALUATION_LEDGER} is not the ledger of this run's evaluations.")
    return ledger


def read_header(path: Path) -> RunHeader:
    """The header that a run directory's ledger keeps.

    Raises:
        ConfigError: it is not a run directory.
        LedgerError, ValueError: a damaged ledger, or one of another format.
    """
    with opened_record(path) as (header, *_):
        return header


def require_run(path: Path) -> None:
    """Refuse a place that is no run directory.

    Raises:
        ConfigError: it has no ledger.
    """
    if not (path / LEDGER).is_file():
        raise ConfigError(f"{path} is not a run directory: it has no {LEDGER}.")


def key_of(path: Path) -> NoiseKey:
    """The run's key, recognised by its fingerprint; the ledger itself is authenticated once it is at hand."""
    with Ledger.open(path / LEDGER, read_only=True) as ledger:
        key, committed = (
            load_key(path / KEY, ledger.header.get("key_fingerprint")),
            ledger.header.get("key_commitment"),
        )
    if committed is not None and committed != key.commitment:
        raise ConfigError(f"noise key {path / KEY} is not the one that the run committed to before round 0.")
    return key


@contextlib.contextmanager
def opened_record(path: Path) -> Iterator[tuple[RunHeader, Ledger, Ledger | None]]:
    """A run's header, its ledger and that of its evaluations for reading, all reads of the same rounds."""
    require_run(path)
    key = key_of(path) if (path / KEY).exists() else None
    with Ledger.open(path / LEDGER, key, read_only=True) as ledger:
        header = recorded_header(ledger)
        evaluations = opened_evaluations(path, header, key, read_only=True)
        with contextlib.ExitStack() as opened:
            if evaluations is not None:
                opened.enter_context(evaluations)
                opened.enter_context(evaluations.snapshot())
                evaluations.last_round()  # before any read of the rounds: those evaluated are among them
            opened.enter_context(ledger.snapshot())
            yield header, ledger, evaluations
