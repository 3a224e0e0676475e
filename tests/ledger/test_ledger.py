"""The ledger: what it accepts, refuses and says, and what it makes of damage, losses and copies."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from support.child_processes import in_child
from support.ledgers import CONTRACT, KEY, begin, commit, contents, go_on, participations, released

from fedmf.errors import LedgerError, ParticipationViolation
from fedmf.ledger.ledger import NO_USER, Ledger
from fedmf.noise.key import NoiseKey
from fedmf.participation import Participation

SECRET = NoiseKey(bytes(range(32)))


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Give each test a folder of marks of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "this"))


def test_commits_are_read_back_after_reopening(path: Path, ledger: Ledger) -> None:
    assert contents(ledger) == (0, None, 0, [])
    commit(ledger, ["zoë", "ann"], ["bob"], [], ["ann", "cy"], ["zoë"])
    expected = contents(ledger)
    ledger.close()
    with go_on(path) as reopened, Ledger.open(path, read_only=True) as reader:
        assert contents(reopened) == contents(reader) == expected
        assert (reopened.participation, reopened.header) == (CONTRACT, {"name": "test"})
        seen = reopened.histories
    assert expected[:2] == (5, b"state 4")
    assert expected[3] == [(0, "zoë"), (0, "ann"), (1, "bob"), (3, "ann"), (3, "cy"), (4, "zoë")]
    assert (len(seen), seen.participations, seen.max_participations, seen.min_separation) == (
        4,
        6,
        2,
        3,
    )


def test_a_ledger_that_is_dropped_is_closed(path: Path) -> None:
    dropped = begin(path)
    commit(dropped, ["ann"])
    connection = dropped._connection
    del dropped
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")
    with go_on(path) as ledger:  # has the lock
        assert ledger.released == 1


@pytest.mark.parametrize("wrong", [1, 3, None])
def test_rounds_come_in_turn(ledger: Ledger, wrong: Any) -> None:
    commit(ledger, ["a"], ["b"])
    before = contents(ledger)
    with pytest.raises(ParticipationViolation, match="round must be 2"):
        ledger.commit_round(wrong, ["c"])
    assert contents(ledger) == before


@pytest.mark.parametrize("reopen", [False, True])
def test_separation_and_cap_are_enforced(path: Path, ledger: Ledger, reopen: bool) -> None:
    commit(ledger, ["a", "b"], ["c"])
    if reopen:
        ledger.close()
        ledger = go_on(path)
    before = contents(ledger)
    with pytest.raises(
        ParticipationViolation, match=r"user 'b' took part in round 0 and may not in round 2: b"
    ):
        ledger.commit_round(2, ["new", "b"])
    assert contents(ledger) == before
    commit(ledger, [], ["a"], [], [], ["a"], [], [])
    with pytest.raises(
        ParticipationViolation, match=r"user 'a' took part 3 times, last in round 6.*round 9: k"
    ):
        ledger.commit_round(9, ["a"])
    ledger.close()


@pytest.mark.parametrize("user", ["", "a\x00b", "\ud800", 7])
def test_bad_ids(ledger: Ledger, user: Any) -> None:
    with pytest.raises(LedgerError, match="user ids must be"):
        ledger.commit_round(0, ["ok", user])
    with pytest.raises(ParticipationViolation, match="user 'x' appears twice in round 0"):
        ledger.commit_round(0, ["x", "y", "x"])
    assert contents(ledger)[:4] == (0, None, 0, [])


def test_metrics(path: Path, ledger: Ledger) -> None:
    ledger.put_metrics(0, {"loss": 2.5, "name": "ä"})
    ledger.put_metrics(10, {"loss": float("nan")})
    ledger.put_metrics(0, {"loss": 2.0})
    with pytest.raises(LedgerError, match="must be JSON"):
        ledger.put_metrics(1, {"loss": object()})
    ledger.close()
    with Ledger.open(path, read_only=True) as reader:
        stored = reader.metrics()
    assert list(stored) == [0, 10]
    assert stored[0] == {"loss": 2.0}
    assert stored[10]["loss"] != stored[10]["loss"]


def test_a_round_needs_an_opening_with_bits_of_its_own(path: Path) -> None:
    Ledger.create(path, CONTRACT, {}, KEY)
    with Ledger.open(path, KEY) as ledger, pytest.raises(LedgerError, match="opening"):
        ledger.commit_round(0, ["a"])
    fresh = set()
    for t in range(3):
        with go_on(path) as ledger:
            fresh.add(ledger.opening().salt)
            assert ledger.opening() == ledger.openings()[-1]
            commit(ledger, [f"u{t}"])
    assert len(fresh) == 3
    with Ledger.open(path, read_only=True) as ledger:
        assert [opening.first_round for opening in ledger.openings()] == [0, 1, 2]


def test_one_process_writes_and_readers_see_what_was_there_when_they_came(
    path: Path, ledger: Ledger
) -> None:
    commit(ledger, ["a"])
    with Ledger.open(path, read_only=True) as reader:
        commit(ledger, ["b"])
        assert (reader.released, participations(reader), reader.state()) == (
            1,
            [(0, "a")],
            b"state 0",
        )
        with pytest.raises(LedgerError, match="read-only"):
            reader.commit_round(1, ["c"])
    assert released(path) == 2
    with pytest.raises(LedgerError, match="another process"):
        Ledger.open(path, KEY)
    with pytest.raises(LedgerError, match="key"):
        Ledger.open(path)
    assert in_child(lambda: commit(ledger, ["c"])) == 1  # of a fork
    commit(ledger, ["c"])


def test_large_states_are_in_two_files_by_turns(path: Path, ledger: Ledger) -> None:
    for t in range(3):
        state = os.urandom(100_000)
        ledger.commit_round(t, [], state)
        assert ledger.state() == state
        assert len(list(path.parent.glob("*.bin"))) == min(t + 1, 2)
    ledger.commit_round(3, [])
    assert ledger.state() == state
    (file,) = (file for file in path.parent.glob("*.bin") if file.read_bytes() == state)
    assert file.stat().st_mode & 0o777 == 0o600
    content = file.read_bytes()
    for damage in (content[:-1], content[:-1] + bytes([content[-1] ^ 1])):
        file.write_bytes(damage)
        with pytest.raises(LedgerError, match="differs from its SHA-256"):
            ledger.state()
    file.unlink()
    with pytest.raises(LedgerError, match="No such file"):
        ledger.state()


def test_steps_of_a_stream(path: Path) -> None:
    Ledger.create(path, Participation(10, 2, 3), {}, KEY, steps=True)
    with Ledger.open(path, KEY) as ledger:
        ledger.commit_steps([], {"row": 1}, b"", 0, b"s")  # a row that took no step
        ledger.opening()
        users = ["a", None, "b", "a"]
        for step, user in enumerate(users, start=1):
            if user is not None:
                assert ledger.histories.admits(user, step)
                ledger.histories.record(user, step)
        ledger.commit_steps(users, {"row": 5}, b"12", 2, b"state", b"pushed")
        assert not ledger.histories.admits("b", 5)
    with Ledger.open(path, KEY) as ledger:
        assert (ledger.released, dict(ledger.about), ledger.state()) == (4, {"row": 5}, b"state")
        assert participations(ledger) == [(0, "a"), (2, "b"), (3, "a")]
        assert (ledger.histories.min_separation, ledger.histories.max_participations) == (3, 2)
        ((found, content),) = ledger.contents()
        assert (found.records, content, found.pushes) == (2, b"12", b"pushed")
        assert found.keys.tolist() == [0, NO_USER, 1, 0]
        assert ledger.histories.admits("b", 6)
        assert not ledger.histories.admits("a", 9)


def test_rows_that_break_the_contract_are_not_opened(path: Path) -> None:
    """Written by somebody who has the key, under a laxer contract than the header's."""
    with begin(path) as ledger:
        commit(ledger, ["a"])
        ledger._commit("round 2", [0], [], 1, 2, None)
    with pytest.raises(ParticipationViolation, match="'a' took part in round 0"):
        Ledger.open(path, read_only=True)


