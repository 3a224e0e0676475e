"""What two versions of the package write for the same runs and streams, compared on one machine.

    python simulations/recorder.py --before ../old-checkout             # this tree against another
    python simulations/recorder.py --before ../old-checkout --only jme

The oracle of a rebuilding: ledger rows and chains, released models, statements, evidence, configurations and
tables must be equal to the bit. The samples of tests/samples (every feature on and off, all kinds of cohorts,
a wrapped Flower app, streams) and a few combinations are carried out by each version in a process of its own,
in which the operating system's random bits are always the same. This tree does it twice: what differs between
its own two records (times) is not compared, and counted. Nothing of this is kept.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from samples.make import RUNS, SMALL, STREAMS  # noqa: E402  # pyright: ignore[reportMissingImports]

#: Beyond the samples: every engine and message mode, and features together.
FURTHER: dict[str, dict[str, Any]] = {
    "loop": {"local.engine": "loop"},
    "vectorised": {"local.engine": "vectorised"},
    "per-user messages": {"execution.messages": "per-user"},
    "several users a message": {"execution.messages": "per-user", "execution.users-per-message": 3},
    "quantile clipping, adam": {"clipping.kind": "quantile", "optimizer.kind": "adam"},
}

#: Apps of Flower, wrapped, by what they have beside the plain one.
WRAPPED: dict[str, list[str]] = {
    "wrapper": [],
    "wrapper, quantile clipping": ["quantile clipping"],
    "wrapper, stopped": ["stopped", "quantile clipping"],
}

#: A driver in the version's own process: random bits and the clock stand still, then each command in turn.
_DRIVER = """
import contextlib, io, json, os, random, runpy, secrets, sys, tempfile, traceback, warnings
warnings.simplefilter("ignore")
os.urandom = lambda count: bytes(i * 37 % 256 for i in range(count))
secrets.token_bytes = lambda count=32: os.urandom(count)
import torch
torch.set_num_threads(1)
def command(arguments):
    out, sys.argv = io.StringIO(), ["fedmf", *arguments]
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            runpy.run_module("fedmf", run_name="__main__", alter_sys=False)
        except SystemExit as ended:
            code = ended.code or 0
        except BaseException:
            traceback.print_exc()
            code = "traceback"
    return {"code": code, "out": out.getvalue(), "err": err.getvalue() if code else ""}
def wrapped(tests, folder, features):
    sys.path.insert(0, tests)
    import support.wrapped_apps as apps
    from pathlib import Path
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAdam
    from fedmf.flower import UsersSayWho, run_app
    from fedmf.parts import QuantileClipping
    keys = {
        "quantile clipping": {"adaptive_clipping": QuantileClipping(quantile=0.3, rounds_per_update=1)},
    }
    def part(rounds):
        server = ServerApp()
        @server.main()
        def main(grid, context):
            chosen = dict(item for feature in features for item in keys.get(feature, {}).items())
            if "stopped" in features:
                chosen["identity"] = UsersSayWho(apps.ROSTER)
            private = apps.private(FedAdam(), Path(folder), **chosen)
            private.start(grid=grid, initial_arrays=apps.model(), num_rounds=rounds)
            private.close()
        app = apps.saying if "stopped" in features else apps.adding
        client = app(lambda user, context: apps.update_of(user))
        run_app(server, client, num_supernodes=12)
    for rounds in ((2, 6) if "stopped" in features else (6,)):
        part(rounds)
    return {"code": 0, "out": "", "err": ""}
for line in sys.stdin:
    todo = json.loads(line)
    try:
        said = command(todo["command"]) if "command" in todo else wrapped(*todo["wrapped"])
    except BaseException:
        said = {"code": "traceback", "out": "", "err": traceback.format_exc()}
    print(json.dumps(said), file=sys.__stdout__, flush=True)
"""


class Version:
    """A checkout and the process that carries commands out with it.

    Args:
        tree: of the checkout.
        folder: where its runs go.
    """

    def __init__(self, tree: Path, folder: Path) -> None:
        self.tree, self.folder = tree, folder
        folder.mkdir(parents=True)
        environment = {
            **os.environ,
            "PYTHONPATH": str(tree),
            "XDG_STATE_HOME": str(folder / "state"),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "100",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-c", _DRIVER],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def says(self, **todo: Any) -> dict[str, Any]:
        """What the process answers to a command, or to a wrapped app that it is to run."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(todo) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End it."""
        self._process.communicate()

    def run(self, name: str, keys: dict[str, Any]) -> dict[str, str]:
        """A run, its statement and its model."""
        sets = [f"--set={key}={_toml(value)}" for key, value in keys.items() if value is not None]
        (self.folder / "empty.toml").write_text("[data]\nkind = 'synthetic'\n")
        facts = self._command("simulate", "simulate", "empty.toml", *sets, "--out", name)
        facts |= self._read(name)
        facts |= self._command("export", "export", name, "--output", f"{name}.safetensors")
        return facts | _contents(self.folder / f"{name}.safetensors", "model")

    def wrapped(self, name: str, features: list[str]) -> dict[str, str]:
        """A wrapped Flower app."""
        said = self.says(wrapped=[str(self.tree / "tests"), str(self.folder / name), features])
        return {"wrapper/code": str(said["code"]), "wrapper/error": said["err"]} | self._read(name)

    def stream(self, name: str, options: list[str]) -> dict[str, str]:
        """A stream of 20 rows, its output and its statement."""
        import numpy as np

        users = "--user-column" in options
        rng = np.random.default_rng(0)
        rows = [
            f"{x:.6f},{y:.6f}" + f",u{t % 6}" * users
            for t, (x, y) in enumerate(rng.normal(0.3, 0.2, (20, 2)))
        ]
        (self.folder / f"{name}.csv").write_text("\n".join(["speed,load" + ",user" * users, *rows]) + "\n")
        whole = ["--rounds", "20"]
        base = ["--norm-bound", "1", "--epsilon", "8", "--delta", "1e-5", *whole, "--seed", "7", *options]
        base += ["--columns", "speed,load", *([] if users else ["--each-row-a-user"])]
        facts = self._command("stream", "stream", "--input", f"{name}.csv", "--state", name, *base)
        return facts | self._read(name)

    def _command(self, what: str, *arguments: str) -> dict[str, str]:
        said = self.says(command=arguments)
        lines = {f"{what}/line {i}": line for i, line in enumerate(said["out"].splitlines())}
        return lines | {f"{what}/code": str(said["code"]), f"{what}/error": said["err"]}

    def _read(self, name: str) -> dict[str, str]:
        facts = dict[str, str]()
        for file in sorted(p for p in (self.folder / name).rglob("*") if p.is_file()):
            facts |= _contents(file, str(file.relative_to(self.folder / name)))
        facts |= self._command("account", "account", name, "--full")
        said = self.says(command=["account", name, "--json"])
        return facts | dict(_leaves("account", json.loads(said["out"] or "null")))


