"""What runs and streams keep: durable files and directories, locks, histories, ledgers and checkpoints."""

from typing import TYPE_CHECKING

from fedmf.lazy import lazily
from fedmf.records.admission import Admission
from fedmf.records.durable import (
    Underway,
    read_at,
    replace_durably,
    sync_directory,
    tighten,
    write_at,
    write_durably,
)
from fedmf.records.frames import Damaged, FrameWriter, State, read_frames, read_state
from fedmf.records.histories import Histories, UserRow
from fedmf.records.key_file import load_key, save_key
from fedmf.records.ledger import SCHEMA, Ledger
from fedmf.records.lock import WriterLock
from fedmf.records.mark import Mark
from fedmf.records.new_places import create_directory, new_file, require_free, scratch_directory
from fedmf.records.record import Opening, Record, opening_rows
from fedmf.records.seal import Seal, Sealed
from fedmf.records.sqlite import RecordKind

if TYPE_CHECKING:
    from fedmf.records.tensor_files import (
        load_state,
        pack_state,
        read_tensors,
        with_head,
        without_head,
        write_tensors,
    )
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "SCHEMA",
    "Admission",
    "Damaged",
    "FrameWriter",
    "Histories",
    "Ledger",
    "Mark",
    "Opening",
    "Record",
    "RecordKind",
    "Seal",
    "Sealed",
    "State",
    "Underway",
    "UserRow",
    "WriterLock",
    "create_directory",
    "load_key",
    "load_state",
    "new_file",
    "opening_rows",
    "pack_state",
    "read_at",
    "read_frames",
    "read_state",
    "read_tensors",
    "replace_durably",
    "require_free",
    "save_key",
    "scratch_directory",
    "sync_directory",
    "tighten",
    "with_head",
    "without_head",
    "write_at",
    "write_durably",
    "write_tensors",
]