@pytest.mark.parametrize(
    ("keys", "newcomers", "message"),
    [
        ([1, 0], ["b"], "out of order"),
        ([0, 2], ["b"], "gives keys to other users"),
        ([0], ["b"], "gives keys to other users"),
        ([0, 1], [], "gives keys to other users"),
        ([1], ["a"], "a second key"),
    ],
)
def test_rounds_with_other_keys_than_users_are_not_opened(
    path: Path, keys: list[int], newcomers: list[str], message: str
) -> None:
    with begin(path) as ledger:
        commit(ledger, ["a"], [], [])
        ledger._commit("round 4", keys, newcomers, 1, 4, None)
    with pytest.raises(LedgerError, match=message):
        Ledger.open(path, read_only=True)


def run_of(folder: Path) -> Path:
    """A ledger of three rounds with a large state, in a folder of its own; its key is secret."""
    folder.mkdir()
    path = folder / "ledger.sqlite"
    Ledger.create(path, CONTRACT, {"name": "run"}, SECRET)
    with Ledger.open(path, SECRET) as ledger:
        ledger.opening()
        for t in range(3):
            ledger.commit_round(t, [f"u{t}"], bytes([t]) * 70_000)
            ledger.put_metrics(t, {"loss": float(t)})
    return path


def values(path: Path) -> Any:
    with Ledger.open(path, SECRET, read_only=True) as ledger:
        return *contents(ledger), ledger.metrics(), ledger.header, ledger.openings()


