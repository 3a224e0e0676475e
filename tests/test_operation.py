"""Unattended commands: exit codes, logs, and a machine that remembers what it has released."""

from __future__ import annotations

import errno
import io
import json
import shutil
import sqlite3
import sys
from pathlib import Path

import pytest
from support.small_runs import write_config
from support.streams import sample, write_rows

from fedmf.cli.app import run
from fedmf.cli.exit_codes import EXIT_CODES, exit_code
from fedmf.errors import BusyError, ConfigError, LedgerError, ParticipationViolation
from fedmf.streaming import StreamState

COMMAND = str.split(
    "stream --input rows.csv --row-level --columns x0,x1,x2 --clip-norm 1 --epsilon 8 --delta 1e-5"
    " --rounds 30 --state-dir state"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a stream that has taken 10 of 30 rows, and marks of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDMF_MARKS", str(tmp_path / "marks"))
    write_rows(tmp_path / "rows.csv", sample(10))
    assert run([*COMMAND, "--output", "out.csv"]) == 0
    write_rows(tmp_path / "rows.csv", sample(20))
    return tmp_path


def caused_by(error: Exception) -> LedgerError:
    wrapped = LedgerError("a commit failed")
    wrapped.__cause__ = error
    return wrapped


def test_errors_have_the_codes_of_the_table() -> None:
    full = sqlite3.OperationalError("database or disk is full")
    full.sqlite_errorcode = sqlite3.SQLITE_FULL
    codes = {
        ConfigError("x"): 2,
        ImportError("no such package"): 2,
        ParticipationViolation("x"): 3,
        caused_by(ValueError("damaged")): 3,
        caused_by(OSError(errno.ENOSPC, "No space left on device")): 74,
        caused_by(full): 74,
        BusyError("x"): 75,
        RuntimeError("no client"): 1,
    }
    for error, code in codes.items():
        assert exit_code(error) == code, error
    page = (Path(__file__).parents[1] / "docs" / "operations.md").read_text()
    for code, meaning in EXIT_CODES.items():
        assert f"| {code} | {meaning} |" in page


def test_a_live_stream_is_read_and_a_second_one_is_busy(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with StreamState.open(folder / "state"):
        assert run(["account", "state"]) == 0
        assert "steps          10" in capsys.readouterr().out
        assert run([*COMMAND, "--output", "out.csv"]) == 75


def test_releases_that_nobody_got_are_no_success(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", Closed())
        assert run(COMMAND) == 74
    assert "closed by its reader" in capsys.readouterr().err


def test_a_machine_knows_an_older_copy_and_says_what_it_does_not_know(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A machine without a mark warns (FEDMF-2026-13)."""
    shutil.copytree(folder / "state", folder / "copy")
    command = [*COMMAND, "--output", "out.csv"]
    assert run(command) == 0
    shutil.rmtree(folder / "state")
    (folder / "copy").rename(folder / "state")
    assert run(command) == 3
    assert "has no mark" not in caplog.text
    monkeypatch.setenv("FEDMF_MARKS", str(folder / "another machine"))
    assert run(command) == 0
    assert "state: this machine has no mark of it" in caplog.text


def test_a_log_of_json_has_an_object_a_line_and_no_arrivals(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_config(folder / "run.toml")
    capsys.readouterr()
    assert run(["simulate", "run.toml", "--out", "run", "--log-format", "json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    rounds = [line["round"] for line in lines if "seconds" in line]
    assert rounds == list(range(1, 13))
    assert {"time", "round", "rounds", "epsilon", "seconds", "loss", "accuracy"} == set(lines[-1])
    assert json.loads((folder / "run" / "operator.json").read_text())["arrivals"] == [6] * 12
    assert run([*COMMAND, "--log-format", "json", "--epsilon", "9"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["exit_code"] == 2


def test_an_exit_code_survives_a_log_on_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("typer.echo", full)
    assert run(["account", "nowhere"]) == 2
