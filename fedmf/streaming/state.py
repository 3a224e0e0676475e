"""The state directory of a private stream: what it needs to continue after any interruption.

    noise.key        the key, mode 0600
    stream.sqlite    the plan, openings, and for each block of steps its users, position and releases
    noise.bin        vectors of noise as of some step, from which later ones are drawn again; may be missing
    statement.*      the operator's privacy statement: .json for programs, .txt for people
    operator.json    counts for the operator, not to be published

A block of steps is one commit of the ledger, which moves the position past its rows and has its releases;
only then does the output get them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from fedmf.errors import LedgerError, rebuilding
from fedmf.moments import MomentStream
from fedmf.noise import KeySchedule, NoiseKey
from fedmf.records import (
    Histories,
    Ledger,
    PrivacyStatement,
    create_directory,
    load_key,
    pack,
    replace_durably,
    save_key,
    tighten,
    unpack,
    write_durably,
)
from fedmf.streaming.plans import StreamPlan
from fedmf.streaming.position import Position, Releases

KEY, LEDGER, VECTORS = "noise.key", "stream.sqlite", "noise.bin"
STATEMENT, OPERATOR = "statement", "operator.json"
_DIGEST: Final = 16
_RECORD: Final = 2 * _DIGEST


class StreamState:
    """An open state directory; one process at a time holds it.

    Use `create` or `open`, as a context manager.

    Attributes:
        directory: its path.
        key: of the noise.
        ledger: what was committed.
        plan: of the stream.
        position: after the last commit.

    Guarantees:
        A directory either holds a whole state or none. `commit` takes effect whole or not at all, whatever
        stops the process or the machine, and what returned from it is durable. One that failed ends this
        opening (`ReleaseRight`); opening the state again tells whether it took effect.
    """

    def __init__(self, directory: Path, key: NoiseKey, ledger: Ledger) -> None:
        self.directory, self.key, self.ledger, self.right = directory, key, ledger, ledger.right
        with rebuilding(f"stream state {directory}", LedgerError):
            self.plan = StreamPlan.from_dict(ledger.header["plan"])
            self.position = Position(**ledger.about.get("position", {}))
        self.plan.check()
        #: Of the rows' digests; as secret as the state.
        self.digest_key = key.subkey("rows")
        self.pushes = Pushes(self.digest_key)

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
            header = {"plan": plan.to_dict()}
            Ledger.create(folder / LEDGER, plan.participation, header, key, steps=True)

        create_directory(path.absolute(), "state directory", fill, error=LedgerError)
        return cls.open(path, remembered)

    @classmethod
    def open(cls, path: Path, remembered: bool = True) -> Self:
        """Open the directory of a stream that was begun.

        Raises:
            LedgerError, ValueError: not a state directory, damaged, held by another process, or behind what
                was released.
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

    def histories(self) -> Histories:
        """Who took part when: those of the ledger, in which a step is recorded before it is committed."""
        return self.ledger.histories

    def moments(self) -> tuple[KeySchedule, MomentStream]:
        """The keys of the noise, and the stream as of the last commit; what its state says is checked."""
        keys = KeySchedule.of_record(self.key, self.ledger, self.ledger.released)
        stream = self.plan.stream(keys)
        with rebuilding(f"stream state {self.directory}", LedgerError):
            if (kept := self.ledger.state()) is not None:
                stream.load_state_dict(_with_vectors(unpack(kept), self._vectors()))
        return keys, stream

    def commit(
        self, position: Position, releases: Releases, stream: Mapping[str, Any], users: Sequence[str | None]
    ) -> None:
        """Make a block of steps final.

        Args:
            position: after it.
            releases: those of the block; they end at `position.records`.
            stream: the state of the `MomentStream` after it.
            users: of each step; None for a row that is no user's.

        Raises:
            LedgerError: this process takes a step and recorded no opening; or the disk failed, now or before,
                and whether the block is final is found when the state is opened again.
        """
        about = {"position": dataclasses.asdict(position), "labels": releases.labels}
        content = np.ascontiguousarray(releases.numbers, "<f8").tobytes()
        pushes = self.pushes.records(self.position.step, position.step)
        self.ledger.commit_steps(users, about, content, position.records, pack(stream), pushes)
        self.position = position

    def releases(self, start: int, stop: int) -> Releases:
        """Committed releases start … stop − 1.

        Raises:
            LedgerError: the ledger does not hold what was committed.
        """
        parts, labels = [np.empty((0, self.plan.width))], list[tuple[str, ...]]()
        for commit, content in self.ledger.contents(start) if start < stop else ():
            numbers = np.frombuffer(content, "<f8").reshape(-1, self.plan.width)
            first = commit.records - len(numbers)
            if first >= stop:
                break
            wanted = slice(max(0, start - first), stop - first)
            parts.append(numbers[wanted])
            labels += [tuple(row) for row in commit.about["labels"]][wanted]
        found = np.concatenate(parts)
        if len(found) != max(0, stop - start):
            raise LedgerError(f"{self.directory} must hold {stop} releases; it holds fewer.")
        return Releases(start, found, labels)

    def require_pushes(self) -> None:
        """Read which rows were pushed.

        Raises:
            LedgerError: some steps were not taken by pushing rows.
        """
        content = b"".join(commit.pushes for commit in self.ledger.commits())
        if len(content) != _RECORD * self.position.step:
            raise LedgerError(
                f"the stream in {self.directory} has steps that were not taken by pushing rows."
            )
        self.pushes.load(content)

    def keep_vectors(self, stream: Mapping[str, Any]) -> None:
        """Put down the state of the `MomentStream` with the vectors of its noise, unless it keeps none.

        A commit has all that cannot be drawn again from the key. With these vectors a process that continues
        draws the rows since and not all; a disk that fails leaves the file as it was.
        """
        if _keeps_vectors(stream):
            content = pack(stream)
            with suppress(OSError):
                replace_durably(
                    self.directory / VECTORS, lambda file: file.writelines((self._code(content), content))
                )

    def _vectors(self) -> dict[str, Any]:
        """What `keep_vectors` wrote last; empty where that cannot be told."""
        try:
            read = (self.directory / VECTORS).read_bytes()
        except OSError:
            return {}
        code, content = read[:32], read[32:]
        return unpack(content) if hmac.compare_digest(code, self._code(content)) else {}

    def _code(self, content: bytes) -> bytes:
        return hmac.digest(self.key.subkey("vectors"), content, "sha256")

    def write_statement(self, statement: PrivacyStatement) -> None:
        """Write what `stream_statement` gave, for programs and for people; for the operator."""
        forms = {".json": statement.to_json(), ".txt": statement.render_text()}
        for suffix, text in forms.items():
            write_durably(self.directory / f"{STATEMENT}{suffix}", text.encode())

    def write_counts(self) -> None:
        """Write how many rows were clipped, zeroed and refused, which depends on data: for the operator."""
        counts = json.dumps(self.position.counts(), indent=2) + "\n"
        write_durably(self.directory / OPERATOR, counts.encode())