def values_or_line(path: Path) -> Any:
    try:
        return values(path)
    except LedgerError as error:
        return str(error)


@pytest.mark.parametrize("live", [False, True])
def test_no_changed_value_is_read_whatever_byte_is_flipped(tmp_path: Path, live: bool) -> None:
    """Bits of the closed file, and of a log that was not merged, are flipped.

    Each flip is rejected in one line, or has no consequence.
    """
    path = run_of(tmp_path / "run")
    with Ledger.open(path, SECRET) as ledger:
        if live:
            ledger.opening()
            commit(ledger, ["u7"])
        expected = values(path)
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
    rng = random.Random(5)
    refused = 0
    wholes = dict[str, bytes]()
    for file in sorted((tmp_path / "copy").iterdir()):
        if file.stat().st_size and "shm" not in file.name:
            wholes[file.name] = file.read_bytes()
    assert ("ledger.sqlite-wal" in wholes) is live
    for name, whole in wholes.items():
        for at in sorted({*rng.sample(range(len(whole)), min(len(whole), 40)), 0, len(whole) - 1}):
            broken = bytearray(whole)
            broken[at] ^= 1 << rng.randrange(8)
            place = tmp_path / "broken"
            shutil.copytree(tmp_path / "copy", place)
            (place / name).write_bytes(broken)
            read = values_or_line(place / "ledger.sqlite")
            assert read == expected or (isinstance(read, str) and "\n" not in read), (name, at)
            refused += isinstance(read, str)
            shutil.rmtree(place)
    assert refused > 20


def wal_lost(folder: Path) -> None:
    (folder / "ledger.sqlite-wal").unlink()


def mark_lost(folder: Path) -> None:
    (folder / "ledger.sqlite-mark").unlink()


def state_lost(folder: Path) -> None:
    for file in folder.glob("*.bin"):
        file.unlink()


def cut(folder: Path) -> None:
    file = folder / "ledger.sqlite-wal"
    file.write_bytes(file.read_bytes()[:-4096])


@pytest.mark.parametrize(
    ("fate", "refusal"),
    [
        (wal_lost, "older copy, or its newest rows are lost|header is missing|not a fedmf ledger"),
        (cut, "older copy, or its newest rows are lost"),
        (mark_lost, "missing or damaged"),
        (state_lost, "No such file"),
    ],
)
def test_what_a_copy_lacks_is_refused(tmp_path: Path, fate: Any, refusal: str) -> None:
    """Its statement would count too few rounds (FEDMF-2026-3)."""
    path = run_of(tmp_path / "run")
    with Ledger.open(path, SECRET) as ledger:
        ledger.opening()
        ledger.commit_round(3, ["u3"], bytes(70_000))
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
    fate(tmp_path / "copy")
    with pytest.raises(LedgerError, match=refusal) as caught:
        values(tmp_path / "copy" / "ledger.sqlite")
    assert "\n" not in str(caught.value)


