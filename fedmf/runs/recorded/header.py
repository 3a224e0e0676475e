"""What the ledger of a run says about it, as it is written and as it is read."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedmf.noise import NoiseKey
from fedmf.records import Ledger
from fedmf.runs.recorded.recomputed import check_header
from fedmf.statements import Plan, RunHeader

if TYPE_CHECKING:
    from fedmf.data import PublicInput
    from fedmf.runs.run import Run


def header_of(
    run: Run,
    plan: Plan,
    key: NoiseKey,
    dimension: int,
    test_owner: str = "nobody",
    arrays: tuple[tuple[str, tuple[int, ...]], ...] = (),
    constants: Sequence[PublicInput] = (),
) -> RunHeader:
    """What the ledger must remember to account for the run and to continue it exactly."""
    return RunHeader(
        run=run.to_dict(),
        plan=plan,
        dimension=dimension,
        arrays=arrays,
        key_fingerprint=key.fingerprint if run.is_private else None,
        key_public=key.public,
        clipped_by="server" if run.execution.messages == "per-user" else "workers",
        not_private=("central test part",) if test_owner == "training users" else (),
        public_inputs=tuple(map(dataclasses.asdict, (*run.task_source.public_inputs(), *constants))),
    )


def file_digest(path: Path) -> str:
    """SHA-256 of a file in hexadecimal digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def recorded_header(ledger: Ledger) -> RunHeader:
    """The header of a ledger, checked against itself.

    Raises:
        LedgerError: a number in it is not the one that follows from the others.
        ValueError: another format, or a field out of its range.
    """
    header = RunHeader.from_dict(ledger.header)
    check_header(header)
    return header
