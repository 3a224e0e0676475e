"""A run and a stream, kept at several moments, and every kind of loss that a copy of them can have."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import fedmf
from fedmf.cli.app import run as command
from fedmf.records import SCHEMA, SigningKey
from fedmf.records.frames import read_frames
from fedmf.rounds import run_in_process
from fedmf.runs import Session, run_of
from fedmf.streaming import Settings, open_run

__all__ = ["LOSSES", "STREAMS", "Loss", "Made", "make"]

ROUNDS = 8


@dataclass
class Made:
    """A run, its directory at several moments, and what goes with it."""

    folder: Path
    released: dict[str, int]
    statements: dict[str, Path] = field(default_factory=dict)

    def source(self, moment: str) -> Path:
        """The directory as it was."""
        return self.folder / moment


@dataclass(frozen=True)
class Loss:
    """One kind of loss.

    Args:
        name: of it.
        moment: of which directory.
        take: away from a copy.
        copy: whether the copy itself can tell.
        guard: whether the memory of this machine can.
        less: whether the copy says that fewer rounds or evaluations were released.
    """

    name: str
    moment: str
    take: Callable[[Path], None]
    copy: bool
    guard: bool
    less: bool = True


#: A run that is begun within a total ε over the first.
_NEXT = """\
[data]
users = 24
[model]
hidden-units = 4
[cohorts]
rounds = 4
size = 6
[privacy]
epsilon = 4.0
user-namespace = "people"
"""


class _Stop(Exception):
    """Raised to stop a run midway."""


def make(folder: Path) -> Made:
    """A run of 8 rounds in two processes, kept while each lived and after the second, and a stream."""
    path, key = folder / "run", SigningKey.create(folder / "operator.key")
    del key
    settings = {
        "data": {"users": 24},
        "model": {"hidden-units": 4},
        "cohorts": {"rounds": ROUNDS, "size": 6},
        "privacy": {"epsilon": 8.0, "user-namespace": "people"},
        "local": {"batch-size": 32},
        "evaluation": {"kind": "private", "every": 3},
    }
    run = run_of(settings)
    released = {"before": 0, "living": 4, "stopped": 4, "again": 6, "closed": ROUNDS}

    def copied_after(session: Session, rounds: int, moment: str, stop: bool = False) -> None:
        def look(report, _row) -> None:
            if report.t + 1 == rounds:
                session.server.wait()
                shutil.copytree(path, folder / moment)
                if stop:
                    raise _Stop

        with contextlib.suppress(_Stop):
            run_in_process(session, look)

    made = Made(folder, released)
    with fedmf.start(run, path) as session:
        shutil.copytree(path, folder / "before")
        copied_after(session, 4, "living", stop=True)
    shutil.copytree(path, folder / "stopped")
    made.statements["living"] = made.statements["stopped"] = _signed(made, path, "signed-4")
    with Session.resume(path) as session:
        copied_after(session, 6, "again")
        session.write_reports()
    shutil.copytree(path, folder / "closed")
    made.statements["again"] = made.statements["closed"] = _signed(made, path, "signed-8")
    fedmf.simulate(run_of({**settings, "privacy": {**settings["privacy"], "epsilon": 2.0}}), folder / "other")
    (folder / "next.toml").write_text(_NEXT)
    _stream(folder)
    return made


def _signed(made: Made, path: Path, name: str) -> Path:
    key = str(made.folder / "operator.key")
    assert command(["account", str(path), "--publish", str(made.folder / name), "--sign-with", key]) == 0
    return made.folder / name / "statement.json"


def _stream(folder: Path) -> None:
    """A stream of 8 steps, kept after 4 and after all."""
    settings = Settings(
        norm_bound=1.0, epsilon=8.0, delta=1e-5, rounds=8, user_column="user", max_participations=2,
        min_separation=4, user_namespace="people",
    )  # fmt: skip
    for rows, name in ((4, "stream-4"), (8, "stream-8")):
        lines = ["a,b,user", *(f"0.{i},0.2,u{i % 4}" for i in range(rows))]
        (folder / "rows.csv").write_text("\n".join(lines) + "\n")
        place = folder / "stream", settings, folder / "rows.csv", folder / "out.jsonl"
        with open_run(*place) as (run, reader):
            run.feed(reader)
        shutil.copytree(folder / "stream", folder / name)


def _nothing(path: Path) -> None:
    del path


def _tails(path: Path) -> None:
    """``cp *.sqlite noise.key`` forgets them."""
    for file in path.glob("*-tail-*"):
        file.unlink()


def _evaluation_tails(path: Path) -> None:
    for file in path.glob("evaluation.sqlite-tail-*"):
        file.unlink()


def _last_frame(path: Path) -> None:
    """The last row and state of the newest file of the tail: a whole earlier directory."""
    file = max(path.glob("ledger.sqlite-tail-*"))
    *_, last = [0, *(frame.end for frame in read_frames(file)[:-1])]
    os.truncate(file, last)


def _emptied(path: Path) -> None:
    """Files of the tail are there, without content."""
    for file in path.glob("ledger.sqlite-tail-*"):
        os.truncate(file, 0)


def _rows(path: Path, metrics: bool = True) -> None:
    """The newest rows of the databases, rounds from the fourth on; the files beside them stay."""
    for name, kept in (("ledger.sqlite", 3), ("evaluation.sqlite", 1)):
        connection = sqlite3.connect(path / name)
        triggers = [line for line in SCHEMA if line.startswith("CREATE TRIGGER")]
        for trigger in triggers:
            connection.execute("DROP TRIGGER " + trigger.split()[2])
        connection.execute("DELETE FROM rounds WHERE round >= ?", (kept,))
        connection.execute("DELETE FROM openings WHERE first_round > ?", (kept,))
        if not metrics:
            connection.execute("DELETE FROM metrics WHERE round > ?", (kept,))
        for trigger in triggers:
            connection.execute(trigger)
        connection.commit()
        connection.close()


def _rows_and_metrics(path: Path) -> None:
    _rows(path, metrics=False)


def _key(path: Path) -> None:
    (path / "noise.key").unlink()


def _key_and_tails(path: Path) -> None:
    _key(path)
    _tails(path)


def _releases(path: Path) -> None:
    (path / "releases.bin").unlink()


LOSSES = (
    Loss("nothing", "closed", _nothing, copy=False, guard=False, less=False),
    Loss("copied without tail", "living", _tails, copy=True, guard=True),
    Loss("copied without tail", "again", _tails, copy=True, guard=True),
    Loss("copied without tail", "closed", _tails, copy=True, guard=False, less=False),
    Loss("evaluations' tail", "living", _evaluation_tails, copy=True, guard=False),
    Loss("last frame cut", "living", _last_frame, copy=False, guard=True),
    Loss("tail emptied", "living", _emptied, copy=True, guard=True),
    Loss("rows cut", "closed", _rows, copy=True, guard=True),
    Loss("rows and metrics cut", "closed", _rows_and_metrics, copy=True, guard=True),
    Loss("state cut", "closed", _emptied, copy=True, guard=False, less=False),
    Loss("key", "closed", _key, copy=True, guard=False, less=False),
    Loss("key and tail", "living", _key_and_tails, copy=True, guard=True),
    Loss("backup restored", "stopped", _nothing, copy=False, guard=True),
    Loss("backup from before round 1", "before", _nothing, copy=False, guard=True),
)
STREAMS = (
    Loss("stream: nothing", "stream-8", _nothing, copy=False, guard=False, less=False),
    Loss("stream: backup restored", "stream-4", _nothing, copy=False, guard=True),
    Loss("stream: releases", "stream-8", _releases, copy=True, guard=False, less=False),
)
