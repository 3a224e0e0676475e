"""What a ledger and the state of a stream promise alike, asked of both."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from support.child_processes import in_child

from fedmf.noise import NoiseKey
from fedmf.participation import Participation
from fedmf.records import Ledger, Record
from fedmf.streaming import Layout, Settings, StreamPlan, StreamState

KEY = NoiseKey(bytes(range(32)))


def ledger(folder: Path) -> Ledger:
    path = folder / "ledger.sqlite"
    if path.exists():
        return Ledger.open(path, KEY)
    return Ledger.create(path, Participation(10, 2, 4), {}, KEY)


def stream_state(folder: Path) -> StreamState:
    if StreamState.exists(folder / "state"):
        return StreamState.open(folder / "state")
    settings = Settings(norm_bound=1.0, epsilon=8.0, delta=1e-5, rounds=4)
    return StreamState.create(
        folder / "state", StreamPlan.of(settings, Layout(("x",), True, 2, None), 4), KEY
    )


both = pytest.mark.parametrize("opened", [ledger, stream_state])
Opened = Callable[[Path], Record]


@both
def test_openings_are_kept_and_unfit_ones_refused(opened: Opened, tmp_path: Path) -> None:
    with opened(tmp_path) as record:
        with pytest.raises(record.kind.error, match=r"^fresh \(bits of an opening\) must be 32 bytes"):
            record.open_era(b"a" * 31)
        with pytest.raises(record.kind.error, match=r"^note \(of an opening\) must be JSON"):
            record.open_era(bytes(32), {"x": float("nan")})
        assert record.openings() == []
        first, before = record.open_era(b"a" * 32, {"x": [1, "ü"]}), record.head()
        assert record.opening() is first
    with opened(tmp_path) as record:
        assert record.openings() == [first]
        assert record.head() == before
        assert record.opening().fresh not in (first.fresh, bytes(32))
        assert [opening.number for opening in record.openings()] == [0, 1]
        assert record.head() != before


@both
def test_an_opening_that_fails_is_not_there_and_ends_the_right(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as record:
        with monkeypatch.context() as patched:

            def full(*row: object) -> tuple[bytes, ...]:
                raise OSError(28, "No space left on device")

            patched.setattr(record, "_sealed_opening", full)
            with pytest.raises(record.kind.error, match=r"an opening failed .*No space left"):
                record.opening()
        with pytest.raises(record.kind.error, match="this process releases nothing more"):
            record.opening()
        assert not record._connection.in_transaction
    with opened(tmp_path) as record:
        assert record.openings() == []
        record.opening()


@both
def test_a_fork_and_a_second_process_cannot_write(opened: Opened, tmp_path: Path) -> None:
    with opened(tmp_path) as record:

        def forked() -> None:
            with pytest.raises(record.kind.error, match="not to a fork of it"):
                record.opening()
            with pytest.raises(record.kind.error, match="is being written by another process"):
                opened(tmp_path)

        assert in_child(forked) == 0
        record.opening()


@both
def test_the_lock_is_given_back_by_an_opening_that_is_refused(opened: Opened, tmp_path: Path) -> None:
    with opened(tmp_path) as record:
        record.opening()
        place = record.path
    whole = place.read_bytes()
    for damage in (whole[:100], b"", whole.replace(b"CREATE TABLE", b"CREATE TABEL")):
        place.write_bytes(damage)
        with pytest.raises(record.kind.error):
            opened(tmp_path)
    place.write_bytes(whole)
    opened(tmp_path).close()


def read_whole(opened: Opened, folder: Path) -> None:
    """A state is checked when it is opened, a ledger when it is replayed."""
    with opened(folder) as record:
        if isinstance(record, Ledger):
            record.replay()


def doctored(path: Path, statement: str) -> None:
    """A change of the rows that leaves the schema as it was."""
    connection = sqlite3.connect(path)
    triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for name, _ in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    connection.execute(statement)
    for _, again in triggers:
        connection.execute(again)
    connection.commit()
    connection.close()


@both
@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("version = 2", "opening 0 of the .* is a row of version 2; this fedmf reads version 1"),
        ("fresh = zeroblob(32)", "opening 0.* its chain value differs"),
        ("note = '{\"x\": 1}'", "opening 0.* its chain value differs"),
        ("mac = zeroblob(32)", "opening 0.* its authentication code is not that of the run's key"),
    ],
)
def test_an_opening_that_is_not_as_it_was_committed_is_refused(
    opened: Opened, change: str, fault: str, tmp_path: Path
) -> None:
    with opened(tmp_path) as record:
        record.opening()
    doctored(record.path, f"UPDATE openings SET {change}")
    with pytest.raises(record.kind.error, match=fault):
        read_whole(opened, tmp_path)
