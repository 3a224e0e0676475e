"""The participation ledger: what it accepts, refuses and says."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import threading

import numpy as np
import pytest
from support.ledgers import KEY, begin, go_on, tails

from fedmf.errors import LedgerError, ParticipationViolation
from fedmf.participation import Participation
from fedmf.records.frames import State
from fedmf.records.ledger import Ledger, tail
from fedmf.records.ledger.replay import replay

CONTRACT = Participation(rounds=10, max_participations=3, min_separation=3)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def ledger(path):
    with begin(path, CONTRACT, {"name": "test"}) as created:
        yield created


def commit(ledger: Ledger, *cohorts: list[str]) -> None:
    for users in cohorts:
        last = ledger.last_round()
        index = 0 if last is None else last + 1
        ledger.commit_round(index, users, f"{index}.npz", f"digest-{index}")


def contents(ledger: Ledger) -> tuple:
    return (
        ledger.last_round(),
        ledger.checkpoint(),
        ledger.user_count(),
        list(ledger.participations()),
        ledger.pattern_counts(),
    )


def test_new_ledger_is_empty(ledger):
    assert contents(ledger) == (None, None, 0, [], {})
    summary = ledger.replay()
    assert (summary.rounds, summary.users, summary.max_participations) == (0, 0, 0)
    assert summary.min_separation is None


def test_commits_are_read_back_after_reopening(path, ledger):
    commit(ledger, ["zoë", "ann"], ["bob"], [], ["ann", "cy"], ["zoë"])
    expected = contents(ledger)
    ledger.close()
    with go_on(path) as reopened, Ledger.open(path, read_only=True) as reader:
        assert contents(reopened) == contents(reader) == expected
        assert reopened.participation == CONTRACT
        assert reopened.header == {"name": "test"}
    assert expected[0] == 4
    assert expected[1] == (4, "4.npz", "digest-4")
    assert expected[4] == {(0, 3): 1, (0, 4): 1, (1,): 1, (3,): 1}


def test_summary(ledger):
    commit(ledger, ["b", "a", "c"], ["d"])
    ledger.commit_round(2, [], "2.npz", "x", status="empty")
    commit(ledger, ["a"], ["b"], [], ["a"])
    summary = ledger.replay()
    assert summary.rounds == 7
    assert summary.empty_rounds == 1
    assert (summary.users, summary.participations) == (4, 7)
    assert (summary.max_participations, summary.min_separation, summary.largest_cohort) == (3, 3, 3)


@pytest.mark.parametrize("most", range(1, 5))
@pytest.mark.parametrize("apart", range(1, 6))
def test_replay_accepts_exactly_the_contracts_that_the_rows_keep(path, most, apart):
    """One user three times, four rounds apart and then three: the file checks out for k ≥ 3 and b ≤ 3."""
    with begin(path, Participation(20, 3, 3), {}) as ledger:
        commit(ledger, ["a"], ["b"], [], ["c"], ["a"], [], [], ["a", "b"])
        contract = Participation(20, most, apart)
        if most >= 3 and apart <= 3:
            assert (
                replay(ledger._connection, contract, ledger._header_chain, ledger._seal).min_separation == 3
            )
            return
        message = r"took part (\d times, last )?in round [04],? and may not in round [47]: [bk] \(m"
        with pytest.raises(ParticipationViolation, match=message):
            replay(ledger._connection, contract, ledger._header_chain, ledger._seal)


@pytest.mark.parametrize("wrong", [0, 1, 3, -1, 2.0, True, None, "2"])
def test_rounds_come_in_turn(ledger, wrong):
    commit(ledger, ["a"], ["b"])
    before = contents(ledger)
    with pytest.raises(ParticipationViolation, match="round must be 2"):
        ledger.commit_round(wrong, ["c"], "c", "d")
    assert contents(ledger) == before


def test_first_round_is_zero(ledger):
    with pytest.raises(ParticipationViolation, match="round must be 0"):
        ledger.commit_round(1, ["a"], "c", "d")
    assert ledger.last_round() is None


def test_nothing_past_the_horizon(ledger):
    commit(ledger, *[[] for _ in range(10)])
    with pytest.raises(ParticipationViolation, match="past the horizon: all n=10 rounds"):
        ledger.commit_round(10, [], "c", "d", status="empty")
    assert ledger.last_round() == 9


@pytest.mark.parametrize("reopen", [False, True])
def test_separation_is_enforced(path, ledger, reopen):
    commit(ledger, ["a", "b"], ["c"])
    if reopen:
        ledger.close()
        ledger = go_on(path)
    before = contents(ledger)
    with pytest.raises(
        ParticipationViolation, match=r"user 'b' took part in round 0 and may not in round 2: b"
    ):
        ledger.commit_round(2, ["new", "b"], "c", "d")
    assert contents(ledger) == before
    commit(ledger, [], ["b"])
    assert ledger.last_round() == 3
    ledger.close()


@pytest.mark.parametrize("reopen", [False, True])
def test_cap_is_enforced(path, ledger, reopen):
    commit(ledger, ["a"], [], [], ["a"], [], [], ["a"], [], [])
    if reopen:
        ledger.close()
        ledger = go_on(path)
    with pytest.raises(
        ParticipationViolation, match=r"user 'a' took part 3 times, last in round 6.*round 9: k"
    ):
        ledger.commit_round(9, ["a"], "c", "d")
    assert ledger.last_round() == 8
    ledger.close()


def test_duplicate_in_a_round(ledger):
    with pytest.raises(ParticipationViolation, match="user 'x' appears twice in round 0"):
        ledger.commit_round(0, ["x", "y", "x"], "c", "d")
    assert contents(ledger)[2:4] == (0, [])


def test_empty_round_has_no_users(ledger):
    with pytest.raises(ParticipationViolation, match="empty round has no users"):
        ledger.commit_round(0, ["a"], "c", "d", status="empty")
    with pytest.raises(LedgerError, match="status"):
        ledger.commit_round(0, [], "c", "d", status="failed")  # type: ignore[arg-type]
    assert ledger.last_round() is None


@pytest.mark.parametrize("user", ["", "a\x00b", "\ud800", 7, None, b"a"])
def test_bad_ids(ledger, user):
    with pytest.raises(LedgerError, match="user \\(id\\) must be"):
        ledger.commit_round(0, ["ok", user], "c", "d")
    with pytest.raises(LedgerError, match="single string"):
        ledger.commit_round(0, "ann", "c", "d")
    assert ledger.user_count() == 0


def test_ids_are_compared_exactly(ledger):
    """Case, spaces and Unicode normal forms make different users."""
    users = ["Ann", "ann", " ann", "\u00e9", "e\u0301", "用户", "👩‍🔬", "O'Brien; DROP TABLE users", "%", "_"]
    commit(ledger, users)
    assert [user for _, user in ledger.participations()] == users
    with pytest.raises(ParticipationViolation, match="O'Brien"):
        ledger.commit_round(1, [users[7]], "c", "d")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE rounds SET newcomers = X''",
        "UPDATE rounds SET checkpoints = '{}'",
        "DELETE FROM rounds",
        "UPDATE rounds SET participants = X''",
        "UPDATE header SET json = '{}'",
        "DELETE FROM header",
        "INSERT OR REPLACE INTO rounds VALUES (0, 1, 0, 'empty', '{}', X'', X'', X'', X'')",
        "INSERT OR REPLACE INTO header VALUES (0, 1, 99, 99, 1, '{}', X'', X'')",
        "INSERT OR REPLACE INTO openings VALUES (0, 1, 0, X'', '{}', X'', X'')",
        "INSERT INTO rounds VALUES (7, 1, 0, 'empty', '{}', X'', X'', X'', X'')",
    ],
)
def test_the_file_itself_is_append_only(path, ledger, statement):
    commit(ledger, ["a"], ["b"])
    before = contents(ledger)
    ledger.close()
    connection = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        connection.execute(statement)
    connection.close()
    with Ledger.open(path, read_only=True) as reader:
        assert contents(reader) == before


def test_metrics(path, ledger):
    ledger.put_metrics(0, {"loss": 2.5, "name": "ä"})
    ledger.put_metrics(10, {"loss": float("nan")})
    ledger.put_metrics(0, {"loss": 2.0})
    for wrong in (-1, 11, True, 1.0):
        with pytest.raises(LedgerError, match=r"round \(of metrics\)"):
            ledger.put_metrics(wrong, {})
    with pytest.raises(LedgerError, match="must be JSON"):
        ledger.put_metrics(1, {"loss": object()})
    ledger.close()
    with Ledger.open(path, read_only=True) as reader:
        stored = reader.metrics()
    assert list(stored) == [0, 10]
    assert stored[0] == {"loss": 2.0}
    assert stored[10]["loss"] != stored[10]["loss"]


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
    connection.execute("PRAGMA user_version=1")
    connection.close()
    with pytest.raises(LedgerError, match="format version 1; this fedmf reads version 6"):
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


def test_a_reader_sees_whole_rows_while_they_move_into_the_database(path, ledger, monkeypatch):
    """A small limit moves rows every few commits; a reader always sees all that were acknowledged."""
    monkeypatch.setattr(tail, "_FULL", 3000)
    with Ledger.open(path, read_only=True) as reader:
        for index in range(10):
            ledger.commit_round(index, [f"u{index}"], f"{index}", f"{index:064x}", state=State.of([b"x"]))
            assert reader.last_round() == index
            assert reader.replay().users == index + 1
            files = [name for name in os.listdir(path.parent) if "-tail-" in name]
            assert len(files) == 1
    assert int(files[0][-7:]) > 2


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


def test_closing_moves_all_rows_into_the_database(path, ledger):
    commit(ledger, ["a"], ["b"])
    ledger.put_metrics(1, {"loss": 2.0})
    connection = sqlite3.connect(path)
    query = "SELECT (SELECT COUNT(*) FROM rounds), (SELECT COUNT(*) FROM metrics)"
    assert connection.execute(query).fetchone() == (0, 0)
    ledger.close()
    assert connection.execute(query).fetchone() == (2, 1)
    connection.close()


def test_pathlike_and_symlink_share_one_lock(path, ledger, tmp_path):
    alias = tmp_path / "alias"
    os.symlink(path, alias)
    with pytest.raises(LedgerError, match="being written by another process"):
        go_on(str(alias))


def test_wrong_types_are_one_line_errors(tmp_path, ledger):
    with pytest.raises(LedgerError, match="must be text"):
        ledger.commit_round(0, ["a"], tmp_path, "d")  # type: ignore[arg-type]
    assert contents(ledger)[:3] == (None, None, 0)
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
