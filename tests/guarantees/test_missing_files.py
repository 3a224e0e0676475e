"""A row or file that is missing from a directory is missed, or nothing is lost without it."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import fedmf
from fedmf.cli.app import run as command
from fedmf.errors import ConfigError, LedgerError
from fedmf.runs.simulation import run_in_process
from guarantees.small import random_rows, run_of, stream

#: A state of so many numbers is in a file of its own.
DIMENSION = 9_000
STOP = 4
STEPS = 6
ROWS = random_rows(DIMENSION)
TABLES = ("header", "openings", "commits", "state", "metrics", "tally")
#: What a process leaves for itself alone; those of the database are merged or made again.
TRANSIENT = (".lock", "-wal", "-shm")


@dataclass(frozen=True)
class Outcome:
    """The end of a continued directory: numbers, and the files that are there."""

    numbers: Any
    files: frozenset[str]


def train(place: Path, stop: int) -> object:
    """Up to a round of a run with every option that makes a file."""
    execution = fedmf.Execution(evaluate_every=1, keep_releases=True)
    run = run_of(ROWS, execution=execution)
    opened = fedmf.resume(run, place) if place.exists() else fedmf.start(run, place)
    with opened as session:
        run_in_process(session, lambda record: record.rounds >= stop)
        return session.server.parameters.tolist(), repr(session.metrics)


def push(place: Path, stop: int) -> object:
    releases = []
    with stream(place, STEPS, dimension=DIMENSION, keep_releases=True) as opened:
        while opened.t < stop:
            released = opened.push(ROWS[opened.t], user=f"u{opened.t}", key=f"row {opened.t}")
            releases.append(released.to_dict())
    return releases


WAYS: dict[str, Callable[[Path, int], object]] = {"run": train, "stream": push}


def files_of(place: Path) -> frozenset[str]:
    files = [str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()]
    return frozenset(name for name in files if not name.endswith(TRANSIENT))


def continued(way: str, place: Path) -> Outcome | None:
    """The outcome of continuing; None if it is refused in one line."""
    try:
        numbers = WAYS[way](place, STEPS)
    except (ConfigError, LedgerError) as error:
        return None if "\n" not in str(error) else Outcome(str(error), frozenset())
    return Outcome(numbers, files_of(place))


def accounted(place: Path, capsys: pytest.CaptureFixture[str]) -> str | None:
    """The screen of `fedmf account`; None if it is refused in one line."""
    code = command(["account", str(place)])
    said = capsys.readouterr()
    if code:
        assert (said.out, said.err.count("\n")) == ("", 1)
        return None
    return said.out


@pytest.fixture(scope="module", params=WAYS)
def stopped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run or stream that was stopped half-way, in a directory of its name."""
    place = tmp_path_factory.mktemp("stopped") / request.param
    WAYS[request.param](place, STOP)
    return place


def without_rows(place: Path, table: str) -> None:
    (database,) = place.glob("*.sqlite")
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute(f"DELETE FROM {table}")
        connection.commit()


def test_what_is_missing_is_missed(
    stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each table emptied, each file deleted: refused, or as if it were there."""
    way = stopped.name
    place = tmp_path / way
    shutil.copytree(stopped, place)
    whole = accounted(place, capsys)
    outcome = continued(way, place)
    assert whole is not None
    assert outcome is not None
    losses: list[tuple[str, Callable[[], None]]] = []
    for table in TABLES:
        losses.append((table, lambda table=table: without_rows(place, table)))
    for name in sorted(files_of(stopped)):
        losses.append((name, (place / name).unlink))
    for name, lose in losses:
        for look in ("account", "resume"):
            shutil.rmtree(place)
            shutil.copytree(stopped, place)
            lose()
            if look == "account":
                said = accounted(place, capsys)
                missed = said is None or "missing" in said
                assert missed or said == whole, name
            else:
                assert continued(way, place) in (None, outcome), name
