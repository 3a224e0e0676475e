"""What of a run is published: its statement, signed; and how others check it."""

from fedmf.runs.publication.publishing import public_statement, publish_statement, signed_document
from fedmf.runs.publication.verification import (
    StatementRefused,
    Verification,
    read_statement,
    verify_statement,
)

__all__ = [
    "StatementRefused",
    "Verification",
    "public_statement",
    "publish_statement",
    "read_statement",
    "signed_document",
    "verify_statement",
]
