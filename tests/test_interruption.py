"""Signals end a command with one line that says how to go on, and going on works."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from support.streams import sample, write_rows

from fedmf.cli.app import run as fedmf

#: With a file of the name "hold" in its folder it stays in the middle.
CONFIG = """
[task]
kind = "function"
function = "support.sweep_tasks:held"
seed = 1
users = 20
[cohorts]
rounds = 20
users-per-round = 4
min-separation = 5
[privacy]
epsilon = 4.0
[mechanism]
kind = "cgd"
params = "lambda=0.5"
"""
STREAM = (
    "stream --row-level --columns x0,x1,x2 --clip-norm 1 --epsilon 8 --delta 1e-5 --rounds 30"
    " --seed 5"
)


def start(folder: Path, arguments: list[str], **more: object) -> subprocess.Popen[str]:
    """A command as a shell starts it: the leader of a group of processes, all of which get a key
    press.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "fedmf", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        start_new_session=True,
        env={
            **os.environ,
            "PYTHONFAULTHANDLER": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        },
        **more,  # type: ignore[arg-type]
    )


def stop(process: subprocess.Popen[str], number: signal.Signals) -> tuple[int, list[str]]:
    """Exit code and lines of standard error after a signal to the whole group."""
    with process:
        for _ in range(
            20
        ):  # a signal just before a call that waits for a pipe does not end the call
            os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=30)
                break
        else:
            process.send_signal(signal.SIGABRT)  # it says where it hangs
        assert process.stderr is not None
        shown = process.stderr.read()
    assert "Traceback" not in shown, shown
    assert process.returncode >= 0, shown
    return process.returncode, shown.splitlines()


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_run_says_how_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.toml").write_text(CONFIG)
    (tmp_path / "hold").touch()
    process = start(tmp_path, ["simulate", "run.toml", "--out", "a run"])
    wait_for((tmp_path / "held").exists, process)
    got, lines = stop(process, signal.SIGINT)
    assert got == 130, lines
    said = "fedmf: stopped by SIGINT; all finished rounds are kept; continue with: "
    assert lines[-1].startswith(said)
    program, *command = shlex.split(lines[-1].removeprefix(said))
    assert program == "fedmf"
    (tmp_path / "hold").unlink()
    monkeypatch.chdir(tmp_path)
    assert fedmf(command) == 0
    assert "after 20 of 20 rounds" in capsys.readouterr().out


def test_a_stream_goes_on_with_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = write_rows(tmp_path / "rows.csv", sample()).read_text().splitlines(keepends=True)
    command = [*STREAM.split(), "--input", "-", "--output", "out.jsonl", "--state-dir", "state"]
    process = start(tmp_path, command, stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write("".join(rows[:11]))
    process.stdin.flush()
    out = tmp_path / "out.jsonl"
    wait_for(lambda: out.exists() and out.read_bytes().count(b"\n") == 10, process)
    got, lines = stop(process, signal.SIGTERM)
    assert got == 143, lines
    assert (
        lines[-1]
        == "fedmf: stopped by SIGTERM; all finished rows are kept; continue with the same command"
        " and the same rows, or with --from-row and the rows that follow."
    )
    again = start(tmp_path, command, stdin=subprocess.PIPE)
    _, shown = again.communicate("".join(rows), timeout=600)
    assert again.returncode == 0, shown
    whole = [*STREAM.split(), "--input", "rows.csv", "--output", "whole.jsonl"]
    monkeypatch.chdir(tmp_path)
    assert fedmf(whole) == 0
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
