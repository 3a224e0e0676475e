"""The integers that a run or stream released, in files from which its statement can be checked.

A folder holds ``plan.json``, which describes the integers, and ``integers.bin``: for each round, or
release of a stream, o_t = G_t + X_t of all parts, one after the other, as little-endian int64. The
guarantee is about these integers (docs/theory/noise.md), so publishing them costs no privacy. Each
commit has the SHA-256 of every file, as ``sha256sum`` prints it, and so has the statement.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from fedmf.errors import LedgerError
from fedmf.ledger.durable_files import create_directory, write_at, write_durably
from fedmf.matrices.factorization import Factorization
from fedmf.noise.units import IntegerNoise

if TYPE_CHECKING:
    from torch import Tensor

FOLDER: Final = "released"
PLAN: Final = "plan.json"
INTEGERS: Final = "integers.bin"
#: The fact about a commit that has the digests.
DIGESTS: Final = "released"
_BYTES: Final = 8


def create_folder(folder: Path, plan: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
    """Create the folder of a run or stream that has released nothing yet.

    Args:
        folder: path of the folder, which does not exist.
        plan: description of the integers, JSON-able.
        files: contents of further files, by name.

    Raises:
        LedgerError: the place is taken or cannot be written.
    """

    def fill(building: Path) -> None:
        write_durably(building / PLAN, (json.dumps(plan, indent=1) + "\n").encode())
        write_durably(building / INTEGERS, b"")
        for name, content in files.items():
            write_durably(building / name, content)

    create_directory(folder, "folder of releases", fill)


def part(
    name: str,
    factorization: Factorization,
    size: int,
    bound: int,
    bits: int,
    noise: IntegerNoise | None,
) -> dict[str, Any]:
    """Describe a part of every record for ``plan.json``.

    Args:
        name: of the part.
        factorization: C.
        size: d, the number of its integers in a record.
        bound: the largest norm of one user's vector, in units of 2ᴮ.
        bits: B.
        noise: its noise; None for a run without noise.
    """
    std = 0.0
    eta = 0.0
    if noise is not None:
        std = noise.std
        eta = noise.eta
    return {
        "name": name,
        "strategy": factorization.to_dict(),
        "size": size,
        "bound": bound,
        "bits": bits,
        "std": std,
        "eta": eta,
    }


class ReleasedIntegers:
    """The file of released integers; records are appended after they are committed, never before.

    The state of a commit holds the records that it makes final. So the next process can write those
    that are missing because this one died in between (`restore`).

    Args:
        folder: from `create_folder`.
        width: number of integers in a record.
        files: names of the files that say what the integers are.
    """

    def __init__(self, folder: Path, width: int, files: Sequence[str] = (PLAN,)) -> None:
        self.path = folder / INTEGERS
        self._files = files
        self._record = _BYTES * width
        self._size = 0
        self._described = dict[str, str]()
        self._digest = hashlib.sha256()

    def restore(self, records: int, last: bytes, digests: Mapping[str, str]) -> None:
        """Bring the file to the last commit.

        Args:
            records: number of committed records.
            last: the records that the last commit made final.
            digests: those of the last commit; empty before the first.

        Raises:
            LedgerError: the file lacks earlier records, another file is missing, one is not as it
                was, or the disk failed.
        """
        for name in self._files:
            file = self.path.with_name(name)
            if not file.is_file():
                raise LedgerError(f"{file} is missing. Restore it from a copy.")
            self._described[name] = _digest_of(file).hexdigest()
        before = records * self._record - len(last)
        if not self.path.is_file() or self.path.stat().st_size < before:
            raise LedgerError(
                f"{self.path} must hold {before // self._record} records of released integers; it "
                "holds fewer. Restore it from a copy."
            )
        os.truncate(self.path, before)
        self._digest = _digest_of(self.path)
        self._size = before
        self.append(last)
        if digests and digests != self.digests(b""):
            raise LedgerError(
                f"files in {self.path.parent} must be as they were released; their SHA-256 differs"
                " from that in the ledger. Restore them from a copy."
            )

    def digests(self, records: bytes) -> dict[str, str]:
        """Return the SHA-256 of each file by its name, as after `append` of these records."""
        digest = self._digest.copy()
        digest.update(records)
        return {**self._described, INTEGERS: digest.hexdigest()}

    def append(self, records: bytes) -> None:
        """Write committed records durably.

        Raises:
            LedgerError: the disk failed; `restore` writes them in the next process.
        """
        self._digest.update(records)
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                self._size += write_at(descriptor, records, self._size)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise LedgerError(f"{self.path} failed: {error.strerror or error}.") from error


def _digest_of(file: Path) -> Any:
    """Return the SHA-256 object of a file."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256")


def records_of(parts: Sequence[Tensor]) -> bytes:
    """Return records as bytes, from the integers of each part.

    Args:
        parts: int64, shape (records, size), or (size,) for one record.
    """
    arrays = []
    for values in parts:
        rows = values.detach().cpu().numpy().astype("<i8", copy=False)
        arrays.append(rows.reshape(-1, rows.shape[-1]))
    return np.concatenate(arrays, axis=1).tobytes()
