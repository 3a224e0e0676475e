"""The file of the participation ledger: what it is refused as, who reads and who writes it."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import threading
from pathlib import Path

import numpy as np
import pytest
from support.ledgers import CONTRACT, KEY, begin, commit, contents, go_on, tails

from fedmf.errors import LedgerError
from fedmf.records.frames import State
from fedmf.records.ledger import Ledger, tail


def test_create_refuses_to_overwrite(path, ledger):
    ledger.close()
    with pytest.raises(LedgerError, match="exists already"):
        begin(path, CONTRACT, {})
    with go_on(path) as kept:
        assert kept.header == {"name": "test"}


@pytest.mark.parametrize("header", [{"x": float("nan")}, {"x": {1, 2}}, {"x": object()}])
def test_header_must_be_json(path, header):
    with pytest.raises(LedgerError, match="header"):
        begin(path, CONTRACT, header)
    assert not path.exists()
    Ledger.create(path, CONTRACT, {}, KEY).close()


def test_missing_file_and_directory(tmp_path):
    with pytest.raises(LedgerError, match="does not exist"):
        go_on(tmp_path / "none")
    with pytest.raises(LedgerError, match="cannot be locked"):
        begin(tmp_path / "none" / "ledger", CONTRACT, {})


@pytest.mark.parametrize("content", [b"", b"not a database at all, but long enough to be read" * 40])
@pytest.mark.parametrize("read_only", [False, True])
def test_other_files_are_refused(path, content, read_only):
    path.write_bytes(content)
    with pytest.raises(LedgerError, match="is not a fedmf ledger") as caught:
        Ledger.open(path, KEY, read_only)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == content


def test_other_databases_are_refused_and_left_alone(path):
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE header(x)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="is not a fedmf ledger"):
        go_on(path)
    assert path.read_bytes() == before


def test_other_format_version(path, ledger):
    ledger.close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=2")
    connection.close()
    with pytest.raises(LedgerError, match="format version 2; this fedmf reads version 1"):
        go_on(path)


def test_read_only_refuses_to_write(path, ledger):
    ledger.close()
    before = path.read_bytes()
    with Ledger.open(path, read_only=True) as reader:
        with pytest.raises(LedgerError, match="read-only"):
            reader.commit_round(0, [], "c", "d")
        with pytest.raises(LedgerError, match="read-only"):
            reader.put_metrics(0, {})
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader._connection.execute("INSERT INTO main.metrics VALUES (0, 1, '{}', X'', X'')")
    assert path.read_bytes() == before


def test_header_and_floats_round_trip(path):
    header = {"coefficients": [0.1 + 0.2, 1e-300, 5e-324], "text": "ζ", "nested": {"none": None}}
    Ledger.create(path, CONTRACT, header, KEY).close()
    with Ledger.open(path, read_only=True) as reader:
        assert reader.header == header
        assert json.dumps(reader.header) == json.dumps(header)


def test_commits_from_another_thread(ledger):
    """Flower runs the server strategy in a thread of its own."""
    errors = []

    def work(name: str) -> None:
        try:
            commit(ledger, [name])
        except Exception as error:
            errors.append(error)

    for name in ("a", "b"):
        thread = threading.Thread(target=work, args=(name,))
        thread.start()
        thread.join()
    assert errors == []
    assert list(ledger.participations()) == [(0, "a"), (1, "b")]


def test_snapshot_ignores_later_commits(path, ledger):
    commit(ledger, ["a"])
    with Ledger.open(path, read_only=True) as reader, reader.snapshot():
        assert reader.last_round() == 0
        assert reader.replay().rounds == 1
        commit(ledger, ["b"])  # the writer does not wait for the reader
        assert reader.pattern_counts() == {(0,): 1}
        assert reader.last_round() == 0
        reader._connection.execute("ROLLBACK")
        assert reader.last_round() == 1
        reader._connection.execute("BEGIN")


def test_a_copy_of_a_ledger_that_is_being_written_is_whole(path, ledger, tmp_path):
    """Database and tail together; without the tail it has the rows that were moved, here none."""
    commit(ledger, ["a", "b"], ["c"])
    ledger.put_metrics(2, {"loss": 1.0})
    shutil.copytree(tmp_path, tmp_path.with_name("copy"))
    with Ledger.open(tmp_path.with_name("copy") / path.name, KEY, read_only=True) as reader:
        assert contents(reader) == contents(ledger)
        assert reader.replay() == ledger.replay()
        assert reader.metrics() == {2: {"loss": 1.0}}
    for file in tails(tmp_path.with_name("copy")):
        file.unlink()
    with Ledger.open(tmp_path.with_name("copy") / path.name, KEY, read_only=True) as reader:
        assert reader.last_round() is None


def test_wrong_types_are_one_line_errors(tmp_path, ledger):
    with pytest.raises(LedgerError, match="must be text"):
        ledger.commit_round(0, ["a"], tmp_path, "d")  # type: ignore[arg-type]
    assert contents(ledger)[:3] == (None, None, [])
    ledger.commit_round(np.int64(0), ["a"], "c", "d")
    ledger.close()
    with pytest.raises(LedgerError, match="closed"):
        ledger.commit_round(1, ["b"], "c", "d")
    with pytest.raises(LedgerError, match="closed"):
        ledger.last_round()


def test_what_moves_into_the_database_is_flushed(ledger):
    """synchronous=EXTRA (3) with a rollback journal; see `connect` for why not less."""
    assert ledger._connection.execute("PRAGMA synchronous").fetchone() == (3,)
    assert ledger._connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)


@pytest.mark.parametrize("begins", [False, True])
def test_a_commit_is_one_write_and_one_flush(ledger, monkeypatch, begins):
    """A file that it begins has a lasting name before; the earlier goes after."""
    commit(ledger, ["a"])
    if begins:
        monkeypatch.setattr(tail, "_FRAMES", 1)
    else:  # the earlier files are gone
        ledger._tail._alone = True
    calls = []
    for name in ("pwrite", "fdatasync", "fsync", "open", "replace", "unlink"):
        real = getattr(os, name)
        monkeypatch.setattr(
            os, name, lambda *rest, name=name, real=real: (calls.append(name), real(*rest))[1]
        )
    ledger.commit_round(1, ["b"], "b", "0" * 64, state=State.of([b"x" * 10_000, b"y" * 3]))
    about_names = ["open", "open", "fsync"], ["unlink"]  # the file and its folder
    assert calls == [*about_names[0] * begins, "pwrite", "fdatasync", *about_names[1] * begins]


def test_an_opening_writes_the_state_that_a_killed_process_left_again(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = begin(path, CONTRACT, {})
    state = State.of([b"model"])
    ledger.commit_round(0, ["ann"], "after", state.digest.hex(), state=state)
    killed = tmp_path / "killed"
    killed.mkdir()
    for file in tmp_path.glob("ledger.sqlite*"):
        shutil.copy(file, killed)
    left = tails(killed)
    with go_on(killed / "ledger.sqlite") as other:
        assert not set(left) & set(tails(killed))  # in a file of its own, not in the one that may be lost
        assert other.checkpoint() == (0, "after", state.digest.hex())
        assert state.digest.hex() in {frame.digest.hex() for frame in tail.Tail(other.path).frames()}
    ledger.close()
