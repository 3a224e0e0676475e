"""What runs and streams keep: the ledger, key files, durable files and directories, privacy statements."""

from typing import TYPE_CHECKING

from fedmf.lazy import lazily
from fedmf.records.admission import Admission
from fedmf.records.composed import Costs, compose, joined_mu
from fedmf.records.durable import (
    replace_durably,
    sync_directory,
    tighten,
    write_at,
    write_durably,
)
from fedmf.records.histories import Histories
from fedmf.records.key_file import load_key, save_key
from fedmf.records.ledger import Ledger, Opening
from fedmf.records.lock import WriterLock
from fedmf.records.new_places import create_directory, new_file, require_free
from fedmf.records.seal import Seal
from fedmf.records.spent import Spent, finite
from fedmf.records.statement import (
    ALWAYS_NOT_COVERED,
    OPERATORS,
    SPENT_ASSUMPTION,
    SPENT_NOT_COVERED,
    PrivacyStatement,
)

if TYPE_CHECKING:
    from fedmf.records.packed import pack, unpack
    from fedmf.records.tensor_files import read_tensors, write_tensors
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "ALWAYS_NOT_COVERED",
    "OPERATORS",
    "SPENT_ASSUMPTION",
    "SPENT_NOT_COVERED",
    "Admission",
    "Costs",
    "Histories",
    "Ledger",
    "Opening",
    "PrivacyStatement",
    "Seal",
    "Spent",
    "WriterLock",
    "compose",
    "create_directory",
    "finite",
    "joined_mu",
    "load_key",
    "new_file",
    "pack",
    "read_tensors",
    "replace_durably",
    "require_free",
    "save_key",
    "sync_directory",
    "tighten",
    "unpack",
    "write_at",
    "write_durably",
    "write_tensors",
]
