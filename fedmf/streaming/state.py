"""The state directory of a private stream: what it needs to continue after any interruption.

    noise.key        the key, mode 0600
    stream.sqlite    the plan, openings, and for each block of steps its users, position and
    releases released/        the released integers, where they are kept statement.*      the
    operator's privacy statement: .json for programs, .txt for people operator.json    counts for
    the operator, not to be published

A block of steps is one commit of the ledger, which moves the position past its rows and has its
releases; only then does the output get them. Rows between two releases are committed with the later
one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from fedmf.errors import LedgerError, rebuilding
from fedmf.ledger.durable_files import create_directory, load_key, save_key, tighten, write_durably
from fedmf.ledger.ledger import Ledger
from fedmf.ledger.released_integers import FOLDER, ReleasedIntegers, create_folder
from fedmf.matrices.arrays import Array
from fedmf.noise.key import NoiseKey
from fedmf.release.private_stream import StreamServer
from fedmf.streaming.stream_plan import StreamPlan

KEY = "noise.key"
LEDGER = "stream.sqlite"
OPERATOR: Final = "operator.json"
_DIGEST: Final = 16
_RECORD: Final = 2 * _DIGEST
#: Bytes of noise that are kept with every commit; more is drawn again when a stream continues.
_MOST_KEPT: Final = 1 << 16


@dataclass(frozen=True, eq=False)
class ReleaseBlock:
    """Consecutive releases.

    Args:
        first: number of the first among all of the stream, from 0.
        t: how many rows each is of, shape (releases,).
        numbers: first and packed second moments, shape (releases, width).
        labels: for each the texts of the last of its rows, in the order of `Settings.labels`; empty
            for a stream without labels.
    """

    first: int
    t: NDArray[np.int64]
    numbers: Array
    labels: Sequence[tuple[str, ...]] = ()

    def __len__(self) -> int:
        return len(self.numbers)


def joined(parts: Sequence[ReleaseBlock], records: int, width: int) -> ReleaseBlock:
    """Releases one after the other, which end at so many."""
    return ReleaseBlock(
        records - sum(map(len, parts)),
        np.concatenate([np.empty(0, np.int64), *(part.t for part in parts)]),
        np.concatenate([np.empty((0, width)), *(part.numbers for part in parts)]),
        [label for part in parts for label in part.labels],
    )


@dataclass(frozen=True)
class Position:
    """How far a stream is, as of a commit.

    Args:
        step: t, rows that took a step.
        row: rows of the input that were dealt with; step ≤ row.
        records: releases.
        emitted: how many of them were safely in the output before this commit.
        written: bytes of the output that hold those.
        output: which output.
        digest: keyed digest of the last of them that is valid.
        digest_row: its number.
        clipped: rows that were longer than ζ.
        zeroed: invalid rows that counted as zero vectors.
        beyond_k: rows of users who had given k.
        within_b: rows that came less than b steps after another one of their user.
        nameless: rows with a user column and no user id in it, which took a step as invalid rows.
        unreadable: in how many other zeroed rows the cell of each column is missing or cannot be
            read.
        malformed: how many lines that are not rows took a step, by reason.
    """

    step: int = 0
    row: int = 0
    records: int = 0
    emitted: int = 0
    written: int = 0
    output: str = ""
    digest: str = ""
    digest_row: int = 0
    clipped: int = 0
    zeroed: int = 0
    beyond_k: int = 0
    within_b: int = 0
    nameless: int = 0
    unreadable: Mapping[str, int] = field(default_factory=dict)
    malformed: Mapping[str, int] = field(default_factory=dict)

    def counts(self) -> dict[str, int]:
        """What only the operator may see."""
        names = ("clipped", "zeroed", "beyond_k", "within_b")
        columns = {f"unreadable {name}": count for name, count in self.unreadable.items() if count}
        if self.nameless:
            columns["without a user id"] = self.nameless
        return {
            "rows": self.row,
            "steps": self.step,
            **{n: getattr(self, n) for n in names},
            **self.malformed,
        } | columns


class StreamState:
    """An open state directory; one process at a time holds it.

    Use `create` or `open`, as a context manager.

    Attributes:
        directory: its path.
        key: of the noise.
        ledger: what was committed, and who took part when: a step is recorded there before it is
            committed.
        plan: of the stream.
        position: after the last commit.

    Guarantees:
        A directory either holds a whole state or none. `commit` takes effect whole or not at all,
        whatever stops the process or the machine, and what returned from it is durable. One that
        failed ends this opening (`ReleaseGuard`); opening the state again tells whether it took
        effect.
    """

    def __init__(self, directory: Path, key: NoiseKey, ledger: Ledger) -> None:
        self.directory = directory
        self.key = key
        self.ledger = ledger
        self.guard = ledger.guard
        with rebuilding(f"stream state {directory}", LedgerError):
            self.plan = StreamPlan.from_dict(ledger.header["plan"])
            self.position = Position(**ledger.about.get("position", {}))
        #: Of the rows' digests; as secret as the state.
        self.digest_key = key.subkey("rows")

    @classmethod
    def create(cls, path: Path, plan: StreamPlan, key: NoiseKey, remembered: bool = True) -> Self:
        """Begin a stream and keep its directory open.

        Args:
            path: absent or an empty directory.
            plan: of the stream.
            key: of its noise.
            remembered: see `Ledger.open`.

        Raises:
            LedgerError: the place is taken or cannot be written.
        """

        def fill(folder: Path) -> None:
            save_key(folder / KEY, key)
            Ledger.create(
                folder / LEDGER, plan.participation, {"plan": plan.to_dict()}, key, steps=True
            )
            if plan.settings.keep_releases:
                create_folder(folder / FOLDER, plan.public(), {})

        create_directory(path.absolute(), "state directory", fill, error=LedgerError)
        return cls.open(path, remembered)

    @classmethod
    def open(cls, path: Path, remembered: bool = True) -> Self:
        """Open the directory of a stream that was begun.

        Raises:
            LedgerError, ValueError: not a state directory, damaged, held by another process, or
                behind what was released.
        """
        path = path.absolute()
        if not cls.exists(path):
            raise LedgerError(f"{path} is not the state directory of a stream: it has no {LEDGER}.")
        key = load_key(path / KEY)
        tighten(path)
        ledger = Ledger.open(path / LEDGER, key, remembered=remembered)
        try:
            return cls(path, key, ledger)
        except BaseException:
            ledger.close()
            raise

    @staticmethod
    def exists(path: Path) -> bool:
        """Whether a stream was begun there."""
        return (path / LEDGER).exists()

    def close(self) -> None:
        """Let another process have the directory."""
        self.ledger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def server(self) -> StreamServer:
        """The stream as of the last commit; what its state says is checked."""
        rows = self.plan.mechanism.rows(self.plan.second_moment)
        kept = None
        if self.plan.settings.keep_releases:
            kept = ReleasedIntegers(self.directory / FOLDER, sum(part.size for part in rows.parts))
        server = StreamServer(
            rows,
            self.plan.estimates(),
            self.ledger,
            self.key,
            self.position.records,
            with_vectors=8 * self.plan.kept_numbers <= _MOST_KEPT,
            kept=kept,
        )
        with rebuilding(f"stream state {self.directory}", LedgerError):
            server.restore()
        return server

    def commit(
        self, server: StreamServer, position: Position, releases: ReleaseBlock, pushes: bytes = b""
    ) -> None:
        """Make a block of steps final.

        Args:
            server: of the stream.
            position: after the block.
            releases: of the block; they end at `position.records`.
            pushes: records of the block's rows (`Pushes`).

        Raises:
            LedgerError: as `StreamServer.commit`.
        """
        about = {"position": asdict(position), "t": releases.t.tolist(), "labels": releases.labels}
        content = np.ascontiguousarray(releases.numbers, "<f8").tobytes()
        server.commit(about, content, position.records, pushes)
        self.position = position

    def releases(self, start: int, stop: int) -> ReleaseBlock:
        """Committed releases start … stop − 1.

        Raises:
            LedgerError: the ledger does not hold what was committed.
        """
        parts = list[ReleaseBlock]()
        for commit, content in self.ledger.contents(start) if start < stop else ():
            block = np.frombuffer(content, "<f8").reshape(-1, self.plan.width)
            first = commit.records - len(block)
            if first >= stop:
                break
            wanted = slice(max(0, start - first), stop - first)
            labels = [tuple(row) for row in commit.about["labels"]]
            parts.append(
                ReleaseBlock(0, np.array(commit.about["t"])[wanted], block[wanted], labels[wanted])
            )
        found = joined(parts, stop, self.plan.width)
        if found.first != start and start < stop:
            raise LedgerError(f"{self.directory} must hold {stop} releases; it holds fewer.")
        return found

    def write_counts(self) -> None:
        """Write how many rows were clipped, zeroed and left out, which depends on data: for the
        operator.
        """
        counts = json.dumps(self.position.counts(), indent=2) + "\n"
        write_durably(self.directory / OPERATOR, counts.encode())


class Pushes:
    """Which rows were pushed: for each step the keyed digest of its row's key (zeros without one),
    and one of step, key and contents. They are committed with their steps.

    Args:
        state: of the stream.
    """

    def __init__(self, state: StreamState) -> None:
        self._secret, self._records = state.digest_key, bytearray()
        self._steps: dict[bytes, int] = {}
        self.add(b"".join(commit.pushes for commit in state.ledger.commits()))

    def add(self, records: bytes) -> None:
        """Take the records of the next steps, which are committed."""
        for at in range(0, len(records), _RECORD):
            if any(digest := records[at : at + _DIGEST]):
                self._steps[digest] = (len(self._records) + at) // _RECORD + 1
        self._records += records

    def place(
        self, step: int, keys: Sequence[str | None], contents: Sequence[bytes]
    ) -> tuple[list[int], list[int]]:
        """The step of each of some rows, and which of them are new: they take the steps after
        `step`.

        Raises:
            ValueError: a key that another row had, or that comes twice.
        """
        steps = list[int]()
        fresh = list[int]()
        met = set[bytes]()
        for i, key in enumerate(keys):
            digest = self._digest(key)
            before = self._steps.get(digest)
            if before is not None:
                record = bytes(self._records[_RECORD * (before - 1) : _RECORD * before])
                if record != self.record(before, key, contents[i]):
                    raise ValueError(
                        f"key (of the row) must be new for a new row; got {key!r}, the key of step"
                        f" {before} with another row or user."
                    )
            else:
                if key is not None and digest in met:
                    raise ValueError(
                        f"key (of the row) must be new for a new row; got {key!r} twice."
                    )
                met.add(digest)
                fresh.append(i)
                before = step + len(fresh)
            steps.append(before)
        return steps, fresh

    def record(self, step: int, key: str | None, content: bytes) -> bytes:
        """The record of a row that is committed with its step."""
        digest = self._digest(key)
        return digest + self._keyed(b"row", step.to_bytes(8, "little") + digest + content)

    def _digest(self, key: str | None) -> bytes:
        return bytes(_DIGEST) if key is None else self._keyed(b"key", key.encode())

    def _keyed(self, kind: bytes, content: bytes) -> bytes:
        return hashlib.blake2b(content, key=self._secret, person=kind, digest_size=_DIGEST).digest()
