"""Lines of a file or a pipe as they arrive; one that is too long is passed over, never held
whole.
"""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Final

#: Most bytes of a line that is read: 16 MiB.
LONGEST_LINE: Final = 1 << 24
#: Stands for a line that is longer: a row of no format.
PASSED_OVER: Final = b"-\r-"
_CHUNK: Final = 1 << 20
#: Milliseconds.
_LONGEST_WAIT: Final = 1000
_MARK: Final = b"\xef\xbb\xbf"


class Lines:
    """The lines of a string that are not blank, without their ends; a last line may lack its end.

    A byte order mark at the beginning is dropped.

    Args:
        read: gives what has arrived, at least a byte, and nothing at the end (`arriving` for a
            pipe).
        longest: most bytes of a line; in place of a longer one there is `PASSED_OVER`.

    Guarantees:
        The lines do not depend on how the text was cut into pieces, and no more than ``longest``
        bytes and a piece are held.

    >>> lines = Lines(iter([b"ab\\nc", b"d\\n\\nlonger", b" than 4\\ne", b""]).__next__, longest=4)
    >>> lines.peek(), lines.take(9), lines.take(9), lines.take(9)
    (b'ab', [b'ab'], [b'cd'], [b'-\\r-'])
    """

    def __init__(self, read: Callable[[], bytes], longest: int = LONGEST_LINE) -> None:
        self._longest, self._arriving = longest, _cut(read, longest)
        self._ready: deque[bytes] = deque()

    def peek(self) -> bytes | None:
        """The next line, which stays the next; None at the end."""
        while True:
            while self._ready:
                if self._ready[0].strip():
                    return self._ready[0]
                self._ready.popleft()
            if (lines := next(self._arriving, None)) is None:
                return None
            self._ready.extend(lines)

    def take(self, most: int) -> list[bytes]:
        """Up to that many lines, those that are at hand; waits for the first, none at the end."""
        self.peek()
        part = [self._ready.popleft() for _ in range(min(most, len(self._ready)))]
        return [line for line in part if line.strip()]

    def join_quoted(self, is_row: Callable[[bytes], bool]) -> None:
        """From here on lines of CSV that are one row, by a cell in quotes that holds line ends, are
        joined.

        A line with an odd number of quotes that is no row begins one, which ends with the next such
        line. If they are none, or longer than a line may be, each line is for itself: a quote that
        nothing closes swallows no rows.

        Args:
            is_row: whether some lines, with line feeds between them, are a row.
        """
        self._arriving = self._joined(chain([[*self._ready]], self._arriving), is_row)
        self._ready = deque()

    def _joined(
        self, pieces: Iterable[list[bytes]], is_row: Callable[[bytes], bool]
    ) -> Iterator[list[bytes]]:
        begun: list[bytes] = []
        size = 0
        for lines in pieces:
            ready: list[bytes] = []
            for line in lines:
                odd = line.count(b'"') % 2 == 1
                if begun and odd and is_row(whole := b"\n".join([*begun, line])):
                    ready.append(whole)
                    begun = []
                    size = 0
                    continue
                if begun and (odd or line is PASSED_OVER or size + len(line) > self._longest):
                    ready = ready + begun
                    begun = []
                    size = 0
                if begun or (odd and not is_row(line)):
                    begun.append(line)
                    size += len(line)
                else:
                    ready.append(line)
            yield ready
        yield begun


def _cut(read: Callable[[], bytes], longest: int) -> Iterator[list[bytes]]:
    """The lines that each piece ends, and at last the one that nothing ends."""

    def line(text: bytes) -> bytes:
        return text.removesuffix(b"\r") if len(text) <= longest else PASSED_OVER

    held = bytearray()
    mark = _MARK
    while piece := read():
        *ended, rest = piece.split(b"\n")
        if ended:
            ended[0] = bytes(held + ended[0]).removeprefix(mark)
            held = bytearray()
            mark = b""
        held += rest
        del held[longest + len(mark) + 1 :]  # enough to see that it is too long
        yield [line(text) for text in ended]
    yield [line(bytes(held).removeprefix(mark))]


def arriving(descriptor: int) -> Callable[[], bytes]:
    """Reads what has arrived at a descriptor, which is not closed here.

    A signal that comes between two steps of Python and the wait would be noticed when rows come,
    perhaps never; so no wait is longer than a second.
    """
    arrived = select.poll()
    arrived.register(descriptor, select.POLLIN)

    def read() -> bytes:
        while not arrived.poll(_LONGEST_WAIT):
            pass
        return os.read(descriptor, _CHUNK)

    return read
