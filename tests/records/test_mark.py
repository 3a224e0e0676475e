"""How far this machine has seen a run or stream: older copies are refused, and nothing else is stopped."""

from __future__ import annotations

import os
import shutil
import signal
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.child_processes import in_child
from support.directories import commit, create
from support.streams import BUDGET, N, releases, run_once, sample, write_rows

import fedmf
from fedmf.cli.app import run as command
from fedmf.errors import ConfigError, LedgerError
from fedmf.noise import NoiseKey
from fedmf.records import Mark
from fedmf.runs.directory import RunDirectory
from fedmf.streaming.session import account_stream, open_run
from fedmf.streaming.settings import Settings

KEY = NoiseKey(bytes(range(32)))
SETTINGS = Settings(**{**BUDGET, "seed": None}, rounds=N)


@dataclass(frozen=True)
class Opened:
    first_round: int
    fresh: bytes


FIRST, SECOND, OTHER = Opened(0, b"a" * 32), Opened(5, b"b" * 32), Opened(5, b"c" * 32)


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "this"))
    return tmp_path / "this" / "fedmf" / "marks"


def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another machine"))


def matches(openings: list[Opened], released: int) -> bool:
    with Mark.open(KEY) as mark:
        return mark.matches(openings, released)


def note(openings: list[Opened], released: int) -> None:
    with Mark.open(KEY) as mark:
        mark.note(openings, released)


def test_a_record_that_holds_all_that_was_seen_matches() -> None:
    assert matches([], 0)
    assert matches([FIRST], 3)
    note([FIRST], 7)
    assert matches([FIRST], 7)
    assert matches([FIRST, Opened(7, b"d" * 32)], 9)  # continued on another machine
    assert matches([FIRST, Opened(7, b"d" * 32)], 7)  # opened, and stopped before its first round


@pytest.mark.parametrize(
    ("openings", "released"),
    [
        ([FIRST], 4),
        ([FIRST], 5),
        ([FIRST, SECOND], 8),
        ([FIRST, OTHER], 9),  # a copy of round 5 that was continued elsewhere, as far
        ([FIRST, OTHER], 12),  # and further
        ([], 0),
    ],
)
def test_an_older_copy_or_another_branch_does_not(openings: list[Opened], released: int) -> None:
    note([FIRST, SECOND], 9)
    assert not matches(openings, released)
    assert not Mark.look(KEY.fingerprint).matches(openings, released)


def test_the_file_is_for_its_owner_and_holds_no_secret(state: Path) -> None:
    note([FIRST], 100)
    note([FIRST], 3)
    (place,) = state.iterdir()
    assert place.name == KEY.fingerprint
    assert place.stat().st_mode & 0o777 == 0o600
    assert state.stat().st_mode & 0o777 == 0o700
    assert FIRST.fresh.hex().encode() not in place.read_bytes()
    assert Mark.look(KEY.fingerprint).released == 3


