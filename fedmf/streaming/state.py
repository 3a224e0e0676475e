"""The state directory of a private stream, with which it continues after any interruption.

A block of steps is one commit of the ledger, which moves the position past its rows and has its
releases; only then does the output get them. Rows between two releases are committed with the later
one. A period is one commit, too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedmf.errors import ConfigError, LedgerError, rebuilding
from fedmf.ledger.durable_files import create_directory, load_key, save_key, tighten, write_durably
from fedmf.ledger.ledger import Ledger
from fedmf.ledger.released_integers import FOLDER, ReleasedIntegers, create_folder
from fedmf.matrices.arrays import Array
from fedmf.noise.key import NoiseKey
from fedmf.release.private_stream import StreamServer
from fedmf.release.row_plan import StreamGuarantee
from fedmf.streaming.stream_plan import StreamPlan

KEY = "noise.key"
LEDGER = "stream.sqlite"
OPERATOR: Final = "operator.json"
_DIGEST: Final = 16
_RECORD: Final = 2 * _DIGEST
_NO_KEY: Final = bytes(_DIGEST)
#: Most bytes of past noise that a commit has; more is drawn again when a stream continues.
_LARGEST_PAST_NOISE: Final = 1 << 16


@dataclass(frozen=True, eq=False)
class ReleaseBlock:
    """Consecutive releases.

    Args:
        first: number of the first among all of the stream, from 0.
        t: the number of rows of each, or of periods, shape (releases,).
        numbers: first and packed second moments, shape (releases, width).
        labels: of each, those of its last row, in the order of `Settings.labels`; empty for a
            stream without labels.
    """

    first: int
    t: NDArray[np.int64]
    numbers: Array
    labels: Sequence[tuple[str, ...]] = ()

    def __len__(self) -> int:
        return len(self.numbers)


def joined(parts: Sequence[ReleaseBlock], records: int, width: int) -> ReleaseBlock:
    """Consecutive releases as one block, of which the last is number `records` − 1."""
    return ReleaseBlock(
        records - sum(map(len, parts)),
        np.concatenate([np.empty(0, np.int64), *(part.t for part in parts)]),
        np.concatenate([np.empty((0, width)), *(part.numbers for part in parts)]),
        [label for part in parts for label in part.labels],
    )


@dataclass(frozen=True)
class Position:
    """The progress of a stream, as of a commit.

    Args:
        step: t, rows that took a step, or periods that were released. A stream of periods has no
            other counts here.
        row: rows of the input that were taken; step ≤ row.
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
        """Counts that only the operator may see."""
        counts = {
            "rows": self.row,
            "steps": self.step,
            "clipped": self.clipped,
            "zeroed": self.zeroed,
            "beyond_k": self.beyond_k,
            "within_b": self.within_b,
        }
        for name, count in self.unreadable.items():
            if count:
                counts[f"unreadable {name}"] = count
        if self.nameless:
            counts["without a user id"] = self.nameless
        return {**counts, **self.malformed}


