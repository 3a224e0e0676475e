"""Append-only files of frames: an end that never reached the disk is told from one that was damaged.

A file is written in sectors of 512 bytes: 511 bytes of content and one byte 0xFF. A frame begins at a sector
and is written only when all frames before it are on the disk, to a file that was empty before. So a sector
that a power loss kept from the disk reads as zeros or lies beyond the end, which no written sector does, and
only the last frame of a file can lack one. What lacks nothing and does not fit its digest was damaged.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedmf.records.durable import unless_read_only, write_at

Field = int | str | bytes

_SECTOR, _CONTENT, _MARK = 512, 511, 0xFF
_MAGIC: Final = b"fdmfrm1\n"
_HEAD: Final = struct.Struct("<8sQ32s16s")
#: So many are written, or read, at once.
_SECTORS: Final = 2048
_PIECE: Final = _SECTORS * _CONTENT
_TYPES: Final = {b"i": int, b"s": str, b"b": bytes}


class Damaged(ValueError):
    """A file of frames is not as it was written."""


@dataclass(frozen=True, eq=False)
class State:
    """What a frame carries beside its fields: large, in pieces that are written as they lie in memory.

    Args:
        pieces: of bytes.
        digest: SHA-256 of all of them, one after the other.
    """

    pieces: tuple[memoryview, ...]
    digest: bytes

    @classmethod
    def of(cls, pieces: Sequence[bytes | memoryview]) -> State:
        """The state of these pieces, with its digest."""
        views = tuple(memoryview(piece).cast("B") for piece in pieces)
        digest = hashlib.sha256()
        for view in views:
            digest.update(view)
        return cls(views, digest.digest())


@dataclass(frozen=True)
class Frame:
    """A frame as it was read.

    Args:
        fields: what it says.
        digest: of its state, empty if it has none.
        sizes: of the pieces of its state, in bytes.
        begin: where its state begins in the file.
        end: where it ends.
    """

    fields: tuple[Field, ...]
    digest: bytes
    sizes: tuple[int, ...]
    begin: int
    end: int


class FrameWriter:
    """A new file of frames.

    Args:
        path: where; nothing is there.
        mode: its permissions.
    """

    def __init__(self, path: Path, mode: int) -> None:
        self.path = path
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, mode)
        self._sectors = np.full((_SECTORS, _SECTOR), _MARK, np.uint8)
        self.size = 0

    def append(self, fields: Sequence[Field], state: State | None = None) -> None:
        """Write a frame and wait until it is on the disk; the name of the file is the caller's to make so.

        Raises:
            OSError: the disk failed. Nothing may be appended to this file any more, and nothing is taken
                back: somebody may have read the frame.
        """
        at = self.size
        for sectors in self._filled((_start(fields, state), *(() if state is None else state.pieces))):
            at += write_at(self._descriptor, sectors.reshape(-1).data, at)
        _flush(self._descriptor)
        self.size = at

    def _filled(self, pieces: Iterable[memoryview]) -> Iterator[NDArray[np.uint8]]:
        """The sectors of pieces, as many together as the buffer holds, so that a small frame is one call."""
        used = 0
        for piece in pieces:
            content = np.frombuffer(piece, np.uint8)
            while content.size:
                rows, rest = divmod(content.size, _CONTENT)
                rows = min(rows, _SECTORS - used)
                end = rows * _CONTENT
                self._sectors[used : used + rows, :_CONTENT] = content[:end].reshape(rows, _CONTENT)
                used, content = used + rows, content[end:]
                if 0 < content.size < _CONTENT and used < _SECTORS:
                    self._sectors[used, :rest] = content
                    self._sectors[used, rest:_CONTENT] = 0
                    used, content = used + 1, content[rest:]
                if used == _SECTORS:
                    yield self._sectors
                    used = 0
        if used:
            yield self._sectors[:used]

    def close(self) -> None:
        """No more frames."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def read_frames(path: Path) -> list[Frame]:
    """All whole frames of a file, which are on the disk when this returns.

    Raises:
        Damaged: a frame is not as it was written.
        OSError: the file cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = list(_frames(descriptor))
        if found and not _whole_state(descriptor, found[-1]):
            found.pop()
        with unless_read_only():  # its writer may have died, be waiting for the disk, or have failed
            os.fsync(descriptor)
        return found
    finally:
        os.close(descriptor)


def read_state(path: Path, frame: Frame) -> list[bytes]:
    """The pieces of a frame's state.

    Raises:
        Damaged: they are not as they were written.
        OSError: the file cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        pieces, digest, at = [], hashlib.sha256(), frame.begin
        for size in frame.sizes:
            read = list(_parts(descriptor, at, size))
            pieces.append(b"".join(part.tobytes() for part in read if part is not None))
            digest.update(pieces[-1])
            at += _extent(size)
        if digest.digest() != frame.digest:
            raise Damaged("a state differs from its SHA-256")
        return pieces
    finally:
        os.close(descriptor)


