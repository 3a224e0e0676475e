"""The ledger under kill -9, full disks, a second writer and doctored rows."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys

import numpy as np
import pytest
from support.ledgers import KEY, begin, go_on

from fedmf.errors import LedgerError, ParticipationViolation
from fedmf.participation import Participation
from fedmf.records.ledger import Ledger
from fedmf.records.ledger.schema import SCHEMA, rows

CONTRACT = Participation(rounds=10_000, max_participations=1000, min_separation=3)

# Commits rounds for ever and acknowledges each. argv: path, users per round, and after how many
# uncommitted bytes at the end of the file to die (0: never).
WRITER = """
import os, resource, signal, sys
from fedmf.noise import NoiseKey
from fedmf.records import Ledger
path, size, suicide = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
ledger = Ledger.open(path, NoiseKey.from_seed(3))
ledger.opening()
connection = ledger._connection
last = ledger.last_round()
start = 0 if last is None else last + 1
if suicide:
    ledger.commit_round(start, [f"warm-{start}"], "c", f"digest-{start}")
    start += 1
    # The operating system kills the process in the midst of writing the file.
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (os.stat(path + "-tail-0000000").st_size + suicide,) * 2)
print("ready", start - 1, flush=True)
for t in range(start, ledger.participation.rounds):
    ledger.commit_round(t, [f"{t % 3}-{i}-{t if suicide else ''}" for i in range(size)], "c", f"digest-{t}")
    print("done", t, flush=True)