class Pushes:
    """For each step the keyed digest of its row's key (zeros without one), and one of step, key and contents.

    They are committed with their steps; what was put down for steps that came to nothing is replaced.

    Args:
        secret: the key of the digests.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._records = bytearray()
        self._steps: dict[bytes, int] = {}

    def load(self, records: bytes) -> None:
        """Take the records of the steps that are committed."""
        self._records[:] = records
        for step in range(1, len(records) // _RECORD + 1):
            self.committed(records[_RECORD * (step - 1) :][:_DIGEST], step)

    def digest(self, key: str | None) -> bytes:
        """What stands for a row's key."""
        return bytes(_DIGEST) if key is None else self._keyed(b"key", key.encode(errors="surrogatepass"))

    def place(
        self, step: int, keys: Sequence[str | None], contents: Sequence[bytes]
    ) -> tuple[list[int], list[int]]:
        """The step of each of some rows, and which of them are new: they take the steps after `step`.

        Raises:
            ValueError: a key that another row had, or that comes twice.
        """
        steps: list[int] = []
        fresh: list[int] = []
        met: set[bytes] = set()
        for i, key in enumerate(keys):
            digest = self.digest(key)
            before = self._steps.get(digest)
            if before is not None and self.records(before - 1, before) != self._record(
                before, digest, contents[i]
            ):
                raise ValueError(
                    f"key (of the row) must be new for a new row; got {key!r}, that of step {before} with "
                    "another row or user."
                )
            if before is None:
                if key is not None and digest in met:
                    raise ValueError(f"key (of the row) must be new for a new row; got {key!r} twice.")
                met.add(digest)
                fresh.append(i)
                before = step + len(fresh)
            steps.append(before)
        return steps, fresh

    def write(self, step: int, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Put down which rows are about to take a step and those after it: (digest, content) each."""
        del self._records[_RECORD * (step - 1) :]
        for i, row in enumerate(rows):
            self._records += self._record(step + i, *row)

    def committed(self, digest: bytes, step: int) -> None:
        """Remember that the step of a key is committed."""
        if any(digest):
            self._steps[digest] = step

    def records(self, start: int, stop: int) -> bytes:
        """Those of steps start + 1 … stop; empty where rows are not pushed."""
        return bytes(self._records[_RECORD * start : _RECORD * stop])

    def _record(self, step: int, digest: bytes, content: bytes) -> bytes:
        return digest + self._keyed(b"row", step.to_bytes(8, "little") + digest + content)

    def _keyed(self, kind: bytes, content: bytes) -> bytes:
        return hashlib.blake2b(content, key=self._secret, person=kind, digest_size=_DIGEST).digest()


def _with_vectors(state: Mapping[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """A saved state with the vectors that its noises had at an earlier step, where it has none itself."""
    parts = {name: part for name, part in state.items() if isinstance(part, Mapping) and name in earlier}
    result = {**state, **{name: _with_vectors(part, earlier[name]) for name, part in parts.items()}}
    if "kept" in earlier and "kept" not in state:
        vectors = {name: earlier[name] for name in ("kept", "start", "stop")}
        result |= {**vectors, "kept_t": earlier["t"], "kept_eras": earlier["eras"]}
    return result


def _keeps_vectors(state: Mapping[str, Any]) -> bool:
    parts = [part for part in state.values() if isinstance(part, Mapping)]
    return "kept" in state or any(map(_keeps_vectors, parts))
