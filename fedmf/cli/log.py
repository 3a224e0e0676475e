"""Standard error of a command: lines of text, or JSON objects, one a line (``--log-format json``).

Both have the same content, which does not depend on private data: who collects a log is not always
the operator. So arrivals and failures are in the operator's files alone (operator.json,
failures.jsonl), and ``fedmf account`` reads them.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Literal

import typer

from fedmf.errors import one_line

LogFormat = Literal["text", "json"]

_fedmf: Final = logging.getLogger("fedmf")


class CommandLog(logging.Handler):
    """The log of the command that this process runs.

    Attributes:
        as_json: whether its lines are JSON objects.
    """

    as_json = False

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Begin with lines of text; what `fedmf` logs is not handled after the block."""
        self.as_json = False
        try:
            yield
        finally:
            _fedmf.removeHandler(self)

    def use(self, log_format: LogFormat) -> None:
        """Write JSON objects from now on, also for what `fedmf` logs, if the format is "json"."""
        if log_format == "json":
            self.as_json = True
            _fedmf.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Write what `fedmf` logs, which is mostly warnings."""
        self.write(**{record.levelname.lower(): record.getMessage()})

    def say(self, text: str) -> None:
        """Write a message."""
        if self.as_json:
            self.write(message=text)
        else:
            typer.echo(text, err=True)

    def fail(self, message: str, code: int) -> int:
        """Write why the command ends, in one line, and return its exit code.

        The code is returned too if the log itself is on a full disk.
        """
        with suppress(OSError):
            if self.as_json:
                self.write(error=one_line(message), exit_code=code)
            else:
                typer.echo(f"fedmf: {one_line(message)}", err=True)
        return code

    def write(self, **facts: Any) -> None:
        """Write a JSON object with the time in UTC and some facts; NaN and infinity are null."""
        line: dict[str, Any] = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        for name, value in facts.items():
            line[name] = value
            if isinstance(value, float) and not math.isfinite(value):
                line[name] = None
        typer.echo(json.dumps(line, ensure_ascii=False), err=True)


#: The log of this process.
log: Final = CommandLog()
