"""Lines of a file or a pipe as they arrive."""

from __future__ import annotations

import os
import select
from typing import Final

from fedmf.lines import LineCutter, TooLong

_CHUNK: Final = 1 << 20
#: Milliseconds.
_LONGEST_WAIT: Final = 1000
_MARK: Final = b"\xef\xbb\xbf"


class Lines:
    """The lines of a descriptor that are not blank, without their ends; a last line may lack its end.

    Of a line that is too long there is only a `TooLong`.

    Args:
        descriptor: open for reading; not closed here.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._arrived = select.poll()
        self._arrived.register(descriptor, select.POLLIN)
        self._ready: list[bytes] = []
        self._at = 0
        self._cutter = LineCutter()
        self._begun = self._ended = False
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
            if not self._begun:
                while chunk and len(chunk) < len(_MARK) and _MARK.startswith(chunk):
                    more = self._read()
                    if not more:
                        break
                    chunk += more
                chunk, self._begun = chunk.removeprefix(_MARK), True
            if chunk or not self._ended:
                self._split(chunk)

    def _read(self) -> bytes:
        """What has arrived, at least a byte; nothing at the end.

        A signal that comes between two steps of Python and the wait would be noticed when rows come, perhaps
        never; so no wait is longer than a second.
        """
        while not self._arrived.poll(_LONGEST_WAIT):
            pass
        return os.read(self._descriptor, _CHUNK)

    def _split(self, chunk: bytes) -> None:
        self._ended = not chunk
        lines = [
            line if isinstance(line, TooLong) else line.removesuffix(b"\r")
            for line in (self._cutter.end() if self._ended else self._cutter.add(chunk))
        ]
        self._ready, self._at = [line for line in lines if line.strip() or isinstance(line, TooLong)], 0
        self.blank += len(lines) - len(self._ready)
