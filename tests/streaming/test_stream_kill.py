"""kill -9 at every write and at random moments: the same output, and nothing seen before it was committed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

#: Its fixture is made once, by one worker.
ROWS, DIMENSION = 17, 2
MODES = ("undisturbed", "writes", "random")
#: A stream dies at every so many-th of its writes, by output.
STRIDES = {
    "some": {"out.jsonl": 3, "out.parquet": 16},
    "all": {"out.jsonl": 1, "out.parquet": 8},
}

# Runs the command in forks of one process, so that its start-up is paid once. argv: folder, stride by output.
# In a folder for each output and mode: "writes": for every m (in strides) a new stream dies at its m-th call
# that changes a file, and another fork ends it. "random": forks of one stream die after random times, the
# last one ends it.
HARNESS = """
import hashlib, json, os, random, shutil, signal, sqlite3, sys, time
import fedmf.streaming.parquet_rows
import fedmf.streaming.run as run_module
from fedmf.cli.app import run
from fedmf.streaming.state.tail import StreamTail
from pathlib import Path
from pyarrow import parquet

folder, strides = sys.argv[1], json.loads(sys.argv[2])
run_module._MOST_DRAWN_ROWS, run_module._MOST_ROWS = 7, 6
options = "--norm-bound 1 --epsilon 8 --delta 1e-5 --seed 3 --user-column user --max-participations 2 "
options += "--min-separation 5 --every 2 --mechanism banded-toeplitz --bands 3 --workload average "
options += "--timestamp time --key order --columns x,y"
command = ["stream", "--input", "../rows.csv", "--state", "state", *options.split()]
os.mkdir(os.path.join(folder, "warm"))
os.chdir(os.path.join(folder, "warm"))
saved = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
assert run([*command, "--rounds", "12", "--output", "out.parquet"]) == 0  # what forks need
sys.stdout.flush()
os.dup2(saved, 1)

def dying(function, countdown):
    def wrapped(*arguments, **more):
        countdown[0] -= 1
        if countdown[0] == 0:
            if function is pwrite:  # half of it is written
                function(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2], *arguments[2:])
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **more)
    return wrapped

pwrite = os.pwrite

class Connection(sqlite3.Connection):
    def execute(self, statement, *values):
        if statement.startswith(("COMMIT", "INSERT")):
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
    except sqlite3.OperationalError:
        return 0
    texts = [commit.row.json for commit in StreamTail(Path("state/state.sqlite").absolute()).commits()]
    return max(json.loads(text)["records"] for text in [text, *texts])

def attempt(kill_at=0, seconds=None):
    global countdown
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if kill_at:
            countdown = [kill_at]
            for name in ("pwrite", "fsync", "fdatasync", "unlink", "replace", "ftruncate"):
                setattr(os, name, dying(getattr(os, name), countdown))
            connect = sqlite3.connect
            sqlite3.connect = lambda *a, **k: connect(*a, **k, factory=Connection)
        os._exit(run([*command, "--rounds", "12", "--output", output]))
    if seconds is not None:
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else None

def report(**more):
    print(json.dumps({"output": output, "mode": mode, **more}), flush=True)

def ended():
    code, files = attempt(), (output, "state/statement.json")
    report(code=code, result=[hashlib.sha256(open(name, "rb").read()).hexdigest() for name in files])

rng = random.Random(1)
for output, stride in strides.items():
    for mode in ("undisturbed", "writes", "random"):
        os.mkdir(os.path.join(folder, mode + "-" + output))
        os.chdir(os.path.join(folder, mode + "-" + output))
        for _ in range(5 if mode == "random" else 0):
            if attempt(seconds=rng.uniform(0.0, 0.1)) is not None:
                break
            report(visible=visible(), committed=committed())
        for m in range(1, 1000 if mode == "writes" else 0, stride):
            if attempt(kill_at=m) is not None:
                break
            report(visible=visible(), committed=committed())
            ended()
            shutil.rmtree("state")
            os.remove(output)
        ended()
"""


def write_input(folder: Path) -> None:
    x = np.random.default_rng(0).normal(size=(ROWS, DIMENSION))
    rows = [f'u{i % 5},{a!r},{b!r},t{i},"a, ""{i}"""' for i, (a, b) in enumerate(x.tolist())]
    (folder / "rows.csv").write_text("user,x,y,time,order\n" + "\n".join(rows) + "\n")


@pytest.fixture(scope="module", params=STRIDES)
def lines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("killed")
    write_input(folder)
    done = subprocess.run(
        [sys.executable, "-c", HARNESS, str(folder), json.dumps(STRIDES[request.param])],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("output", STRIDES["all"])
def test_killed_streams_end_alike(lines: list[dict[str, Any]], output: str) -> None:
    own = [line for line in lines if line["output"] == output]
    ends = {mode: [line for line in own if line["mode"] == mode and "code" in line] for mode in MODES}
    (whole,) = ends["undisturbed"]
    assert whole["code"] == 0
    assert len(ends["writes"]) > 1
    for end in (*ends["writes"], *ends["random"]):
        assert (end["code"], end["result"]) == (0, whole["result"])


def test_nothing_is_seen_before_it_is_committed(lines: list[dict[str, Any]]) -> None:
    """A release that was seen is never made again from other rows: its rows were dealt with."""
    deaths = [line for line in lines if "visible" in line]
    assert {death["committed"] for death in deaths} >= {0, 3, 5}
    assert {death["visible"] for death in deaths} >= {0, 3, 5}
    assert all(death["visible"] <= death["committed"] for death in deaths)