class StreamState:
    """An open state directory; one process at a time holds it.

    Use `create` or `open`, as a context manager. The files are:

    * noise.key: the key, mode 0600
    * stream.sqlite: the plan, openings, and users, position and releases of each block of steps
    * released/: the released integers, if the settings ask for them
    * statement.*: the operator's privacy statement, .json for programs and .txt for people
    * operator.json: counts for the operator, not to be published

    Attributes:
        directory: its path.
        key: of the noise.
        ledger: what was committed, and who took part when: a step is recorded there before it is
            committed.
        plan: of the stream.
        position: after the last commit.
        digest_key: of the rows' digests; as secret as the state.

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
        self.digest_key = key.subkey("rows")

    @classmethod
    def create(cls, path: Path, plan: StreamPlan, key: NoiseKey, remembered: bool = True) -> Self:
        """Start a stream; its directory stays open.

        Args:
            path: absent or an empty directory.
            plan: of the stream.
            key: of its noise.
            remembered: see `Ledger.open`.

        Raises:
            ConfigError: the path exists or cannot be written.
        """

        def fill(folder: Path) -> None:
            save_key(folder / KEY, key)
            Ledger.create(
                folder / LEDGER,
                plan.participation,
                {"plan": plan.to_dict()},
                key,
                steps=plan.settings.calendar is None,
            )
            if plan.settings.keep_releases:
                create_folder(folder / FOLDER, plan.public(), {})

        create_directory(path.absolute(), "state directory", fill)
        return cls.open(path, remembered)

    @classmethod
    def open(cls, path: Path, remembered: bool = True, read_only: bool = False) -> Self:
        """Open the directory of a stream that was started.

        Args:
            path: of the directory.
            remembered: see `Ledger.open`.
            read_only: True to let another process continue the stream meanwhile.

        Raises:
            ConfigError, LedgerError, ValueError: not a state directory, damaged, held by another
                process, or behind what was released.
        """
        path = path.absolute()
        if not cls.exists(path):
            raise ConfigError(f"{path} is not the state directory of a stream: it has no {LEDGER}.")
        key = load_key(path / KEY)
        if not read_only:
            tighten(path)
        ledger = Ledger.open(path / LEDGER, key, read_only, remembered)
        try:
            return cls(path, key, ledger)
        except BaseException:
            ledger.close()
            raise

    @staticmethod
    def exists(path: Path) -> bool:
        """Whether a stream was started there."""
        return (path / LEDGER).exists()

    def close(self) -> None:
        """Let another process have the directory."""
        self.ledger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def server(self) -> StreamServer:
        """The server of the stream as of the last commit, with its state checked."""
        rows = self.plan.mechanism.rows(self.plan.second_moment)
        settings = self.plan.settings
        guarantee = StreamGuarantee(
            settings.epsilon, settings.delta, settings.adjacency, self.plan.every
        )
        kept = None
        if settings.keep_releases:
            kept = ReleasedIntegers(self.directory / FOLDER, sum(rows.sizes))
        with rebuilding(f"stream state {self.directory}", LedgerError):
            server = StreamServer(
                rows,
                guarantee,
                self.plan.estimates(),
                self.ledger,
                self.key,
                self.position.records,
                with_vectors=8 * self.plan.past_noise_size <= _LARGEST_PAST_NOISE,
                released_integers=kept,
            )
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

    def release_period(
        self,
        server: StreamServer,
        position: Position,
        users: Sequence[str] | None,
        means: Iterable[Sequence[Tensor]],
    ) -> ReleaseBlock:
        """Release a period and make it final.

        Args:
            server: of the stream.
            position: after the period.
            users: of the period; None if every row is of another user.
            means: of the rows of each user, as `StreamServer.release_means` takes them.

        Raises:
            LedgerError: as `StreamServer.release_means`.
        """
        about = {"position": asdict(position), "t": [position.step], "labels": []}
        numbers = server.release_means(users, means, about)
        self.position = position
        return ReleaseBlock(position.records - 1, np.array([position.step]), numbers[None])

    def releases(self, start: int, stop: int) -> ReleaseBlock:
        """Committed releases start … stop − 1.

        Raises:
            LedgerError: the ledger does not hold what was committed.
        """
        if start >= stop:
            return joined([], stop, self.plan.width)
        parts = list[ReleaseBlock]()
        for commit, content in self.ledger.contents(start):
            block = np.frombuffer(content, "<f8").reshape(-1, self.plan.width)
            first = commit.records - len(block)
            if first >= stop:
                break
            wanted = slice(max(0, start - first), stop - first)
            labels = [tuple(row) for row in commit.about["labels"]]
            t = np.array(commit.about["t"])[wanted]
            parts.append(ReleaseBlock(0, t, block[wanted], labels[wanted]))
        releases = joined(parts, stop, self.plan.width)
        if releases.first != start:
            raise LedgerError(f"{self.directory} must hold {stop} releases; it holds fewer.")
        return releases

    def counts(self) -> dict[str, int]:
        """Counts that only the operator may see, as far as they are stored."""
        if self.plan.settings.calendar is not None:
            return {"periods": self.position.step}
        return self.position.counts()

    def read_counts(self) -> dict[str, Any]:
        """Read what `write_counts` wrote; empty if that is gone or was altered."""
        try:
            return dict(json.loads((self.directory / OPERATOR).read_text()))
        except (OSError, ValueError, TypeError):
            return {}

    def write_counts(self, counts: Mapping[str, Any]) -> None:
        """Write the counts for the operator, which depend on the content of rows."""
        write_durably(self.directory / OPERATOR, (json.dumps(counts, indent=2) + "\n").encode())


class Pushes:
    """The keys of pushed rows and the steps that they took.

    There is a record for each step: the keyed digest of its row's key (zeros without one), and a
    keyed digest of step, key and content. It is committed with the step.

    Args:
        state: of the stream.
    """

    def __init__(self, state: StreamState) -> None:
        self._secret = state.digest_key
        self._records = bytearray()
        self._steps: dict[bytes, int] = {}
        self.add(b"".join(commit.pushes for commit in state.ledger.commits()))

    def add(self, records: bytes) -> None:
        """Add the records of the next steps, which are committed."""
        for at in range(0, len(records), _RECORD):
            digest = records[at : at + _DIGEST]
            if digest != _NO_KEY:
                self._steps[digest] = (len(self._records) + at) // _RECORD + 1
        self._records += records

    def place(
        self, step: int, keys: Sequence[str | None], contents: Sequence[bytes]
    ) -> tuple[list[int], list[int]]:
        """The step of each of some rows, and the indices of new ones, which take the next steps.

        Args:
            step: the last step that was taken.
            keys: of the rows, or None.
            contents: of the rows.

        Raises:
            ValueError: a key that another row had, or that comes twice.
        """
        steps = list[int]()
        new_rows = list[int]()
        new_keys = set[str]()
        for i, key in enumerate(keys):
            earlier = self._steps.get(self._digest(key))
            if earlier is not None:
                self._check_same(earlier, key, contents[i])
                steps.append(earlier)
                continue
            if key is not None:
                if key in new_keys:
                    raise ValueError(
                        f"key (of the row) must be new for a new row; got {key!r} twice."
                    )
                new_keys.add(key)
            new_rows.append(i)
            steps.append(step + len(new_rows))
        return steps, new_rows

    def _check_same(self, step: int, key: str | None, content: bytes) -> None:
        """Reject a row with the key of a step that another row took."""
        record = bytes(self._records[_RECORD * (step - 1) : _RECORD * step])
        if record != self.record(step, key, content):
            raise ValueError(
                f"key (of the row) must be new for a new row; got {key!r}, the key of step {step}"
                " with another row or user."
            )

    def record(self, step: int, key: str | None, content: bytes) -> bytes:
        """The record of a row that is committed with its step."""
        digest = self._digest(key)
        return digest + self._keyed(b"row", step.to_bytes(8, "little") + digest + content)

    def _digest(self, key: str | None) -> bytes:
        return _NO_KEY if key is None else self._keyed(b"key", key.encode())

    def _keyed(self, kind: bytes, content: bytes) -> bytes:
        return hashlib.blake2b(content, key=self._secret, person=kind, digest_size=_DIGEST).digest()
