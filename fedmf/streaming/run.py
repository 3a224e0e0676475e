"""A private stream from its input to its output: read, admit, clip, release, commit."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Final, Self

import numpy as np
import torch
from numpy.typing import NDArray

from fedmf.moments import PrivateGaussian
from fedmf.records import PrivacyStatement
from fedmf.streaming.outputs import MeanPoints, Output, Renderer, mean_points
from fedmf.streaming.position import Position, Releases
from fedmf.streaming.rows import InputError, RowBlock, RowReader, clip_rows
from fedmf.streaming.state import StreamState
from fedmf.streaming.statement import stream_statement

#: Rows of a commit; and numbers of its rows, of what is computed at once, and of what a commit releases.
_MOST_ROWS: Final = 4096
_MOST_NUMBERS: Final = 1 << 20
_LARGEST_EMISSION: Final = 1 << 21
#: Rows of noise, and their numbers, that a process that goes on may have to draw again: about a second.
_MOST_DRAWN_ROWS: Final = 1 << 14
_MOST_DRAWN_AGAIN: Final = 1 << 26
#: A label counts like so many numbers.
_LABEL: Final = 32


@dataclass(frozen=True)
class Handling:
    """What to do with rows that do not fit; free to change when a stream goes on.

    Args:
        clip: scale rows longer than ζ to ζ; else they count as faulty.
        stop_at_faulty: stop before the first faulty row, which tells what it held and is not covered; else
            faulty rows count as zero vectors.
    """

    clip: bool = True
    stop_at_faulty: bool = False


class StreamRun:
    """One process's part of a stream.

    Args:
        state: open for writing; it holds the plan.
        output: where releases go.
        handling: of rows that do not fit.
        progress: called with (t, n) after each commit.

    Guarantees:
        The releases, bit for bit, are those of `MomentStream.update` on the admitted rows one by one,
        whatever rows came together. With a public key this holds however often the process was killed and
        begun again; with a secret one each process makes its steps with a key of its own, from random bits
        that are durable before the first, so copies of a state directory add independent noise.
        Each row of the input is dealt with once, and each step uses one row of noise.
    """

    def __init__(
        self,
        state: StreamState,
        output: Output,
        handling: Handling | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.plan, self.state, self.output = state.plan, state, output
        self.handling = handling or Handling()
        self._progress = progress or (lambda step, rounds: None)
        self._renderer = Renderer(self.plan, output.density)
        self._keys, self._stream = state.moments()
        self._kept_at = self._stream.t
        self.users, position = state.histories(), state.position
        #: See `Position.columns`.
        self.columns = position.columns
        same = output.name == position.output
        if not (output.begin(position.written if same else 0) and same):
            position = replace(position, emitted=0, written=0)
        self._emitted, self._written = position.emitted, position.written
        #: Those of the last commit of this process.
        self._latest = Releases(position.records, np.empty((0, self.plan.width)))
        self._catch_up()
        if self.handling.stop_at_faulty and not self.position.may_stop:
            self._commit(self.position)  # before the first row, so that the statement knows

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.output.close()
        with contextlib.suppress(OSError):
            self.state.write_counts()

    @property
    def position(self) -> Position:
        """As of the last commit."""
        return self.state.position

    @property
    def done(self) -> bool:
        """Whether all n steps were taken."""
        return self.position.step == self.plan.rounds

    def feed(self, reader: RowReader, count_late: bool = False) -> None:
        """Take the rows of an input that were not dealt with yet.

        Args:
            reader: at the first row of its input.
            count_late: whether to read on past the horizon to count the rows there.

        Raises:
            InputError: an input that does not go on where the stream is, one without rows, or, with
                `Handling.stop_at_faulty`, a faulty row (those before it are committed).
            LedgerError: a step failed, now or before. Open the stream again.
        """
        self.state.right.require()
        if reader.layout != self.plan.layout:
            raise InputError(
                f"input must have rows as before, d = {self.plan.layout.dimension} and the same columns; "
                f"got d = {reader.layout.dimension}, {', '.join(reader.layout.columns) or 'arrays'}."
            )
        self._find_place(reader)
        while not self.done and (block := reader.read(self.most_rows)) is not None:
            begun = self.position.row
            if stopped := self.take(block):
                at, fault = stopped
                raise InputError(
                    f"{reader.where(block.first + at)} {fault}. The {begun + at} rows before it are done. "
                    f"{reader.advice}"
                )
        if self.done and count_late:
            late = 0
            while passed := reader.skip(1 << 16):
                late += passed
            if late:
                at = self.position
                self._commit(replace(at, row=at.row + late, refused_late=at.refused_late + late, digest=""))
        if not self.position.row:
            raise InputError("input must have rows; got an empty one.")

    @property
    def most_rows(self) -> int:
        """Rows of a commit: few that are long, and few where each is released."""
        plan = self.plan
        released = plan.settings.every * (_LARGEST_EMISSION // plan.width)
        return max(1, min(_MOST_ROWS, _MOST_NUMBERS // plan.layout.dimension, released))

    @property
    def names(self) -> tuple[str, ...]:
        """Of the numbers of a row."""
        return self._renderer.names

    def releases(self, start: int, stop: int) -> Releases:
        """Committed releases start … stop − 1, those of the last commit as they are at hand.

        Raises:
            LedgerError: the file does not hold what was committed.
        """
        if start < self._latest.first:
            return self.state.releases(start, stop)
        return self._latest.part(start, stop)

    def means(self) -> MeanPoints:
        """Steps, released means and their standard errors, about a thousand of them; see `mean_points`."""
        return mean_points(Renderer(self.plan), self.state.releases, self.position.records)

    def gaussian(self) -> PrivateGaussian:
        """The density of the last release.

        Raises:
            ValueError: there is no release, or what is released has no covariance with known noise.
        """
        records = self.position.records
        if not records:
            raise ValueError("releases (of the stream) must be at least one for a density; got none.")
        return self._renderer.gaussian(self.state.releases(records - 1, records))

    def conclude(self) -> PrivacyStatement:
        """Finish the output and write the reports; the privacy statement."""
        self.output.finish(self._renderer, self.state.releases, self.position.records)
        self._written, self._emitted = self.output.flush(), self.position.records
        self._commit(self.position)
        statement = stream_statement(self.plan, self.position, self.users, self.state.key)
        self.state.write_statement(statement)
        return statement

    def _find_place(self, reader: RowReader) -> None:
        """Pass over rows that were dealt with, and see that the last of them is the one that was."""
        row, first_row = self.position.row, reader.first_row
        if first_row > row + 1:
            raise InputError(f"row {row + 1} must come next; the input begins with row {first_row}.")
        if first_row == row + 1:
            return
        before = row - first_row
        passed = reader.skip(before)
        last = reader.read(1) if passed == before else None
        if last is None:
            raise InputError(
                f"input must have the {row} rows that were dealt with before; it ends with row "
                f"{first_row + passed - 1}. Give it whole again, or say with --from-row where it begins."
            )
        if self.position.digest and self._digest(last, 0) != self.position.digest:
            raise InputError(
                f"{reader.where(row)} of the input must be the one that was dealt with before; got another. "
                "Give the same input again, or say with --from-row where it begins."
            )

    def take(self, block: RowBlock) -> tuple[int, str] | None:
        """Deal with the next rows of the stream up to the horizon or the first that stops it.

        Args:
            block: at most `most_rows`.

        Returns:
            Which of the rows stopped it and why, if one did: those before it are committed.

        Raises:
            LedgerError: a step failed, now or before. Open the stream again.
        """
        with self.state.right.exercise(f"step {self.position.step + 1}"):
            faults, stop = self._released_and_committed(block)
        return (stop, faults[stop]) if stop < len(block) else None

    def _released_and_committed(self, block: RowBlock) -> tuple[dict[int, str], int]:
        """(what is wrong with which rows, how many were dealt with)."""
        values, long = self._bounded(block.values)
        faults = dict(block.faults)
        if not self.handling.clip:
            for i in np.flatnonzero(long).tolist():
                faults.setdefault(i, "must not be longer than the norm bound")
        before = self.position
        steps, refused, late, stop = self._admit(block, faults)
        zeroed = [i for i in steps if i in faults]
        values[zeroed] = 0.0
        long[zeroed] = False
        taken = np.array(steps, dtype=np.int64)
        if stop:
            releases = self._released(values[taken], [block.labels[i] for i in steps if block.labels])
            self._commit(
                replace(
                    before,
                    step=before.step + len(steps),
                    row=before.row + stop,
                    records=before.records + len(releases),
                    digest="" if stop - 1 in block.faults else self._digest(block, stop - 1),
                    clipped=before.clipped + int(long[taken].sum()),
                    zeroed=before.zeroed + len(zeroed),
                    refused_users=before.refused_users + refused,
                    refused_late=before.refused_late + late,
                ),
                releases,
                [None] * len(steps) if block.users is None else [block.users[i] for i in steps],
            )
        return faults, stop

    def _bounded(self, values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Rows of norm `Settings.vector_norm` at most, whatever the reader gave; which were longer than ζ.

        A coordinate that counts rows is c or 0, and clipped numbers leave it as it is.
        """
        settings = self.plan.settings
        if not settings.count_weight:
            return clip_rows(values, settings.norm_bound)
        clipped, long = clip_rows(values[:, :-1], settings.norm_bound)
        return np.column_stack([clipped, np.where(values[:, -1] > 0, settings.count_weight, 0.0)]), long

    def _admit(self, block: RowBlock, faults: dict[int, str]) -> tuple[list[int], int, int, int]:
        """(rows that take a step, how many were refused for their user, how many came late, the end)."""
        users, step = block.users, self.position.step
        steps: list[int] = []
        refused, n = 0, self.plan.rounds
        for i in range(len(block)):
            if step == n:
                return steps, refused, len(block) - i, len(block)
            user = None if users is None else users[i]
            if user is not None and not self.users.admits(user, step + 1):
                refused += 1
                continue
            if i in faults and self.handling.stop_at_faulty:
                return steps, refused, 0, i
            step += 1
            if user is not None:
                self.users.record(user, step)
            steps.append(i)
        return steps, refused, 0, len(block)

    def _released(self, rows: NDArray[np.float64], labels: Sequence[tuple[str, ...]]) -> Releases:
        """The releases of these steps that are due; a release has the labels of its own step's row."""
        records, width = self.position.records, self.plan.width
        if not len(rows):
            return Releases(records, np.empty((0, width)))
        self._keys.open_in(self.state.ledger)
        steps = np.arange(1, len(rows) + 1) + self._stream.t
        due = (steps % self.plan.settings.every == 0) | (steps == self.plan.rounds)
        numbers, room, at = np.empty((int(due.sum()), width)), max(1, _MOST_NUMBERS // width), 0
        for low in range(0, len(rows), room):
            block = self._stream.extend(torch.from_numpy(rows[low : low + room]))
            first, second = (part.numpy()[due[low : low + room]] for part in (block.first, block.second))
            np.concatenate([first, second], axis=1, out=numbers[at : at + len(first)])
            at += len(first)
        return Releases(records, numbers, list(compress(labels, due.tolist())))

    def _commit(
        self,
        position: Position,
        releases: Releases | None = None,
        users: Sequence[str | None] = (),
    ) -> None:
        """First the output of earlier commits is made durable, then this one, then its output is written."""
        self._written = self.output.flush()
        position = replace(
            position,
            emitted=self._emitted,
            written=self._written,
            output=self.output.name,
            may_stop=position.may_stop or self.handling.stop_at_faulty,
            columns=self.columns,
        )
        if releases is None:
            releases = Releases(position.records, np.empty((0, self.plan.width)))
        self.state.commit(position, releases, self._stream.state_dict(), users)
        self._latest = releases
        self._catch_up(releases)
        self._keep_vectors()
        self._progress(position.step, self.plan.rounds)

    def _keep_vectors(self) -> None:
        """Now and then, so that a process that goes on draws little noise again."""
        drawn = self._stream.t - self._kept_at
        if drawn >= _MOST_DRAWN_ROWS or drawn * self.plan.width >= _MOST_DRAWN_AGAIN:
            self.state.keep_vectors(self._stream.state_dict(kept_vectors=True))
            self._kept_at = self._stream.t

    def _catch_up(self, fresh: Releases | None = None) -> None:
        """Write the committed releases that the output lacks; `fresh` are the last of them, if at hand."""
        records = self.position.records
        if fresh is not None and len(fresh) == records - self._emitted:
            self._emit(fresh)
        room = max(1, _LARGEST_EMISSION // (self.plan.width + _LABEL * len(self.plan.layout.labels)))
        while self._emitted < records:
            self._emit(self.state.releases(self._emitted, min(records, self._emitted + room)))

    def _emit(self, releases: Releases) -> None:
        if self.output.takes_lines and len(releases):
            self.output.write(self.output.shape(self._renderer, releases))
        self._emitted += len(releases)

    def _digest(self, block: RowBlock, i: int) -> str:
        """Keyed digest of a row, to recognise it after an interruption."""
        user = "" if block.users is None else block.users[i] or ""
        state = hashlib.blake2b(user.encode(), key=self.state.digest_key, digest_size=16)
        state.update(b"\0" + block.values[i].astype("<f8").tobytes())
        if block.labels:
            state.update("\0".join(block.labels[i]).encode())
        return state.hexdigest()
