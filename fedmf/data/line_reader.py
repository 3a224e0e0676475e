"""Lines of a file or a pipe as they arrive, for `fedmf.data.table_reader`.

A line that is too long is passed over and never held whole.
"""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Final

#: Largest number of bytes of a line: 16 MiB.
LONGEST_LINE: Final = 1 << 24
#: Stands for a longer line; it is not a row of any format.
PASSED_OVER: Final = b"-\r-"
_CHUNK: Final = 1 << 20
_LONGEST_WAIT_MS: Final = 1000
_MARK: Final = b"\xef\xbb\xbf"


class Lines:
    """The lines of a text that are not blank, without their ends; a last line may lack its end.

    A byte order mark at the beginning is dropped.

    Args:
        read: returns the bytes that have arrived, at least one, and none at the end (`arriving`
            for a pipe).
        longest: largest number of bytes of a line; `PASSED_OVER` stands for a longer one.

    Guarantees:
        The lines do not depend on how the text was cut into pieces, and no more than ``longest``
        bytes and a piece are held.

    >>> lines = Lines(iter([b"ab\\nc", b"d\\n\\nlonger", b" than 4\\ne", b""]).__next__, longest=4)
    >>> lines.peek(), lines.take(9), lines.take(9), lines.take(9)
    (b'ab', [b'ab'], [b'cd'], [b'-\\r-'])
    """

    def __init__(self, read: Callable[[], bytes], longest: int = LONGEST_LINE) -> None:
        self._longest = longest
        self._arriving = _cut(read, longest)
        self._ready: deque[bytes] = deque()

    def peek(self) -> bytes | None:
        """Return the next line without taking it; None at the end."""
        while True:
            while self._ready:
                if self._ready[0].strip():
                    return self._ready[0]
                self._ready.popleft()
            lines = next(self._arriving, None)
            if lines is None:
                return None
            self._ready.extend(lines)

    def take(self, most: int) -> list[bytes]:
        """Take the lines at hand, at most ``most``; wait for the first one; none at the end."""
        self.peek()
        lines: list[bytes] = []
        for _ in range(min(most, len(self._ready))):
            line = self._ready.popleft()
            if line.strip():
                lines.append(line)
        return lines

    def join_quoted(self, is_row: Callable[[bytes], bool]) -> None:
        """From here on, join lines of CSV that are one row, because a quoted cell holds line ends.

        A line with an odd number of quotes that is not a row begins one, which ends with the next
        such line. If they do not form a row, or are longer than a line may be, each line stands for
        itself: a quote that is never closed swallows no rows.

        Args:
            is_row: whether some lines, with line feeds between them, are a row.
        """
        self._arriving = self._joined(chain([[*self._ready]], self._arriving), is_row)
        self._ready = deque()

    def _joined(
        self, pieces: Iterable[list[bytes]], is_row: Callable[[bytes], bool]
    ) -> Iterator[list[bytes]]:
        parts: list[bytes] = []  # the lines so far of a row that has not ended
        size = 0
        for lines in pieces:
            ready: list[bytes] = []
            for line in lines:
                odd = line.count(b'"') % 2 == 1
                if parts and odd:
                    row = b"\n".join([*parts, line])
                    if is_row(row):
                        ready.append(row)
                        parts = []
                        size = 0
                        continue
                if parts and (odd or line is PASSED_OVER or size + len(line) > self._longest):
                    ready += parts
                    parts = []
                    size = 0
                if parts or (odd and not is_row(line)):
                    parts.append(line)
                    size += len(line)
                else:
                    ready.append(line)
            yield ready
        yield parts


def _cut(read: Callable[[], bytes], longest: int) -> Iterator[list[bytes]]:
    """Yield the lines that each piece ends, and at last the line that nothing ends."""
    rest = bytearray()
    mark = _MARK
    while True:
        piece = read()
        if not piece:
            break
        *ended, last = piece.split(b"\n")
        if ended:
            ended[0] = bytes(rest + ended[0]).removeprefix(mark)
            rest = bytearray()
            mark = b""
        rest += last
        del rest[longest + len(mark) + 1 :]  # enough to see that it is too long
        yield [_line(text, longest) for text in ended]
    yield [_line(bytes(rest).removeprefix(mark), longest)]


def _line(text: bytes, longest: int) -> bytes:
    """Return a line without its end, or `PASSED_OVER` for one that is too long."""
    if len(text) > longest:
        return PASSED_OVER
    return text.removesuffix(b"\r")


def arriving(descriptor: int) -> Callable[[], bytes]:
    """Return a function that reads the bytes that have arrived at a descriptor.

    The descriptor is not closed. A signal that arrives between two steps of Python and the wait
    would be noticed only when rows arrive, perhaps never; no wait is therefore longer than a
    second.
    """
    arrived = select.poll()
    arrived.register(descriptor, select.POLLIN)

    def read() -> bytes:
        while not arrived.poll(_LONGEST_WAIT_MS):
            pass
        return os.read(descriptor, _CHUNK)

    return read
