"""Lines of a file or a pipe as they arrive; one that is too long is passed over, never held whole."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from typing import Final

#: Most bytes of a line that is read: 16 MiB.
LONGEST_LINE: Final = 1 << 24
_BEGINNING: Final = 64
_CHUNK: Final = 1 << 20
#: Milliseconds.
_LONGEST_WAIT: Final = 1000
_MARK: Final = b"\xef\xbb\xbf"


class TooLong(bytes):
    """The beginning of a line that was passed over, for it is longer than can be read."""


class LineCutter:
    """Cuts text that comes in pieces at its line feeds.

    Args:
        longest: most bytes of a line; of a longer one only a beginning is kept, as `TooLong`.

    Guarantees:
        The lines do not depend on how the text was cut into pieces, and no more than ``longest`` bytes and
        a piece are held.

    >>> cutter = LineCutter(longest=4)
    >>> cutter.add(b"ab\\nc"), cutter.add(b"d\\nlonger"), cutter.add(b" than 4\\ne"), cutter.end()
    ([b'ab'], [b'cd'], [b'longer than 4'], [b'e'])
    """

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self._longest = longest
        self._pieces: list[bytes] = []
        self._size = 0

    def add(self, piece: bytes) -> list[bytes]:
        """The lines that a piece ends, without their line feeds."""
        first, *others = piece.split(b"\n")
        self._hold(first)
        if not others:
            return []
        *whole, last = others
        lines = [self._line(), *(line if len(line) <= self._longest else _cut(line) for line in whole)]
        self._hold(last)
        return lines

    def end(self) -> list[bytes]:
        """The last line, if it lacks its line feed."""
        return [self._line()] if self._size else []

    def _hold(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size > self._longest:
            self._pieces = [b"".join(self._pieces)[:_BEGINNING]]

    def _line(self) -> bytes:
        line, size = b"".join(self._pieces), self._size
        self._pieces, self._size = [], 0
        return line if size <= self._longest else _cut(line)


def _cut(line: bytes) -> TooLong:
    return TooLong(line[:_BEGINNING])


class Lines:
    """The lines of a text that are not blank, without their ends; a last line may lack its end.

    Of a line that is too long there is only a `TooLong`. A byte order mark at the beginning is dropped.

    Args:
        read: gives what has arrived, at least a byte, and nothing at the end (`arriving` for a pipe).
    """

    def __init__(self, read: Callable[[], bytes]) -> None:
        self._read = read
        self._ready: list[bytes] = []
        self._at = 0
        self._cutter = LineCutter()
        self._begun = self._ended = False
        #: How many blank lines were passed over so far.
        self.blank = 0

    def peek(self) -> bytes | None:
        """The next line, which stays the next; None at the end."""
        self._fill()
        return self._ready[self._at] if self._at < len(self._ready) else None

    def take(self, most: int) -> list[bytes]:
        """Up to that many lines, those that are at hand; waits for the first, none at the end."""
        self._fill()
        lines = self._ready[self._at : self._at + most]
        self._at += len(lines)
        return lines

    def _fill(self) -> None:
        """Read until a line is at hand or nothing is left."""
        while self._at == len(self._ready) and not self._ended:
            chunk = self._read()
            while not self._begun and chunk and len(chunk) < len(_MARK) and _MARK.startswith(chunk):
                if not (more := self._read()):
                    break
                chunk += more
            chunk, self._begun = chunk if self._begun else chunk.removeprefix(_MARK), True
            self._split(chunk)

    def _split(self, chunk: bytes) -> None:
        self._ended = not chunk
        lines = [
            line if isinstance(line, TooLong) else line.removesuffix(b"\r")
            for line in (self._cutter.end() if self._ended else self._cutter.add(chunk))
        ]
        self._ready, self._at = [line for line in lines if line.strip() or isinstance(line, TooLong)], 0
        self.blank += len(lines) - len(self._ready)


def arriving(descriptor: int) -> Callable[[], bytes]:
    """Reads what has arrived at a descriptor, which is not closed here.

    A signal that comes between two steps of Python and the wait would be noticed when rows come, perhaps
    never; so no wait is longer than a second.
    """
    arrived = select.poll()
    arrived.register(descriptor, select.POLLIN)

    def read() -> bytes:
        while not arrived.poll(_LONGEST_WAIT):
            pass
        return os.read(descriptor, _CHUNK)

    return read
