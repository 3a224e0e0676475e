"""The participation ledger: its rows, what binds them, and how they are read back and checked."""

from fedmf.records.ledger.ledger import Ledger
from fedmf.records.ledger.schema import SCHEMA

__all__ = ["SCHEMA", "Ledger"]
