"""The check of a published statement by somebody who has neither the data nor a key, and by an auditor."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from fedmf.accounting import Fault, LostRounds
from fedmf.errors import ConfigError, LedgerError, one_line, rebuilding
from fedmf.parts import OWN_STREAMS
from fedmf.records import Ledger, signed_by
from fedmf.runs.publication.derived import check_names, check_words, operators_words
from fedmf.runs.publication.publishing import signed_document
from fedmf.runs.recorded import check_header, opened_evidence
from fedmf.statements import (
    PrivacyStatement,
    RunHeader,
    adjacencies,
    allowed_patterns,
    as_json,
    beside_the_model,
    evidence_of,
    in_todays_words,
    planned_statement,
    todays_header,
)


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
        header, ledger, own_records = evidence.records
        if evidence_of(header) != todays_header(statement["evidence"]):
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
        others = {own.plural: own_records.get(name) for name, own in OWN_STREAMS.items()}
        ledgers = {"rounds": ledger, **others}
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
    record = statement.get("record")
    stated = {"rounds": statement["rounds_released"], **_own_released(statement)}
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


_TOLERANCE: Final = 1e-9
_LARGEST: Final = 2**28
_FIGURES: Final = ("epsilon_planned", "delta", "sensitivity", "noise_multiplier", "rounds_released")
#: What a published statement has beside the figures.
_BESIDE: Final = ("evidence", "record", "signature")


class StatementRefused(ValueError):
    """A statement that is not what it says it is; the message is one line."""


@dataclass(frozen=True)
class Verification:
    """What was found about a statement that was not refused.

    Attributes:
        figures: computed again, by name: of the worst user of the contract.
        verified: what holds, each in a sentence.
        unverified: what could not be checked with what was at hand.
        stated: what is the operator's word alone, each sentence by itself.
    """

    figures: dict[str, Any]
    verified: list[str]
    unverified: list[str]
    stated: list[str]


def verify_statement(
    path: Path, signer: str | None = None, run: Path | None = None, committed: Path | None = None
) -> Verification:
    """Check a published statement; nothing of the run's data or keys is needed.

    Args:
        path: the file ``statement.json`` of `publish_statement`.
        signer: the operator's public key, 64 hexadecimal digits; if given, the signature must be of it.
        run: the run's directory, for an auditor: then records are checked too.
        committed: a statement of the same run that was published before, say before its first round.

    Raises:
        StatementRefused: it is not as it was signed, contradicts itself, or contradicts what it was compared
            with.
        ConfigError: a file cannot be read.

    Guarantees:
        Of a statement that passes every figure and sentence follows from its evidence, and, where it is
        signed, no byte was changed since. With the run and its noise key, no row of the record up to
        ``rounds_released`` was (docs/verify.md).
    """
    statement = read_statement(path)
    verified, unverified = list[str](), list[str]()
    _check_signature(statement, signer, verified, unverified)
    header, recomputed = recompute(statement)
    verified.append(
        "every figure and sentence but the operator's own follows from the published contract, coefficients "
        "and noise multiplier"
    )
    if (claim := header.plan.amplification) is not None:
        told = "" if claim.seed is None else ", as far as new draws of its accountant tell"
        verified.append(f"the noise suffices for the amplified epsilon{told}")
    earlier = None if committed is None else read_statement(committed)
    if earlier is not None:
        _check_commitment(statement, earlier, signer, verified)
    elif header.key_commitment is not None:
        unverified.append(
            "that the noise key was fixed before round 0: give the statement published then (--committed)"
        )
    if run is None:
        unverified.append(
            "that the record has so many rounds, keeps the contract, and is the one that was signed: give "
            "the run directory (--run)"
        )
    else:
        with rebuilding(f"run directory {run}", StatementRefused):
            try:
                check_run(run, statement, earlier, verified, unverified)
            except (ConfigError, LedgerError) as told:  # which name the directory and say what is wrong
                raise StatementRefused(str(told)) from None
    unverified.append(
        "that updates were clipped, that the noise was added, and that the code is fedmf: no document shows "
        "it"
    )
    figures = {
        "adjacencies": adjacencies(header.plan),
        **{name: recomputed[name] for name in _FIGURES},
        "allowed_patterns": allowed_patterns(header.plan.participation),
        "beside_the_model": beside_the_model(recomputed),
    }
    stated = [*operators_words(header, statement, run is not None)]
    return Verification(figures, verified, unverified, stated)


def read_statement(path: Path) -> dict[str, Any]:
    """A statement as it was written, byte for byte.

    Raises:
        ConfigError: it cannot be read.
        StatementRefused: these are not the bytes that fedmf writes for any statement.
    """
    try:
        with open(path, "rb") as file:
            content = file.read(_LARGEST + 1)
    except OSError as error:
        raise ConfigError(f"cannot read statement {path}: {error.strerror or error}.") from None
    statement, same = {}, False
    with contextlib.suppress(ValueError, RecursionError):
        statement = json.loads(content.decode(), parse_constant=_no_number)
        same = isinstance(statement, dict) and as_json(statement).encode() == content
    if not same:
        raise StatementRefused(f"{path} is not as fedmf wrote it: a byte was changed, or it is no statement.")
    if "evidence" not in statement:
        raise StatementRefused(
            f"{path} does not say what its figures follow from (evidence): verify what fedmf account "
            "--publish wrote. That of a stream is computed again by fedmf account DIR."
        )
    return statement


def recompute(statement: Mapping[str, Any]) -> tuple[RunHeader, dict[str, Any]]:
    """The header in a statement, and the statement that follows from it.

    Raises:
        StatementRefused: it is not the one given; the first difference is named.
    """
    with rebuilding("statement", StatementRefused):
        header = RunHeader.from_dict(statement["evidence"])
        if (wrong := _difference(evidence_of(header), todays_header(statement["evidence"]))) is not None:
            raise StatementRefused(f"evidence of the statement is not as fedmf writes it: {wrong}.")
        check_header(header)
        check_words(header, statement)
        lost = tuple(
            LostRounds(entry["first"], entry["released"], "", ((),) * (entry["released"] - entry["first"]))
            for entry in statement["rounds_lost"]
        )
        rounds = statement["rounds_released"]
        called = {"rounds": rounds, **_own_released(statement)}
        for name, value in called.items():
            if type(value) is not int and (value is not None or name == "rounds"):
                raise StatementRefused(
                    f"{name}_released of the statement must be a whole number; got {value!r}."
                )
        released = {name: called[own.plural] or 0 for name, own in OWN_STREAMS.items()}
        made = planned_statement(header, rounds, released, lost)
    recomputed = _stated_by(made, statement).public()
    told = in_todays_words(statement)
    given = {name: value for name, value in told.items() if name not in _BESIDE}
    if (wrong := _difference(json.loads(as_json(recomputed)), given)) is not None:
        raise StatementRefused(f"the statement contradicts itself: {wrong}.")
    return header, recomputed


def _own_released(statement: Mapping[str, Any]) -> dict[str, Any]:
    """How many releases of each own stream a statement tells of, by what they are called."""
    return {
        own.plural: None if statement[name] is None else statement[name][f"{own.plural}_released"]
        for name, own in OWN_STREAMS.items()
    }


def _stated_by(made: PrivacyStatement, statement: Mapping[str, Any]) -> PrivacyStatement:
    return replace(made, stated_by=statement["stated_by"])


def _check_signature(
    statement: Mapping[str, Any], signer: str | None, verified: list[str], unverified: list[str]
) -> None:
    signature = statement.get("signature")
    if signature is None:
        if signer is not None:
            raise StatementRefused("the statement is not signed.")
        if "record" in statement:
            raise StatementRefused("the statement names a record and has no signature: it was taken away.")
        unverified.append("who states it: it is not signed")
        return
    named = {"algorithm", "public_key", "value"}
    if not isinstance(signature, dict) or set(signature) != named or signature["algorithm"] != "Ed25519":
        raise StatementRefused("the signature must name algorithm Ed25519, public_key and value.")
    key, value = signature["public_key"], signature["value"]
    if not (_is_hex(key, 64) and _is_hex(value, 128) and signed_by(key, value, signed_document(statement))):
        raise StatementRefused("the signature is not one of this statement: one of the two was changed.")
    if not _is_record(statement.get("record", "")):
        raise StatementRefused("record of the statement must hold digests of 64 hexadecimal digits or None.")
    if signer is None:
        unverified.append(f"whose the key {key} is: give the operator's public key (--signed-by)")
        verified.append(f"signed with the key {key}")
    elif signer != key:
        raise StatementRefused(f"the statement is signed with the key {key}, not with that of the operator.")
    else:
        verified.append(f"signed with the operator's key {key}")


def _check_commitment(
    statement: Mapping[str, Any], earlier: Mapping[str, Any], signer: str | None, verified: list[str]
) -> None:
    """The earlier statement is of the same run, key and signer, and of no later round."""
    _check_signature(earlier, signer, [], [])
    if not (statement.get("signature") and earlier.get("signature")):
        raise StatementRefused("both statements must be signed to compare what was committed to.")
    if statement["signature"]["public_key"] != earlier["signature"]["public_key"]:
        raise StatementRefused("the earlier statement is signed with another key.")
    recompute(earlier)
    before, now = (todays_header(said["evidence"]) for said in (earlier, statement))
    if (wrong := _difference(before, now)) is not None:
        raise StatementRefused(f"the earlier statement is of another plan or noise key: {wrong}.")
    released = earlier["rounds_released"]
    if released > statement["rounds_released"]:
        raise StatementRefused("the earlier statement is of more rounds than this one.")
    verified.append(
        f"plan, coefficients and noise key are those of the statement made after {released} rounds"
        + ("" if released else ", so before any release")
    )


def _difference(expected: Any, given: Any, at: str = "") -> str | None:
    """Where two JSON values differ by more than rounding: what is stated, and what follows."""
    for place, mine, theirs in _leaves(expected, given, at):
        close = isinstance(mine, float) and isinstance(theirs, float)
        if close and math.isclose(mine, theirs, rel_tol=_TOLERANCE):
            continue
        if type(mine) is not type(theirs) or mine != theirs:
            return one_line(f"{place} is {theirs!r}, and from the rest follows {mine!r}")
    return None


def _leaves(expected: Any, given: Any, at: str) -> Iterator[tuple[str, Any, Any]]:
    """(place, expected, given) of every single value; of lists and dicts too where they do not fit."""
    if isinstance(expected, dict) and isinstance(given, dict) and expected.keys() == given.keys():
        for name in expected:
            yield from _leaves(expected[name], given[name], f"{at}.{name}" if at else name)
    elif isinstance(expected, list) and isinstance(given, list) and len(expected) == len(given):
        for index, (mine, theirs) in enumerate(zip(expected, given, strict=True)):
            yield from _leaves(mine, theirs, f"{at}[{index}]")
    elif isinstance(expected, dict) and isinstance(given, dict):
        yield f"fields of {at or 'the statement'}", sorted(expected), sorted(given)
    else:
        yield at, expected, given


def _is_record(record: Any) -> bool:
    if record is None:
        return True
    fields = {"rounds", *(own.plural for own in OWN_STREAMS.values())}
    return (
        isinstance(record, dict)
        and set(record) == fields
        and all(value is None or _is_hex(value, 64) for value in record.values())
        and record["rounds"] is not None
    )


def _is_hex(text: Any, digits: int) -> bool:
    return isinstance(text, str) and len(text) == digits and set(text) <= set("0123456789abcdef")


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number of a statement")
