"""The check of a statement against the directory of its run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedmf.accounting import Fault, PrivacyStatement, evidence_of
from fedmf.errors import LedgerError
from fedmf.records import Ledger
from fedmf.runs.publication.derived import check_names
from fedmf.runs.recorded import opened_evidence


def check_run(
    path: Path,
    statement: Mapping[str, Any],
    earlier: Mapping[str, Any] | None,
    verified: list[str],
    unverified: list[str],
) -> None:
    """See that a statement, whose figures follow from its evidence, is of the run in a directory.

    Args:
        path: of the run.
        statement: published.
        earlier: published before, of the same evidence.
        verified: what is found to hold is appended to it.
        unverified: what cannot be checked without the noise key.

    Raises:
        LedgerError: it is not, or the records are damaged.
    """
    from fedmf.records import load_state, without_head

    with opened_evidence(path) as evidence:
        header, ledger, evaluations = evidence.records
        if evidence_of(header) != statement["evidence"]:
            raise LedgerError(f"the run in {path} has another plan or noise key than the statement.")
        evidence.verdict.require_no_loss(str(path), "verified", [Fault.BEHIND])
        check_names(header)
        now = evidence.statement
        released = now.recorded.rounds
        if released < statement["rounds_released"]:
            raise LedgerError(
                f"the record has {released} rounds; the statement says {statement['rounds_released']}."
            )
        _check_losses(statement, now, released)
        if Fault.BEHIND in evidence.verdict.found:
            unverified.append(f"what was released after this copy was made ({evidence.verdict})")
        verified.append(
            f"the chain of {released} rounds is whole, no user takes part more than k times or less than b "
            "rounds apart, and epsilon_realised is at most what is planned"
        )
        committed = ledger.checkpoint()
        if committed is not None:
            _, name, digest = committed
            without_head(load_state(ledger, name, digest)[2], ledger)
            verified.append("the last state has the digest that its round names")
        ledgers = {"rounds": ledger, "evaluations": evaluations}
        _check_heads(statement, ledgers, verified, unverified)
        if earlier is not None:
            _check_heads(earlier, ledgers, verified, unverified)
        if released > statement["rounds_released"]:
            unverified.append(
                f"{released - statement['rounds_released']} rounds that were released after this statement"
            )


def _check_losses(statement: Mapping[str, Any], now: PrivacyStatement, released: int) -> None:
    """The statement names what was lost with backups, as the openings of the record do."""
    noted = [{"first": entry.first, "released": entry.released} for entry in now.lost]
    stated = statement["rounds_lost"]
    same = stated == noted if released == statement["rounds_released"] else stated == noted[: len(stated)]
    if not same:
        raise LedgerError(f"the record notes {noted} as lost with backups; the statement says {stated}.")


def _check_heads(
    statement: Mapping[str, Any],
    ledgers: Mapping[str, Ledger | None],
    verified: list[str],
    unverified: list[str],
) -> None:
    """The record had exactly the signed digests when it had so many rounds."""
    record, evaluation = statement.get("record"), statement["evaluation"]
    stated = {
        "rounds": statement["rounds_released"],
        "evaluations": None if evaluation is None else evaluation["evaluations_released"],
    }
    if record is None:
        unverified.append("that the record is the one of the statement, which names no digest of it")
        return
    for name, ledger in ledgers.items():
        if (ledger is None) != (record[name] is None):
            raise LedgerError(f"the statement names a digest of {name} and there is no such record, or none.")
        if ledger is None:
            continue
        if not ledger.authenticated:
            unverified.append(f"the codes of the record of {name} and its signed digest, without noise.key")
            continue
        reached = ledger.published_at(record[name])
        if reached != stated[name]:
            found = "that of none of its rows" if reached is None else f"that after {reached}"
            raise LedgerError(
                f"the record of {name} is not the one that was signed: the signed digest is {found}; the "
                f"statement says {stated[name]}."
            )
        verified.append(f"the record of {name} is the one that was signed, row for row, after {reached}")
