"""Openings: what a process records before its first release, and their place in the chain."""

from __future__ import annotations

import hashlib
import hmac
import sqlite3
from pathlib import Path

import pytest
from support.ledgers import KEY, begin

from fedmf.errors import LedgerError
from fedmf.noise import NoiseKey
from fedmf.participation import Participation
from fedmf.records import SCHEMA, Ledger

CONTRACT = Participation(9, 3, 2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


def commit(ledger: Ledger, *rounds: int) -> None:
    for t in rounds:
        ledger.commit_round(t, [f"u{t}"], f"{t}.npz", f"digest-{t}")


def test_no_round_before_an_opening_of_this_process(path: Path) -> None:
    with Ledger.create(path, CONTRACT, {}, KEY) as ledger:
        with pytest.raises(LedgerError, match=r"^opening .* before round 0; got none"):
            commit(ledger, 0)
        ledger.opening()
        commit(ledger, 0)
    with Ledger.open(path, KEY) as ledger:
        with pytest.raises(LedgerError, match=r"^opening .* before round 1; got none"):
            commit(ledger, 1)
        assert ledger.last_round() == 0


def test_an_opening_after_a_round_of_the_same_process_is_the_next_in_the_chain(path: Path) -> None:
    with Ledger.create(path, CONTRACT, {}, KEY) as ledger:
        ledger.open_era(b"a" * 32)
        commit(ledger, 0)
        before = ledger.head()
        ledger.open_era(b"b" * 32)
        assert ledger.head() != before
        commit(ledger, 1)
        assert ledger.replay().rounds == 2


def test_openings_and_rounds_are_one_chain(path: Path) -> None:
    with Ledger.create(path, CONTRACT, {}, KEY) as ledger:
        empty = ledger.head()
        first = ledger.open_era(b"a" * 32)
        again = ledger.open_era(b"b" * 32, {"x": 1})
        heads = [ledger.head()]
        commit(ledger, 0, 1)
        heads.append(ledger.head())
        assert ledger.opening() == again
        assert ledger.replay().rounds == 2
    with Ledger.open(path, KEY) as ledger:
        later = ledger.opening()
        assert (later.number, later.first_round, len(later.fresh)) == (2, 2, 32)
        assert ledger.opening() == later
        commit(ledger, 2)
        last = ledger.head()
        assert ledger.replay().rounds == 3
        found = ledger.openings()
    with Ledger.open(path, read_only=True) as reader:
        assert reader.openings() == found == [first, again, later]
        assert [opening.first_round for opening in found] == [0, 0, 2]
        assert reader.head() == last
        assert reader.replay().rounds == 3
        assert not reader.authenticated
        assert all(map(reader.holds, [empty, *heads, last]))
        assert not reader.holds(bytes(32))


def test_openings_of_processes_differ(path: Path) -> None:
    with Ledger.create(path, CONTRACT, {}, KEY) as ledger:
        first = ledger.opening()
    with Ledger.open(path, KEY) as ledger:
        assert ledger.opening().fresh != first.fresh
    with Ledger.open(path, read_only=True) as reader, pytest.raises(LedgerError, match="read-only"):
        reader.opening()


def test_codes_are_those_of_the_records_key(path: Path) -> None:
    """Computed here from its definition, of every row."""
    with begin(path, CONTRACT, {}) as ledger:
        commit(ledger, 0)
        ledger.put_metrics(1, {"loss": 1.0})
    records = KEY.subkey("records")
    connection = sqlite3.connect(path)
    for table in ("header", "openings", "rounds", "metrics"):
        ((chain, mac),) = connection.execute(f"SELECT chain, mac FROM {table}").fetchall()
        assert len(chain) == 32
        assert mac == hmac.new(records, chain, hashlib.sha256).digest()
    connection.close()


def test_another_key_and_no_key(path: Path) -> None:
    begin(path, CONTRACT, {}).close()
    for read_only in (False, True):
        with pytest.raises(LedgerError, match=r"header of ledger .* not that of the run's key"):
            Ledger.open(path, NoiseKey.from_seed(4), read_only)
    with pytest.raises(LedgerError, match=r"^key \(of the run\) must be given to write"):
        Ledger.open(path)
    Ledger.open(path, read_only=True).close()


@pytest.mark.parametrize("fresh", [b"", b"a" * 31, "a" * 32, None])
def test_unfit_openings_are_refused(path: Path, fresh: bytes) -> None:
    with Ledger.create(path, CONTRACT, {}, KEY) as ledger:
        with pytest.raises(LedgerError, match=r"^fresh \(bits of an opening\) must be 32 bytes"):
            ledger.open_era(fresh)
        with pytest.raises(LedgerError, match=r"^note \(of an opening\) must be JSON"):
            ledger.open_era(bytes(32), {"x": float("nan")})
        assert ledger.openings() == []


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE openings SET fresh = zeroblob(32) WHERE number = 1", "opening 1 is not as it was"),
        ("UPDATE openings SET note = '{\"x\": 1}' WHERE number = 0", "opening 0 is not as it was"),
        ("UPDATE openings SET first_round = 3 WHERE number = 1", "is not as it was"),
        ("UPDATE openings SET mac = zeroblob(32) WHERE number = 1", "not that of the run's key"),
        ("DELETE FROM openings WHERE number = 1", "round 2 is not as it was"),
        ("DELETE FROM openings WHERE number = 0", "round 0 is not as it was"),
        ("UPDATE rounds SET mac = zeroblob(32) WHERE round = 1", "round 1 .* not that of the run's key"),
        ("UPDATE metrics SET json = '{\"loss\": 2.0}'", "metrics of round 1 are not as they were"),
        ("UPDATE metrics SET round = 2", "metrics of round 2 are not as they were"),
        ("UPDATE metrics SET mac = zeroblob(32)", "metrics of round 1 .* not that of the run's key"),
        ("DELETE FROM openings", "round 0 is not as it was .* no opening"),
    ],
)
def test_replay_finds_doctored_openings_codes_and_metrics(path: Path, statement: str, message: str) -> None:
    with begin(path, CONTRACT, {}) as ledger:
        commit(ledger, 0, 1)
        ledger.put_metrics(1, {"loss": 1.0})
    with Ledger.open(path, KEY) as ledger:
        ledger.opening()
        commit(ledger, 2, 3)
        ledger.replay()
    connection = sqlite3.connect(path)
    triggers = [line for line in SCHEMA if line.startswith("CREATE TRIGGER")]
    for trigger in triggers:
        connection.execute("DROP TRIGGER " + trigger.split()[2])
    connection.execute(statement)
    for trigger in triggers:
        connection.execute(trigger)
    connection.commit()
    connection.close()
    with Ledger.open(path, KEY) as ledger, pytest.raises(LedgerError, match=message) as caught:
        ledger.replay()
    assert "\n" not in str(caught.value)
