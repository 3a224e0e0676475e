"""What of a privacy statement is published: planned figures, what they follow from, and a signature."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedmf.errors import ConfigError, LedgerError
from fedmf.parts import OWN_STREAMS
from fedmf.records import Ledger, SigningKey, create_directory
from fedmf.runs.outputs import write_forms
from fedmf.statements import PrivacyStatement, as_json, evidence_of


def public_statement(
    statement: PrivacyStatement,
    ledger: Ledger | None = None,
    own_records: Mapping[str, Ledger] = MappingProxyType({}),
    signing_key: SigningKey | None = None,
) -> dict[str, Any]:
    """What may be public of a statement, and ``evidence``, from which others compute it again.

    With a signing key also ``record``, keyed digests of the last records of both ledgers, and ``signature``.

    Args:
        statement: of the run.
        ledger: from which it was computed, no row later; needed for a signature.
        own_records: of its own streams, by their names, likewise.
        signing_key: of the operator.

    Raises:
        ConfigError: a signature is asked for and the noise key, which keys the digests, is not at hand.
        LedgerError: the records of the statement are not whole (`Verdict`); or a signature is asked for, and
            whoever opened them did not look whether they are.

    Guarantees:
        Two runs that differ in participation alone, after as many rounds, give the same dict but for
        ``record`` and ``signature``, which nobody without the noise key can tell from random ones. Where the
        noise key is public, ``record`` is None.
    """
    if statement.verdict is not None:
        statement.verdict.require_whole("the statement", "published or signed")
    document = {**statement.public(), "evidence": evidence_of(statement.header)}
    if signing_key is None:
        return document
    if ledger is None or not ledger.authenticated:
        raise ConfigError(
            "noise.key must be in the run directory for a signature: what is signed of the record is a "
            "digest under a key that follows from it."
        )
    if statement.verdict is None:
        raise LedgerError("verdict (on the records) must be known for a signature; got none. Open the run.")
    record = None
    if not statement.header.key_public:
        record = {
            "rounds": ledger.published_head(),
            **{own.plural: None for own in OWN_STREAMS.values()},
            **{OWN_STREAMS[name].plural: own.published_head() for name, own in own_records.items()},
        }
    document["record"] = record
    signature = {
        "algorithm": "Ed25519",
        "public_key": signing_key.public_key,
        "value": signing_key.sign(signed_document(document)),
    }
    return {**document, "signature": signature}


def signed_document(statement: Mapping[str, Any]) -> bytes:
    """The bytes of a statement that its signature is of: as it is written, without the signature."""
    return as_json({name: value for name, value in statement.items() if name != "signature"}).encode()


def publish_statement(path: Path, document: Mapping[str, Any]) -> None:
    """Write what may be public into a directory of its own that everybody may read.

    Args:
        path: absent or an empty directory.
        document: by `public_statement`.

    Raises:
        ConfigError: the place is taken or cannot be written.

    Guarantees:
        Directory 0755 and files 0644 whatever the umask.
    """
    create_directory(
        path, "publication directory", lambda folder: write_forms(folder, document, 0o644), mode=0o755
    )
