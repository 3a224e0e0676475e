"""Signals end a command with one line that says how to go on, and going on works."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.streams import sample, write_rows

CONFIG = """
[data]
kind = "synthetic"
users = 40
[cohorts]
rounds = 200
size = 4
min-separation = 5
[privacy]
epsilon = 4.0
[mechanism]
kind = "cgd"
lambda = 0.5
"""
STREAM = "stream --norm-bound 1 --epsilon 8 --delta 1e-5 --rounds 30 --seed 5"
SIGNALS = pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)


def start(folder: Path, arguments: list[str], **more: object) -> subprocess.Popen[str]:
    """A command as a shell starts it: the leader of a group of processes, all of which get a key press."""
    return subprocess.Popen(
        [sys.executable, "-m", "fedmf", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        start_new_session=True,
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},
        **more,  # type: ignore[arg-type]
    )


def stop(process: subprocess.Popen[str], number: signal.Signals) -> tuple[int, list[str]]:
    """Exit code and lines of standard error after a signal to the whole group."""
    os.killpg(process.pid, number)
    with process:
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # it says where it hangs
        assert process.stderr is not None
        shown = process.stderr.read()
    assert "Traceback" not in shown, shown
    assert process.returncode >= 0, shown
    return process.returncode, shown.splitlines()


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


@SIGNALS
def test_a_run_says_how_to_resume(tmp_path: Path, number: signal.Signals, code: int) -> None:
    (tmp_path / "run.toml").write_text(CONFIG)
    process = start(tmp_path, ["simulate", "run.toml", "--out", "a run"])
    wait_for(lambda: (tmp_path / "a run").is_dir() and len(list((tmp_path / "a run").iterdir())) > 3, process)
    time.sleep(0.3)
    got, lines = stop(process, number)
    assert got == code, lines
    said = f"fedmf: stopped by {number.name}; every finished round is kept, go on with: "
    assert lines[-1].startswith(said)
    program, *command = shlex.split(lines[-1].removeprefix(said))
    assert program == "fedmf"
    again = start(tmp_path, command)
    out, shown = again.communicate(timeout=240)
    assert again.returncode == 0, shown
    assert "after 200 rounds" in out


def test_a_run_that_was_not_begun_says_so(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(CONFIG)
    os.mkfifo(tmp_path / "late.toml")  # reading it waits
    process = start(tmp_path, ["simulate", "late.toml", "--out", "run"])
    time.sleep(2.0)
    got, lines = stop(process, signal.SIGINT)
    assert (got, lines) == (
        130,
        ["fedmf: stopped by SIGINT; nothing is to be gone on with: give the command again."],
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143)], ids=["SIGTERM"])
def test_a_stream_goes_on_with_the_same_command(tmp_path: Path, number: signal.Signals, code: int) -> None:
    rows = write_rows(tmp_path / "rows.csv", sample()).read_text().splitlines(keepends=True)
    command = [*STREAM.split(), "--input", "-", "--output", "out.jsonl", "--state", "state"]
    process = start(tmp_path, command, stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write("".join(rows[:11]))
    process.stdin.flush()
    out = tmp_path / "out.jsonl"
    wait_for(lambda: out.exists() and out.read_bytes().count(b"\n") == 10, process)
    got, lines = stop(process, number)
    assert got == code, lines
    assert lines[-1] == (
        f"fedmf: stopped by {number.name}; every finished row is kept, go on with the same command and the "
        "same rows, or with --from-row and those that follow."
    )
    again = start(tmp_path, command, stdin=subprocess.PIPE)
    _, shown = again.communicate("".join(rows), timeout=120)
    assert again.returncode == 0, shown
    whole = [*STREAM.split(), "--input", "rows.csv", "--output", "whole.jsonl"]
    undisturbed = start(tmp_path, whole)
    _, shown = undisturbed.communicate(timeout=120)
    assert undisturbed.returncode == 0, shown
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_a_stream_without_state_says_that_it_cannot_go_on(tmp_path: Path) -> None:
    process = start(tmp_path, [*STREAM.split(), "--input", "-"], stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write("a,b\n1,2\n")
    process.stdin.flush()
    assert process.stdout is not None
    assert process.stdout.readline().startswith("{")
    assert stop(process, signal.SIGINT) == (
        130,
        [
            "fedmf: stopped by SIGINT; without --state a stream cannot go on: its key is gone, and what it "
            "released stays released."
        ],
    )