def _frames(descriptor: int) -> Iterator[Frame]:
    at, size = 0, os.fstat(descriptor).st_size
    while at < size:
        frame = _frame(descriptor, at)
        if frame is None:  # the writer waits for each frame: nothing was written behind it
            if _begins_later(descriptor, at + _SECTOR, size):
                raise Damaged(f"a sector behind byte {at} is lost")
            return
        yield frame
        at = frame.end


def _frame(descriptor: int, at: int) -> Frame | None:
    """The frame that begins there, None if a sector of its fields never arrived."""
    first = _part(descriptor, at, _CONTENT)
    if first is None:
        return None
    head = first[: _HEAD.size].tobytes()
    magic, length, digest, check = _HEAD.unpack(head)
    if magic != _MAGIC or hashlib.sha256(head[: -len(check)]).digest()[: len(check)] != check:
        raise Damaged(f"the frame at byte {at} is none")
    pieces = list(_parts(descriptor, at, _HEAD.size + length))
    if any(piece is None for piece in pieces):
        return None
    body = b"".join(piece.tobytes() for piece in pieces if piece is not None)[_HEAD.size :]
    if hashlib.sha256(body).digest() != digest:
        raise Damaged(f"the frame at byte {at} differs from its SHA-256")
    *fields, state, sizes = _unpacked(body)
    assert isinstance(state, bytes)
    assert isinstance(sizes, bytes)
    lengths = tuple(np.frombuffer(sizes, "<u8").tolist())
    begin = at + _extent(_HEAD.size + length)
    return Frame(tuple(fields), state, lengths, begin, begin + sum(map(_extent, lengths)))


def _whole_state(descriptor: int, frame: Frame) -> bool:
    """Whether all sectors of a state arrived.

    Raises:
        Damaged: they did, and do not fit the digest.
    """
    digest, at = hashlib.sha256(), frame.begin
    for size in frame.sizes:
        for part in _parts(descriptor, at, size):
            if part is None:
                return False
            digest.update(part.data)
        at += _extent(size)
    if frame.sizes and digest.digest() != frame.digest:
        raise Damaged("the last state differs from its SHA-256")
    return True


def _begins_later(descriptor: int, at: int, size: int) -> bool:
    """Whether a frame begins at or after a place."""
    while at < size:
        content = os.pread(descriptor, _SECTORS * _SECTOR, at)
        for place in range(0, len(content), _SECTOR):
            if content.startswith(_MAGIC, place):
                return True
        at += _SECTORS * _SECTOR
    return False


def _extent(length: int) -> int:
    """Bytes that so much content takes in a file."""
    return -(-length // _CONTENT) * _SECTOR


def _parts(descriptor: int, at: int, length: int) -> Iterator[NDArray[np.uint8] | None]:
    for done in range(0, length, _PIECE):
        yield _part(descriptor, at + _extent(done), min(_PIECE, length - done))


def _part(descriptor: int, at: int, length: int) -> NDArray[np.uint8] | None:
    """So many bytes of content from the sector that begins there on, None if a sector is missing."""
    count = _extent(length) // _SECTOR
    raw = os.pread(descriptor, count * _SECTOR, at)
    sectors = np.frombuffer(raw, np.uint8, len(raw) // _SECTOR * _SECTOR).reshape(-1, _SECTOR)
    wrong = sectors[sectors[:, _CONTENT] != _MARK]
    if len(sectors) < count or (len(wrong) and not wrong.any(axis=1).all()):
        return None
    if len(wrong):
        raise Damaged(f"a sector behind byte {at} has another mark")
    content = sectors[:, :_CONTENT].reshape(-1)
    if content[length:].any():
        raise Damaged(f"a sector behind byte {at} has more content")
    return content[:length]


def _start(fields: Sequence[Field], state: State | None) -> memoryview:
    """Head and fields of a frame."""
    sizes = np.array([] if state is None else [len(piece) for piece in state.pieces], "<u8").tobytes()
    body = _packed([*fields, b"" if state is None else state.digest, sizes])
    start = _MAGIC + struct.pack("<Q", len(body)) + hashlib.sha256(body).digest()
    return memoryview(start + hashlib.sha256(start).digest()[:16] + body)


def _flush(descriptor: int) -> None:
    """Content and length on the disk."""
    getattr(os, "fdatasync", os.fsync)(descriptor)


def _packed(fields: Sequence[Field]) -> bytes:
    pieces: list[bytes] = []
    for field in fields:
        content = field if isinstance(field, bytes) else str(field).encode()
        pieces += type(field).__name__[:1].encode(), len(content).to_bytes(8, "little"), content
    return b"".join(pieces)


def _unpacked(body: bytes) -> Iterator[Field]:
    at = 0
    while at < len(body):
        kind, length = _TYPES[body[at : at + 1]], int.from_bytes(body[at + 1 : at + 9], "little")
        content = body[at + 9 : at + 9 + length]
        yield content if kind is bytes else kind(content.decode())
        at += 9 + length
