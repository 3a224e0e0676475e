"""The participation ledger: its rows, what binds them, and how they are read back and checked."""

from fedmf.records.ledger.ledger import Ledger
from fedmf.records.ledger.losses import meet_losses
from fedmf.records.ledger.schema import SCHEMA, Opening

__all__ = ["SCHEMA", "Ledger", "Opening", "meet_losses"]
