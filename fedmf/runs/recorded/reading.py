"""The one opener of a run's evidence: records, what parts keep, and what they can tell as evidence."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from fedmf.accounting import Fault, Verdict
from fedmf.errors import ConfigError, LedgerError
from fedmf.noise import NoiseKey
from fedmf.records import Ledger, Mark, load_key
from fedmf.statements import PrivacyStatement, RunHeader, build_statement

KEY, LEDGER = "noise.key", "ledger.sqlite"
#: How often records are looked at that seem to lack something while a process writes them.
_LOOKS: Final = 50


@dataclass(frozen=True)
class Evidence:
    """A run's records, open for reading, all reads of the same rounds.

    Attributes:
        path: of the run.
        header: its description.
        ledger: of its rounds.
        verdict: whether they are all that was released, as far as this copy and this machine know.
    """

    path: Path
    header: RunHeader
    ledger: Ledger
    verdict: Verdict

    @property
    def records(self) -> tuple[RunHeader, Ledger]:
        """Header and ledger, as accounting takes them."""
        return self.header, self.ledger

    @cached_property
    def statement(self) -> PrivacyStatement:
        """The privacy statement of these rounds, with the verdict.

        Raises:
            LedgerError: a record fails its replay, or contradicts the header.
        """
        return replace(build_statement(*self.records), verdict=self.verdict)


def read_header(path: Path) -> RunHeader:
    """The header that a run directory's ledger keeps.

    Raises:
        ConfigError: it is not a run directory.
        LedgerError, ValueError: a damaged ledger, or one of another format.
    """
    with opened_evidence(path) as evidence:
        return evidence.header


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
        said = ledger.header
    key = load_key(path / KEY, said.get("key_fingerprint"))
    if said.get("key_public") is not key.public:
        raise LedgerError(
            f"key_public of the header must be that of noise key {path / KEY}, {key.public}; got "
            f"{said.get('key_public')!r}."
        )
    return key


@contextlib.contextmanager
def opened_evidence(path: Path) -> Iterator[Evidence]:
    """A run's records for reading, and the verdict on them: every reader has it from here.

    A process that goes on with the run meanwhile is not disturbed, and does not make its records look as if
    something of them were missing: what seems to be missing is looked for again.

    Raises:
        ConfigError: it is not a run directory.
        LedgerError, ValueError: damaged records, or of another format.
    """
    seen: object = None
    for look in range(_LOOKS):
        with _opened(path) as evidence:
            here = _position(evidence)
            lost = evidence.verdict.found - {Fault.UNAUTHENTICATED, Fault.BEHIND}
            if not lost or here == seen or look == _LOOKS - 1:
                yield evidence
                return
        seen = here
        time.sleep(0.01)


def verdict_of(mark: Mark, ledger: Ledger) -> Verdict:
    """What can be told of records as evidence of all that was released.

    Args:
        mark: how far this machine has seen the run, looked at before the records were read.
        ledger: of rounds.
    """
    found = [*ledger.behind(mark), *ledger.faults()]
    if not ledger.authenticated:
        found.append(
            (
                Fault.UNAUTHENTICATED,
                f"without {KEY} its rows are chained and not authenticated, so that anybody may have written "
                "them",
            )
        )
    return Verdict(tuple(found))


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Evidence]:
    require_run(path)
    key = key_of(path) if (path / KEY).exists() else None
    with Ledger.open(path / LEDGER, key, read_only=True) as ledger:
        header = RunHeader.from_dict(ledger.header)
        mark = Mark.look(header.key_fingerprint)
        with ledger.snapshot():
            yield Evidence(path, header, ledger, verdict_of(mark, ledger))


def _position(evidence: Evidence) -> tuple[Any, ...]:
    """How far the records are."""
    return evidence.ledger.checkpoint(), len(evidence.ledger.openings())
