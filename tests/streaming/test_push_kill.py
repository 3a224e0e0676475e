"""kill -9 at every write of a service that pushes: each row released once, and told again bit for bit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# Forks of one process, so that its start-up is paid once. argv: folder, seed, stride. For every m of these
# a new stream dies at its m-th call that changes a file or answers the client, which is a pipe; another fork
# ends it, with the same rows and keys from the first on.
HARNESS = """
import json, os, shutil, signal, sqlite3, sys
from fedmf import PrivateStream
folder, seed = sys.argv[1], json.loads(sys.argv[2])
ROWS = [("ann", [0.1, 0.2]), ("bob", [0.3, -0.2]), ("ann", [0.0, 0.5]), ("cid", [float("nan"), 0.5])]
pwrite = os.pwrite

def serve(say):
    with PrivateStream("state", epsilon=8, delta=1e-5, norm_bound=1, dimension=2, rounds=4, seed=seed,
                       bands=2, max_participations=2, min_separation=2) as stream:
        say({"t": stream.t})
        for number, (user, row) in enumerate(ROWS):
            say(stream.push(row, user=user, key=f"row {number}").to_dict())

def dying(function, countdown):
    def wrapped(*arguments, **more):
        countdown[0] -= 1
        if countdown[0] == 0:
            if function is pwrite:  # half of it is written
                function(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2], *arguments[2:])
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **more)
    return wrapped

class Connection(sqlite3.Connection):
    def execute(self, statement, *values):
        if statement.startswith(("COMMIT", "INSERT")):
            countdown[0] -= 1
            if countdown[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().execute(statement, *values)

def attempt(kill_at=0):
    global countdown
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        if kill_at:
            countdown = [kill_at]
            for name in ("pwrite", "fsync", "fdatasync", "unlink", "replace", "write"):
                setattr(os, name, dying(getattr(os, name), countdown))
            connect = sqlite3.connect
            sqlite3.connect = lambda *a, **k: connect(*a, **k, factory=Connection)
        serve(lambda answer: os.write(writing, json.dumps(answer).encode() + b"\\n"))
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        told = [json.loads(line) for line in pipe]
    _, status = os.waitpid(pid, 0)
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else None, told

os.mkdir(os.path.join(folder, "warm"))
os.chdir(os.path.join(folder, "warm"))
serve(lambda answer: None)  # imports and compiles here what every fork needs
os.chdir(folder)
for m in range(1, 1000, int(sys.argv[3])):
    code, told = attempt(m)
    then, whole = attempt()
    print(json.dumps({"code": code, "told": told, "then": then, "whole": whole}), flush=True)
    shutil.rmtree("state")
    if code is not None:
        break
"""


@pytest.mark.parametrize(
    ("seed", "stride"),
    [(None, 3), (None, 1), (3, 3)],
    ids=["secret", "secret, every write", "public, every third write"],
)
def test_a_killed_service_tells_each_release_again(tmp_path: Path, seed: int | None, stride: int) -> None:
    """With a secret key another noise would show at once, with a public one another row would."""
    done = subprocess.run(
        [sys.executable, "-c", HARNESS, str(tmp_path), json.dumps(seed), str(stride)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    tries: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    *killed, whole = tries
    assert whole["code"] == 0
    assert len(killed) > 50 / stride
    unseen = 0
    for one in killed:
        assert (one["code"], one["then"]) == (None, 0)
        (begin, *releases), told = one["whole"], one["told"][1:]
        assert [release["t"] for release in releases] == [1, 2, 3, 4]
        assert releases[: len(told)] == told  # what a client saw stays, bit for bit
        assert begin["t"] >= len(told)
        unseen += begin["t"] > len(told)
        if seed is not None:
            assert releases == whole["told"][1:]
    assert unseen >= 4 // stride  # deaths between the commit of a release and its answer
    assert whole["whole"] == [{"t": 4}, *whole["told"][1:]]
