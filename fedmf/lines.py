"""Text as it arrives, cut into lines; a line that is too long is passed over, never held in memory whole."""

from __future__ import annotations

from typing import Final

#: Most bytes of a line that is read: 16 MiB.
LONGEST_LINE: Final = 1 << 24
_BEGINNING: Final = 64


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
        lines = [self._line(), *(line if len(line) <= self._longest else self._cut(line) for line in whole)]
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
        return line if size <= self._longest else self._cut(line)

    @staticmethod
    def _cut(line: bytes) -> TooLong:
        return TooLong(line[:_BEGINNING])