def _toml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _contents(path: Path, name: str) -> dict[str, str]:
    """A file's facts, as finely as its kind allows: a difference has a place."""
    if not path.exists():
        return {name: "missing"}
    if path.suffix == ".sqlite":
        return dict(_rows(path, name))
    if path.suffix == ".json":
        return dict(_leaves(name, json.loads(path.read_text())))
    if path.suffix == ".parquet":
        import pyarrow.parquet

        return dict(_leaves(name, pyarrow.parquet.read_table(path).to_pydict()))
    if path.suffix in {".toml", ".txt", ".jsonl", ".key", ".html"}:
        return {f"{name}/line {i}": line for i, line in enumerate(path.read_text().splitlines())}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest()}


def _rows(path: Path, name: str) -> Iterator[tuple[str, str]]:
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall()
    for (table,) in tables:
        rows = database.execute(f'SELECT * FROM "{table}"')
        columns = [column[0] for column in rows.description]
        for i, row in enumerate(rows):
            for column, value in zip(columns, row, strict=True):
                shown = hashlib.sha256(value).hexdigest() if isinstance(value, bytes) else repr(value)
                yield f"{name}/{table}/{i}/{column}", shown
    database.close()


def _leaves(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(f"{name}/{key}", item)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _leaves(f"{name}/{i}", item)
    else:
        yield name, repr(value)


def subjects() -> dict[str, tuple[str, Any]]:
    """What is carried out, by name: how, and with what."""
    runs = {name: ("run", {**SMALL, **keys}) for name, keys in {**RUNS, **FURTHER}.items()}
    streams = {name: ("stream", options) for name, options in STREAMS.items()}
    apps = {name: ("wrapped", features) for name, features in WRAPPED.items()}
    return {**runs, **streams, **apps}


def record(version: Version, name: str, how: str, what: Any) -> dict[str, str]:
    """The facts of a subject under a version."""
    place = name.replace(",", "").replace(" ", "-")
    return getattr(version, how)(place, what)


def main() -> int:
    """Carry out, compare, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, required=True, help="checkout of the other version")
    parser.add_argument("--only", default="", help="subjects whose name holds this")
    parser.add_argument("--show", type=int, default=5, help="differences shown of each subject")
    parser.add_argument(
        "--except", dest="left_out", action="append", default=[], help="a part of the names of facts"
    )
    given = parser.parse_args()
    chosen = {name: todo for name, todo in subjects().items() if given.only in name}
    different = 0
    with tempfile.TemporaryDirectory(prefix="recorder-") as scratch:
        trees = {"before": given.before.resolve(), "after": ROOT, "again": ROOT}
        versions = {name: Version(tree, Path(scratch) / name) for name, tree in trees.items()}
        with ThreadPoolExecutor(len(versions)) as pool:
            for name, (how, what) in chosen.items():
                before, after, again = pool.map(
                    lambda version, how=how, what=what, name=name: record(version, name, how, what),
                    versions.values(),
                )
                moving = {fact for fact in after.keys() | again.keys() if after.get(fact) != again.get(fact)}
                wrong = sorted(
                    fact
                    for fact in (before.keys() | after.keys()) - moving
                    if before.get(fact) != after.get(fact)
                    and not any(part in fact for part in given.left_out)
                )
                kinds = Counter(fact.split("/")[0] for fact in moving)
                print(
                    f"{name:48s} {len(after) - len(moving):6d} compared, {len(wrong):4d} differ; moving: "
                    + ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())),
                    flush=True,
                )
                for fact in wrong[: given.show]:
                    print(
                        f"    {fact}: {before.get(fact, 'absent')!s:.60} -> {after.get(fact, 'absent')!s:.60}"
                    )
                ended = [
                    f"{fact}: {after[fact]}"
                    for fact in after
                    if fact.endswith("/code") and after[fact] != "0"
                ]
                if ended:
                    print("    did not end well:", ", ".join(ended), after.get("simulate/error", "")[-300:])
                different += len(wrong)
        for version in versions.values():
            version.close()
    print(f"{len(chosen)} subjects, {different} differences")
    return int(different > 0)


if __name__ == "__main__":
    raise SystemExit(main())
