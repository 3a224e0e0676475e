"""What runs and streams keep: durable files, locks, ledgers and checkpoints."""

from fedmf.records.checkpoint import load_checkpoint, save_checkpoint
from fedmf.records.durable import sync_directory, write_durably
from fedmf.records.ledger import Ledger
from fedmf.records.ledger_schema import SCHEMA
from fedmf.records.ledger_users import read_names
from fedmf.records.lock import WriterLock
from fedmf.records.new_files import new_file, require_free
from fedmf.records.sqlite import connect, one_line_errors
from fedmf.records.user_table import PRIVATE, write_users

__all__ = [
    "PRIVATE",
    "SCHEMA",
    "Ledger",
    "WriterLock",
    "connect",
    "load_checkpoint",
    "new_file",
    "one_line_errors",
    "read_names",
    "require_free",
    "save_checkpoint",
    "sync_directory",
    "write_durably",
    "write_users",
]
