"""Lines of a file or a pipe as they arrive; one that is too long is passed over, never held whole."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
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


class Lines:
    """The lines of a string that are not blank, without their ends; a last line may lack its end.

    A byte order mark at the beginning is dropped.

    Args:
        read: gives what has arrived, at least a byte, and nothing at the end (`arriving` for a pipe).
        longest: most bytes of a line; of a longer one there is only a beginning, as `TooLong`.

    Attributes:
        uneven: whether a line was passed over, or joined to others.

    Guarantees:
        The lines do not depend on how the text was cut into pieces, and no more than ``longest`` bytes and
        a piece are held.

    >>> lines = Lines(iter([b"ab\\nc", b"d\\n\\nlonger", b" than 4\\ne", b""]).__next__, longest=4)
    >>> lines.peek(), lines.take(9), lines.take(9), lines.take(9)
    (b'ab', [b'ab'], [b'cd'], [b'longer than 4'])
    """

    def __init__(self, read: Callable[[], bytes], longest: int = LONGEST_LINE) -> None:
        self._longest, self._arriving = longest, _cut(read, longest)
        self._ready: list[bytes] = []
        self._at = 0
        self.uneven = False

    def peek(self) -> bytes | None:
        """The next line, which stays the next; None at the end."""
        while True:
            while self._at < len(self._ready):
                if _counts(line := self._ready[self._at]):
                    return line
                self._at, self.uneven = self._at + 1, True
            if (lines := next(self._arriving, None)) is None:
                return None
            self._ready, self._at = lines, 0

    def take(self, most: int) -> list[bytes]:
        """Up to that many lines, those that are at hand; waits for the first, none at the end."""
        self.peek()
        part = self._ready[self._at : self._at + most]
        self._at += len(part)
        lines = [line for line in part if _counts(line)]
        self.uneven |= len(lines) < len(part)
        return lines

    def join_quoted(self, is_row: Callable[[bytes], bool]) -> None:
        """From here on lines of CSV that are one row, by a cell in quotes that holds line ends, are joined.

        A line with an odd number of quotes that is no row begins one, which ends with the next such line. If
        they are none, or longer than a line may be, each line is for itself: a quote swallows no rows.

        Args:
            is_row: whether some lines, with line feeds between them, are a row.
        """
        rest = self._ready[self._at :]
        self._ready, self._at = [], 0
        self._arriving = self._joined(chain([rest], self._arriving), is_row)

    def _joined(
        self, pieces: Iterable[list[bytes]], is_row: Callable[[bytes], bool]
    ) -> Iterator[list[bytes]]:
        begun: list[bytes] = []
        size = 0
        for lines in pieces:
            ready: list[bytes] = []
            for line in lines:
                long = isinstance(line, TooLong)
                odd = line.count(b'"') % 2 == 1 and not long
                if begun and odd and is_row(whole := b"\n".join([*begun, line])):
                    ready.append(whole)
                    begun, size, self.uneven = [], 0, True
                    continue
                if begun and (odd or long or size + len(line) > self._longest):
                    ready, begun, size = ready + begun, [], 0
                if begun or (odd and not is_row(line)):
                    begun.append(line)
                    size += len(line)
                else:
                    ready.append(line)
            yield ready
        yield begun


def _counts(line: bytes) -> bool:
    return bool(line.strip()) or isinstance(line, TooLong)


def _cut(read: Callable[[], bytes], longest: int) -> Iterator[list[bytes]]:
    """The lines that each piece ends, and at last the one that nothing ends."""

    def line(text: bytes, size: int) -> bytes:
        return text.removesuffix(b"\r") if size <= longest else TooLong(text[:_BEGINNING])

    held, size, begun = [], 0, b""
    while piece := read():
        if begun is not None:  # a mark may come in pieces
            begun += piece
            if len(begun) < len(_MARK) and _MARK.startswith(begun):
                continue
            piece, begun = begun.removeprefix(_MARK), None
        first, *others = piece.split(b"\n")
        ended = []
        if others:
            ended = [line(b"".join([*held, first]), size + len(first))]
            ended += [line(part, len(part)) for part in others[:-1]]
            held, size, first = [], 0, others[-1]
        held, size = [*held, first], size + len(first)
        held = [b"".join(held)[:_BEGINNING]] if size > longest else held
        yield ended
    if size or begun:
        yield [line(b"".join([*held, begun or b""]), size)]


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
