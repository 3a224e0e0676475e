"""kill -9 at every write and at random moments: the same output, and nothing seen before it was committed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROWS, DIMENSION = 17, 2

# Runs the command in forks of one process, so that its start-up is paid once. argv: folder, output, mode.
# "writes": for every m (in strides) a new stream dies at its m-th call that changes a file, and another
# fork ends it.
# "random": forks of one stream die after random times, the last one ends it.
HARNESS = """
import hashlib, json, os, random, shutil, signal, sqlite3, sys, time
folder, output, mode = sys.argv[1:4]
import fedmf.streaming.parquet_rows, fedmf.streaming.run as run_module
from fedmf.cli.app import run
from pyarrow import parquet
run_module._MOST_ROWS = 6
options = "--norm-bound 1 --epsilon 8 --delta 1e-5 --seed 3 --user-column user --max-participations 2 "
options += "--min-separation 5 --every 2 --mechanism banded-toeplitz --bands 3 --workload average"
command = ["stream", "--input", "rows.csv", "--rounds", "12", "--state", "state", "--output", output]
command += options.split()

os.chdir(folder)
warm = ["warm" if word == "state" else "warm-" + output if word == output else word for word in command]
saved = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
assert run(warm) == 0  # imports and compiles here what every fork needs
sys.stdout.flush()
os.dup2(saved, 1)

def dying(function, countdown):
    def wrapped(*arguments, **more):
        countdown[0] -= 1
        if countdown[0] == 0:
            if function is os.pwrite:  # half of it is written
                function(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2], *arguments[2:])
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **more)
    return wrapped

class Connection(sqlite3.Connection):
    def execute(self, statement, *values):
        if statement.startswith(("COMMIT", "UPDATE")):
            countdown[0] -= 1
            if countdown[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().execute(statement, *values)

def visible():
    if output.endswith(".parquet"):
        return len(parquet.read_table(output)) if os.path.exists(output) else 0
    try:
        return open(output, "rb").read().count(b"\\n")
    except FileNotFoundError:
        return 0

def committed():
    try:
        connection = sqlite3.connect("file:state/state.sqlite?mode=rw", uri=True)
        (text,) = connection.execute("SELECT json FROM position").fetchone()
        connection.close()
        return json.loads(text)["records"]
    except sqlite3.OperationalError:
        return 0

def attempt(kill_at=0, seconds=None):
    global countdown
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if kill_at:
            countdown = [kill_at]
            for name in ("pwrite", "fsync", "replace", "ftruncate"):
                setattr(os, name, dying(getattr(os, name), countdown))
            connect = sqlite3.connect
            sqlite3.connect = lambda *a, **k: connect(*a, **k, factory=Connection)
        os._exit(run(command))
    if seconds is not None:
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else None

def report(**more):
    print(json.dumps({"visible": visible(), "committed": committed(), **more}), flush=True)

def result():
    files = (output, "state/statement.json")
    return [hashlib.sha256(open(name, "rb").read()).hexdigest() for name in files]

rng, died = random.Random(1), 0
if mode == "random":
    while died < 5:
        if attempt(seconds=rng.uniform(0.0, 0.1)) is not None:
            break
        died += 1
        report()
elif mode == "writes":
    for m in range(1, 1000, int(sys.argv[4])):
        if attempt(kill_at=m) is not None:
            break
        report(m=m)
        print(json.dumps({"code": attempt(), "result": result()}), flush=True)
        shutil.rmtree("state")
        os.remove(output)
print(json.dumps({"code": attempt(), "result": result()}))
"""


def write_input(folder: Path) -> None:
    x = np.random.default_rng(0).normal(size=(ROWS, DIMENSION))
    rows = [f"u{i % 5},{a!r},{b!r}" for i, (a, b) in enumerate(x.tolist())]
    (folder / "rows.csv").write_text("user,x,y\n" + "\n".join(rows) + "\n")


def harness(folder: Path, output: str, mode: str, stride: int) -> list[dict[str, Any]]:
    write_input(folder)
    done = subprocess.run(
        [sys.executable, "-c", HARNESS, str(folder), output, mode, str(stride)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(("output", "stride"), [("out.jsonl", 1), ("out.parquet", 4)])
def test_killed_streams_end_alike(tmp_path: Path, output: str, stride: int) -> None:
    found = {}
    for mode in ("undisturbed", "writes", "random"):
        folder = tmp_path / mode
        folder.mkdir()
        found[mode] = harness(folder, output, mode, stride)
    (whole,) = found["undisturbed"]
    assert whole["code"] == 0
    ends = [line for lines in found.values() for line in lines if "code" in line]
    assert all(end == whole for end in ends)
    deaths = {mode: [line for line in lines if "code" not in line] for mode, lines in found.items()}
    assert len(deaths["writes"]) >= 30 // stride
    assert len(deaths["random"]) >= 1
    assert {death["committed"] for death in deaths["writes"]} >= {0, 3, 5}
    # A release that was seen can never be made again from other rows.
    assert all(death["visible"] <= death["committed"] for death in (*deaths["writes"], *deaths["random"]))