def test_copies_on_one_machine_and_on_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = run_of(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    older = tmp_path / "copy" / "ledger.sqlite"
    with Ledger.open(older, SECRET), pytest.raises(LedgerError, match="only open copy"):
        Ledger.open(path, SECRET)
    with Ledger.open(path, SECRET) as ledger:
        ledger.opening()
        commit(ledger, ["u3"])
    with pytest.raises(LedgerError, match=r"older copy.*Continue with the newest"):
        Ledger.open(older, SECRET)
    with monkeypatch.context() as other:
        other.setenv("XDG_STATE_HOME", str(tmp_path / "other machine"))
        with Ledger.open(older, SECRET) as ledger:
            fresh = ledger.opening().salt
            commit(ledger, ["u3"], ["u4"])
    with Ledger.open(path, SECRET) as ledger:
        assert fresh not in {opening.salt for opening in ledger.openings()}
    with pytest.raises(
        LedgerError, match=r"another branch.*to 4 commits, and this copy has 5.*remove"
    ) as refused:
        Ledger.open(older, SECRET)
    (mark,) = (tmp_path / "this" / "fedmf" / "marks").iterdir()
    assert (mark.name, mark.stat().st_mode & 0o777) == (SECRET.fingerprint, 0o600)
    assert str(mark) in str(refused.value)
    mark.unlink()
    with Ledger.open(older, SECRET) as ledger:
        assert ledger.released == 5


def test_readers_are_told_of_releases_that_a_copy_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = run_of(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    older = tmp_path / "copy" / "ledger.sqlite"
    with Ledger.open(path, SECRET) as ledger:
        ledger.opening()
        commit(ledger, ["u3"])
        assert ledger.lineage().unseen() is None

    def unseen(place: Path) -> str | None:
        with Ledger.open(place, SECRET, read_only=True) as ledger:
            return ledger.lineage().unseen()

    assert unseen(path) is None
    assert "has seen 4 commits of this run or stream, and this copy has 3" in str(unseen(older))
    with monkeypatch.context() as other:
        other.setenv("XDG_STATE_HOME", str(tmp_path / "other machine"))
        assert unseen(older) is None
        with Ledger.open(older, SECRET) as ledger:
            ledger.opening()
            commit(ledger, ["u3"], ["u4"])
    assert "another branch with 4 commits, and this copy has 5" in str(unseen(older))


def test_a_place_for_marks_that_cannot_be_written_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    run_of(tmp_path / "run")
    assert "is not writable" in caplog.records[0].getMessage()
    monkeypatch.setenv("XDG_STATE_HOME", "")

    def no_home() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", no_home)
    run_of(tmp_path / "second")


def test_what_is_no_ledger_is_refused_in_a_line(tmp_path: Path) -> None:
    place = tmp_path / "ledger.sqlite"
    with pytest.raises(LedgerError, match="does not exist"):
        Ledger.open(place, KEY)
    for content in (b"", b"text", b"SQLite format 3\x00" + bytes(200)):
        place.write_bytes(content)
        with pytest.raises(LedgerError) as caught:
            Ledger.open(place, read_only=True)
        assert "\n" not in str(caught.value)
    place.unlink()
    with sqlite3.connect(place) as other:
        other.execute("CREATE TABLE t(x)")
    other.close()
    with pytest.raises(LedgerError):
        Ledger.open(place, read_only=True)
    with pytest.raises(LedgerError, match="exists already"):
        Ledger.create(place, CONTRACT, {}, KEY)
    with pytest.raises(LedgerError, match="authentication code"):
        Ledger.open(run_of(tmp_path / "run"), KEY)