@pytest.mark.parametrize(
    "content", [b"{", b"\xff\x00", b"000000000007 \n", b"000000000007 " + b"g" * 64 + b"\n"]
)
def test_a_damaged_mark_is_said_and_stops_nothing(
    state: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    note([FIRST], 7)
    (state / KEY.fingerprint).write_bytes(content)
    assert matches([FIRST], 3)
    (said,) = caplog.records
    assert "cannot tell whether this run is an older copy" in said.getMessage()


def test_a_place_that_cannot_be_written_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    note([FIRST], 7)
    assert "is not writable" in caplog.records[0].getMessage()
    monkeypatch.setenv("XDG_STATE_HOME", "")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    note([FIRST], 7)
    assert matches([], 0)


def test_public_keys_have_none_and_two_copies_are_not_open_at_once(state: Path) -> None:
    with Mark.open(NoiseKey.from_seed(1)) as mark:
        mark.note([FIRST], 7)
    assert not state.exists()
    with Mark.open(KEY), pytest.raises(ConfigError, match="must be the only open copy of the run with key"):
        Mark.open(KEY)


def test_a_killed_process_leaves_what_it_noted() -> None:
    def dying() -> None:
        with Mark.open(KEY) as mark:
            mark.note([FIRST], 7)
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(dying) == -signal.SIGKILL
    assert Mark.look(KEY.fingerprint).released == 7


def committed(path: Path, first: int, stop: int) -> torch.Tensor:
    with RunDirectory.open(path) if path.exists() else create(path) as directory:
        for t in range(first, stop):
            commit(directory, t, float(t))
        return torch.tensor([*directory.ledger.openings()[-1].fresh])


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """Of a run after 2 rounds, which then has 4."""
    committed(tmp_path / "run", 0, 2)
    shutil.copytree(tmp_path / "run", tmp_path / "backup")
    committed(tmp_path / "run", 2, 4)
    return tmp_path / "backup"


def test_a_backup_of_a_run_is_refused_in_one_line(backup: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(LedgerError, match="seen 4 rounds of this run, and this copy holds 2") as caught:
        RunDirectory.open(backup)
    assert str(caught.value).endswith("Continue the newest copy here, or start a new run.")
    assert "\n" not in str(caught.value)
    assert command(["account", str(backup)]) == 0  # whoever reads is told
    assert "behind what this machine has seen" in capsys.readouterr().err
    assert command(["account", str(backup), "--public", str(backup / "public.json")]) == 2
    assert not (backup / "public.json").exists()


def test_a_copy_continues_on_another_machine_and_is_refused_when_it_comes_back(
    backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as other:
        elsewhere(other, tmp_path)
        fresh = committed(backup, 2, 6)
    assert not torch.equal(fresh, committed(tmp_path / "run", 4, 4))
    with pytest.raises(LedgerError, match="this copy was continued elsewhere"):
        RunDirectory.open(backup)


def test_a_run_that_was_continued_elsewhere_may_come_back(
    backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as other:
        elsewhere(other, tmp_path)
        committed(tmp_path / "run", 4, 6)
    RunDirectory.open(tmp_path / "run").close()


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    """A stream with a backup after 10 steps, which then has 20."""
    rows = sample()
    for stop in (10, 20, N):
        write_rows(tmp_path / f"{stop}.csv", rows[:stop])
    run_once(tmp_path, SETTINGS, tmp_path / "10.csv")
    shutil.copytree(tmp_path / "state", tmp_path / "backup")
    run_once(tmp_path, SETTINGS, tmp_path / "20.csv")
    return tmp_path


def put_back(folder: Path) -> None:
    shutil.rmtree(folder / "state")
    shutil.copytree(folder / "backup", folder / "state")


def test_a_backup_of_a_stream_is_refused_and_continues_on_another_machine(
    stream: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = [line["mean"] for line in releases(stream / "out.jsonl")]
    put_back(stream)
    with pytest.raises(LedgerError, match="seen 20 steps of this stream, and this copy holds 10") as caught:
        run_once(stream, SETTINGS, stream / f"{N}.csv")
    assert "\n" not in str(caught.value)
    assert account_stream(stream / "state")["records"]["verdict"] == "behind what this machine has seen"
    with monkeypatch.context() as other:
        elsewhere(other, stream)
        run_once(stream, SETTINGS, stream / f"{N}.csv", output="other.jsonl")
    theirs = [line["mean"] for line in releases(stream / "other.jsonl")]
    assert mine[:10] == theirs[:10]
    assert all(not np.array_equal(a, b) for a, b in zip(mine[10:20], theirs[10:20], strict=True))
    with pytest.raises(LedgerError, match="this copy was continued elsewhere"):
        run_once(stream, SETTINGS, stream / f"{N}.csv", output="other.jsonl")


def test_a_stream_without_a_lasting_state_has_no_mark(tmp_path: Path, state: Path) -> None:
    source = write_rows(tmp_path / "rows.csv", sample())
    with open_run(tmp_path / "state", SETTINGS, source, tmp_path / "out", remembered=False) as (run, reader):
        run.feed(reader)
    assert not state.exists()


def test_a_stream_that_is_pushed_is_refused_too(tmp_path: Path) -> None:
    def opened(name: str) -> fedmf.PrivateStream:
        asked = replace(SETTINGS, rounds=4)
        return fedmf.PrivateStream(
            norm_bound=asked.norm_bound,
            epsilon=asked.epsilon,
            delta=asked.delta,
            rounds=4,
            dimension=2,
            path=tmp_path / name,
        )

    with opened("a") as pushed:
        pushed.push([0.1, 0.2], user="ann")
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        pushed.push([0.1, 0.2], user="bob")
    with pytest.raises(LedgerError, match="seen 2 steps of this stream"), opened("b"):
        pass