"""


def spawn(path, size, suicide=0):
    command = [sys.executable, "-c", WRITER, str(path), str(size), str(suicide)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_second_writer_is_refused_until_the_first_dies(tmp_path):
    path = tmp_path / "ledger.sqlite"
    with begin(path, CONTRACT, {}), pytest.raises(LedgerError, match="written by another process"):
        go_on(path)
    child = spawn(path, 1)
    assert child.stdout is not None
    child.stdout.readline()
    with pytest.raises(LedgerError, match="written by another process") as caught:
        go_on(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(LedgerError, match="written by another process"):
        begin(path, CONTRACT, {})
    with Ledger.open(path, read_only=True) as reader:
        assert reader.participation == CONTRACT
    child.kill()
    child.wait()
    child.stdout.close()
    go_on(path).close()


def test_a_fork_cannot_write(tmp_path):
    with begin(tmp_path / "ledger.sqlite", CONTRACT, {}) as ledger:
        ledger._process += 1
        with pytest.raises(LedgerError, match="fork"):
            ledger.commit_round(0, [], "c", "d")


def test_place_that_cannot_be_written():
    with pytest.raises(LedgerError, match="cannot be locked for writing") as caught:
        begin("/proc/ledger.sqlite", CONTRACT, {})
    assert "\n" not in str(caught.value)


SMALL = Participation(rounds=9, max_participations=3, min_separation=3)


def joins(round_index: int, *keys: int) -> str:
    """SQL that makes a round hold exactly the users with these keys, its count included."""
    content = np.array(keys, dtype="<u4").tobytes().hex()
    return f"UPDATE rounds SET participants = X'{content}', users = {len(keys)} WHERE round = {round_index};"


def newcomers(round_index: int, content: bytes) -> str:
    """SQL that makes a round name these new users."""
    return f"UPDATE rounds SET newcomers = X'{content.hex()}' WHERE round = {round_index};"


DOCTORED = {
    "separation": (joins(2, 0), "in round 0 and may not in round 2: b"),
    "cap": (joins(3, 0) + joins(6, 0) + joins(8, 0), "in round 6 and may not in round 8: b"),
    "user added": (
        joins(5, 1) + "UPDATE rounds SET users = 0 WHERE round = 5",
        "round 5 was committed with 0 users and holds 1",
    ),
    "user removed": (
        joins(7) + "UPDATE rounds SET users = 1 WHERE round = 7",
        "round 7 was committed with 1 users and holds 0",
    ),
    "user twice": (joins(5, 1, 1), "round 5 names its users out of order or twice"),
    "users out of order": (joins(5, 1, 0), "round 5 names its users out of order or twice"),
    "half a user": (
        "UPDATE rounds SET participants = X'0100' WHERE round = 5",
        "participants of round 5 are damaged",
    ),
    "round removed": ("DELETE FROM rounds WHERE round = 4", "round 4 is missing"),
    "round past the horizon": (
        "INSERT INTO rounds VALUES (9, 1, 0, 'empty', '{}', X'', X'', X'', X'')",
        "past the horizon",
    ),
    "empty round with users": ("UPDATE rounds SET status = 'empty' WHERE round = 0", "marked empty"),
    "user unknown": (joins(1, 77), "user key 77"),
    "user idle": (newcomers(2, b"ghost\0"), "user 'ghost' is in the ledger without any round"),
    "user with two keys": (newcomers(2, b"a\0"), "user 'a' has two keys"),
    "user without a name": (newcomers(2, b"\0"), "user key 2 has an empty name"),
    "name without an end": (newcomers(1, b"b"), "newcomers of round 1 are damaged"),
    "name that is no text": (newcomers(1, b"\xff\0"), "newcomers of round 1 are damaged: not UTF-8"),
    "name removed": (newcomers(1, b""), "user key 1"),
    "row of another version": ("UPDATE rounds SET version = 2 WHERE round = 3", "row of version 2"),
    "another name": (newcomers(1, b"c\0"), "round 1 is not as it was committed"),
    "another checkpoint": (
        "UPDATE rounds SET checkpoints = replace(checkpoints, 'd', 'e') WHERE round = 6",
        "round 6 is not as it was committed",
    ),
    "another status": ("UPDATE rounds SET status = 'empty' WHERE round = 5", "round 5 is not as"),
    "another user": (joins(7, 0), "round 7 is not as it was committed"),
    "two rounds exchanged": (
        "UPDATE rounds SET participants = X'00000000' WHERE round = 1;"
        "UPDATE rounds SET participants = X'01000000' WHERE round = 0;"
        "UPDATE rounds SET newcomers = X'61006200' WHERE round = 0;"
        "UPDATE rounds SET newcomers = X'' WHERE round = 1",
        "round 0 is not as it was committed",
    ),
    "another chain value": ("UPDATE rounds SET chain = X'00' WHERE round = 8", "round 8 is not as it was"),
}


@pytest.mark.parametrize("case", DOCTORED)
def test_replay_finds_doctored_rows(tmp_path, case):
    statement, message = DOCTORED[case]
    path = tmp_path / "ledger.sqlite"
    with begin(path, SMALL, {}) as ledger:
        ledger.commit_round(0, ["a"], "c", "d")
        ledger.commit_round(1, ["b"], "c", "d")
        for index in range(2, 9):
            ledger.commit_round(index, ["b"] if index == 7 else [], "c", "d")
        ledger.replay()
    tamper(path, statement)
    with Ledger.open(path, read_only=True) as ledger, pytest.raises(LedgerError, match=message) as caught:
        ledger.replay()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "column", ["json = '{\"epsilon\": 2.5}'", "rounds = 8", "min_separation = 2", "chain = X''"]
)
def test_an_altered_header_is_refused_when_opened(tmp_path, column):
    path = tmp_path / "ledger.sqlite"
    Ledger.create(path, SMALL, {"epsilon": 8.0}, KEY).close()
    tamper(path, f"UPDATE header SET {column}")
    with pytest.raises(LedgerError, match=r"the header of ledger .* was altered") as caught:
        go_on(path)
    assert "\n" not in str(caught.value)


def test_a_chain_belongs_to_its_header(tmp_path):
    """The same rounds under another description have other chain values: rows cannot be moved."""
    chains = []
    for name in ("a", "b"):
        with begin(tmp_path / name, SMALL, {"run": name}) as ledger:
            ledger.commit_round(0, ["ann"], "c", "d")
            chains.append(ledger._last()[1])
    assert len(chains[0]) == 32
    assert chains[0] != chains[1]


def test_a_row_with_a_fitting_chain_value_does_not_fit_the_next(tmp_path):
    """Each value covers the one before: to change a row, all later rows must be changed too."""
    path = tmp_path / "ledger.sqlite"
    with begin(path, SMALL, {}) as ledger:
        for index in range(5):
            ledger.commit_round(index, [], "c", "d")
        committed = list(rows(ledger._connection))
        seal, header = ledger._seal, ledger._header_chain
    doctored = committed[2][0]._replace(status="empty")
    chain, mac = seal.sealed(b"round", committed[1][1][0], header, *doctored)
    tamper(path, f"UPDATE rounds SET status = 'empty', chain = X'{chain.hex()}' WHERE round = 2")
    with go_on(path) as ledger, pytest.raises(LedgerError, match=r"round 2 .* not that of the run's key"):
        ledger.replay()
    tamper(path, f"UPDATE rounds SET mac = X'{mac.hex()}' WHERE round = 2")
    with go_on(path) as ledger, pytest.raises(LedgerError, match="round 3 is not as it was committed"):
        ledger.replay()


def test_replay_finds_a_cap_violation_alone(tmp_path):
    path = tmp_path / "ledger.sqlite"
    with begin(path, Participation(9, 2, 3), {}) as ledger:
        for index, users in enumerate((["a"], [], [], ["a"], [], [], [])):
            ledger.commit_round(index, users, "c", "d")
    tamper(path, joins(6, 0))
    with (
        Ledger.open(path, read_only=True) as ledger,
        pytest.raises(
            ParticipationViolation,
            match="user 'a' took part 2 times, last in round 3, and may not in",
        ),
    ):
        ledger.replay()


def test_replay_finds_missing_triggers(tmp_path):
    path = tmp_path / "ledger.sqlite"
    Ledger.create(path, SMALL, {}, KEY).close()
    connection = sqlite3.connect(path)
    connection.execute("DROP TRIGGER rounds_update")
    connection.close()
    with go_on(path) as ledger, pytest.raises(LedgerError, match="rounds_update"):
        ledger.replay()


def test_replay_finds_a_damaged_file(tmp_path):
    path = tmp_path / "ledger.sqlite"
    with begin(path, CONTRACT, {}) as ledger:
        ledger.commit_round(0, [f"user-{index}" for index in range(3000)], "c", "d")
    content = bytearray(path.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 2048] = os.urandom(2048)
    path.write_bytes(content)
    with Ledger.open(path, read_only=True) as ledger, pytest.raises(LedgerError, match=r"damaged|malformed"):
        ledger.replay()


def tamper(path, statement: str) -> None:
    """Change rows as somebody with write access to the file could, leaving the schema as it was."""
    triggers = [line for line in SCHEMA if line.startswith("CREATE TRIGGER")]
    connection = sqlite3.connect(path)
    for trigger in triggers:
        connection.execute("DROP TRIGGER " + trigger.split()[2])
    connection.executescript(statement)
    for trigger in triggers:
        connection.execute(trigger)
    connection.commit()
    connection.close()
