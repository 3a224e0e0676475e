"""The file of the keys of pushed rows, so that a row that comes again gets its release again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from fedmf.records import read_at, sync_directory, write_at
from fedmf.streaming.state.schema import STREAM_STATE, StateError

_DIGEST: Final = 16
_RECORD: Final = 2 * _DIGEST


class PushFile:
    """For each step the keyed digest of its row's key (zeros without one), and one of step, key and contents.

    A record is durable before its step is committed, and counts once that is: what lies past the last
    committed step is an attempt that came to nothing, and the next one is written over it.

    Args:
        path: of the file; made if it is missing.
        steps: t, the steps that are committed.
        secret: the key of the digests.

    Raises:
        StateError: the file lacks records of committed steps.
    """

    def __init__(self, path: Path, steps: int, secret: bytes) -> None:
        self._path, self._secret = path, secret
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            sync_directory(path.parent)
            content = self._read(0, steps)
            if len(content) < _RECORD * steps:
                raise StateError(
                    f"{path} must hold a record of each of the {steps} steps taken; it has "
                    f"{len(content) // _RECORD}. Restore the directory from a copy."
                )
        except BaseException:
            os.close(self._file)
            raise
        self._steps: dict[bytes, int] = {}
        for step in range(1, steps + 1):
            self.committed(content[_RECORD * (step - 1) :][:_DIGEST], step)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def digest(self, key: str | None) -> bytes:
        """What stands for a row's key."""
        return bytes(_DIGEST) if key is None else self._keyed(b"key", key.encode(errors="surrogatepass"))

    def step_of(self, digest: bytes) -> int | None:
        """The committed step of a key, None if there is none."""
        return self._steps.get(digest)

    def place(
        self, step: int, keys: Sequence[str | None], contents: Sequence[bytes]
    ) -> tuple[list[int], list[int]]:
        """The step of each of some rows, and which of them are new: they take the steps after `step`.

        Raises:
            ValueError: a key that another row had, or that comes twice.
        """
        steps: list[int] = []
        fresh: list[int] = []
        met: set[bytes] = set()
        for i, key in enumerate(keys):
            digest = self.digest(key)
            before = self.step_of(digest)
            if before is not None and not self.holds(before, digest, contents[i]):
                raise ValueError(
                    f"key (of the row) must be new for a new row; got {key!r}, that of step {before} with "
                    "another row or user."
                )
            if before is None:
                if key is not None and digest in met:
                    raise ValueError(f"key (of the row) must be new for a new row; got {key!r} twice.")
                met.add(digest)
                fresh.append(i)
                before = step + len(fresh)
            steps.append(before)
        return steps, fresh

    def holds(self, step: int, digest: bytes, content: bytes) -> bool:
        """Whether the record of a step is that of this key and these contents."""
        return self._read(step - 1, step) == self._record(step, digest, content)

    def write(self, step: int, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Put down durably which rows are about to take a step and those after it: (digest, content) each.

        Raises:
            StateError: the disk failed.
        """
        record = b"".join(self._record(step + i, *row) for i, row in enumerate(rows))
        with STREAM_STATE.one_line_errors(self._path):
            write_at(self._file, record, _RECORD * (step - 1))
            os.fsync(self._file)

    def committed(self, digest: bytes, step: int) -> None:
        """Remember that the step of a key is committed."""
        if any(digest):
            self._steps[digest] = step

    def _record(self, step: int, digest: bytes, content: bytes) -> bytes:
        return digest + self._keyed(b"row", step.to_bytes(8, "little") + digest + content)

    def _keyed(self, kind: bytes, content: bytes) -> bytes:
        return hashlib.blake2b(content, key=self._secret, person=kind, digest_size=_DIGEST).digest()

    def _read(self, start: int, stop: int) -> bytes:
        return read_at(self._file, _RECORD * (stop - start), _RECORD * start)
