"""The participation ledger: what it accepts, refuses and says."""

from __future__ import annotations

import sqlite3

import pytest
from support.ledgers import CONTRACT, begin, commit, contents, go_on

from fedmf.errors import LedgerError, ParticipationViolation
from fedmf.participation import Participation
from fedmf.records.ledger import Ledger
from fedmf.records.ledger.replay import replay


def test_new_ledger_is_empty(ledger):
    assert contents(ledger) == (None, None, [], {})
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
    assert expected[3] == {(0, 3): 1, (0, 4): 1, (1,): 1, (3,): 1}


def test_summary(ledger):
    commit(ledger, ["b", "a", "c"], ["d"])
    ledger.commit_round(2, [], "2.npz", "x", status="empty")
    commit(ledger, ["a"], ["b"], [], ["a"])
    summary = ledger.replay()
    assert summary.rounds == 7
    assert summary.empty_rounds == 1
    assert (summary.users, summary.participations) == (4, 7)
    assert (summary.max_participations, summary.min_separation, summary.largest_cohort) == (3, 3, 3)


@pytest.mark.parametrize(("most", "apart"), [(3, 3), (4, 2), (2, 3), (3, 4)])
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
    assert contents(ledger)[2] == []


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
    assert list(ledger.participations()) == []


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
