"""The run directory: everything a run needs to continue, and everything it reports."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fedmf.errors import ConfigError, LedgerError
from fedmf.noise import NoiseKey
from fedmf.records.durable import tighten, write_durably
from fedmf.records.key_file import load_key, save_key
from fedmf.records.ledger import Ledger
from fedmf.records.new_places import create_directory
from fedmf.runs.header import RunHeader

if TYPE_CHECKING:
    from fedmf.runs.run import Run
    from fedmf.training import UserFailure

KEY, LEDGER, CONFIG = "noise.key", "ledger.sqlite", "config.toml"
#: All arrays of a model of which only some are trained.
WHOLE_MODEL = "whole-model.npz"
#: Which users failed when, and why: a JSON object a line. It tells about users' data: as secret as the key.
FAILURES = "failures.jsonl"
DATA_CHANGED = "the users' examples are not those of the last opening: their ids, or how many each has"


class RunDirectory:
    """An open run directory; at most one process can hold it for writing.

    Use :meth:`create` or :meth:`open`, preferably as a context manager.

    Guarantees:
        A directory either holds a complete run or does not exist: it is built next to its place and
        renamed. Only its owner may enter it (mode 0700; files 0600), whatever the umask, and opening one that
        others could read takes that from them.
    """

    def __init__(self, path: Path, header: RunHeader, key: NoiseKey, ledger: Ledger) -> None:
        self.path, self.header, self.key, self.ledger = path, header, key, ledger
        self.right = ledger.right

    @classmethod
    def create(
        cls,
        path: Path,
        run: Run,
        header: RunHeader,
        key: NoiseKey,
        save_whole: Callable[[Path], None] | None = None,
    ) -> Self:
        """Create the directory of a new run.

        Args:
            path: where; must not exist, or be empty.
            run: what to run, from which ``config.toml`` is rendered.
            header: of the run, for the ledger.
            key: of its noise.
            save_whole: writes the file of a model of which only some arrays are trained.

        Raises:
            ConfigError: the place is taken or cannot be written.
        """
        from fedmf.runs.tables.configuration import render_toml

        path = path.resolve()
        if os.path.exists(path / LEDGER):  # False for an impossible name, which is refused below
            raise ConfigError(f"output directory {path} holds another run; resume it, or use another place.")

        def fill(building: Path) -> None:
            write_durably(building / CONFIG, render_toml(run).encode())
            if save_whole is not None:
                save_whole(building / WHOLE_MODEL)
            write_durably(building / FAILURES, b"")
            save_key(building / KEY, key)
            Ledger.create(building / LEDGER, header.plan.participation, header.to_dict(), key)

        create_directory(path, "output directory", fill)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the directory of a run that was started before.

        Raises:
            ConfigError, LedgerError, ValueError: not a run directory, damaged, held by another process, or
                behind what this machine has seen of its run.
        """
        path = path.resolve()
        ledger, header = open_ledger(path)
        tighten(path)
        return cls(path, header, load_key(path / KEY), ledger)

    def close(self) -> None:
        """Let another process have the directory."""
        self.ledger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def note_data(self, digest: str) -> None:
        """Let the next opening note what the data are, and tell the operator alone if they have changed."""
        noted = [opening.note["data"] for opening in self.ledger.openings() if "data" in opening.note]
        self.ledger.note = {**self.ledger.note, "data": digest}
        if noted and noted[-1] != digest:
            self._tell_operator([{"round": self.ledger.released + 1, "notice": DATA_CHANGED}])

    def note_failures(self, t: int, failures: Sequence[UserFailure]) -> None:
        """Append the failures of round t (0-based); a full disk loses them, which must not stop the run."""
        self._tell_operator([{"round": t + 1, **failure.to_dict()} for failure in failures])

    def _tell_operator(self, entries: Sequence[Mapping[str, Any]]) -> None:
        if not entries:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with (
            contextlib.suppress(OSError),
            open(os.open(self.path / FAILURES, flags, 0o600), "a", encoding="utf-8") as file,
        ):
            file.writelines(json.dumps(entry) + "\n" for entry in entries)


def read_header(path: Path) -> RunHeader:
    """The header that a run directory's ledger keeps.

    Raises:
        ConfigError: it is not a run directory.
        LedgerError, ValueError: a damaged ledger, or one of another format.
    """
    with opened_record(path) as (header, _):
        return header


def open_ledger(path: Path, read_only: bool = False) -> tuple[Ledger, RunHeader]:
    """The ledger of a run directory, verified, and the header that it keeps.

    Raises:
        ConfigError: it is not a run directory, or its key cannot be used.
        LedgerError, ValueError: a damaged ledger, or one that holds less than was released.
    """
    if not (path / LEDGER).is_file():
        raise ConfigError(f"{path} is not a run directory: it has no {LEDGER}.")
    key = load_key(path / KEY) if not read_only or (path / KEY).exists() else None
    ledger = Ledger.open(path / LEDGER, key, read_only)
    try:
        header = RunHeader.from_dict(ledger.header)
        if key is not None and header.key_public is not key.public:
            raise LedgerError(
                f"key_public of the header must be that of {path / KEY}; it is {header.key_public}."
            )
    except BaseException:
        ledger.close()
        raise
    return ledger, header


@contextlib.contextmanager
def opened_record(path: Path) -> Iterator[tuple[RunHeader, Ledger]]:
    """A run's header and ledger for reading, all reads of the same rounds: every reader has them from here. A
    process that continues the run is not disturbed, and what it commits meanwhile is not seen.

    Raises:
        ConfigError, LedgerError, ValueError: as `open_ledger`.
    """
    ledger, header = open_ledger(path, read_only=True)
    with ledger:
        yield header, ledger
