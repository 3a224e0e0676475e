# ruff: noqa: E501
"""Make the sample directories of a release's records: run by hand, once a release, with that release.

    python tests/samples/make.py tests/samples/header-7

(`header-6` is of 0.1.0, in which `fedmf.start(run, path)` was `run.start(path)` and `run_in_process` in `fedmf.flower`.)
Each sample is a directory as a killed process left it (`NAME.tar.xz`), what its statement says there, and, if
the run can go on, what it says and which model it has at its end. `test_samples.py` reads them with every
later version.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

SMALL = {
    "data.kind": "synthetic",
    "data.users": 24,
    "data.features": 6,
    "data.examples-per-user": 3,
    "model.kind": "mlp",
    "model.hidden-units": "5",
    "cohorts.rounds": 12,
    "cohorts.size": 6,
    "privacy.epsilon": 8.0,
    "privacy.delta": 1e-5,
    "privacy.noise-seed": 7,
    "execution.evaluate-every": 4,
    "mechanism.kind": "bisr",
    "mechanism.bands": 3,
}

#: Keys beyond `SMALL`, by sample; a value of None takes a key away.
RUNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "secret-key": {"privacy.noise-seed": None},
    "random-cohorts": {"cohorts.kind": "random", "mechanism.kind": "banded-toeplitz"},
    "cyclic-poisson": {"cohorts.kind": "cyclic-poisson", "mechanism.kind": "banded", "privacy.amplified": True},
    "balls-in-bins": {"cohorts.kind": "balls-in-bins", "mechanism.kind": "cgd", "mechanism.bands": None, "privacy.amplified": True},
    "b-min-sep": {"cohorts.kind": "b-min-sep", "cohorts.min-separation": 3, "mechanism.kind": "banded-toeplitz", "privacy.amplified": True},
    "available": {"cohorts.kind": "available", "cohorts.size": 3},
    "jme-adam": {"optimizer.kind": "jme-adam", "local.engine": "vectorised", "optimizer.relative-epsilon": 1.0},
    "jme-adam-blocks": {"optimizer.kind": "jme-adam", "optimizer.blocks": "channel", "local.engine": "vectorised", "optimizer.relative-epsilon": 1.0},
    "adam": {"optimizer.kind": "adam"},
    "quantile-clipping": {"clipping.kind": "quantile"},
    "replace-one": {"privacy.adjacency": "replace-one", "mechanism.kind": "blt", "mechanism.bands": None},
    "sparse-checkpoints": {"execution.checkpoint-every": 3},
    "example-level": {"privacy.kind": "example-level", "data.kind": "digits", "data.partition": "each-example", "data.users": 1438, "data.features": None, "data.examples-per-user": None, "cohorts.size": 40, "local.batch-size": 1},
    "no-noise": {"privacy.kind": "none", "privacy.epsilon": None, "privacy.delta": None, "privacy.noise-seed": None},
}  # fmt: skip

STREAMS: dict[str, list[str]] = {
    "stream-jme": [],
    "stream-users": ["--user-column", "user", "--max-participations", "3", "--min-separation", "4"],
    "stream-exponential": ["--workload", "exponential:0.9", "--method", "ime"],
    "stream-window": ["--workload", "window:8", "--method", "cs"],
    "stream-replace-one": ["--adjacency", "replace-one", "--method", "pp"],
    "stream-diagonal": ["--second", "diagonal", "--every", "3"],
}

_RUN = """
import json, os, sys
import fedmf
from fedmf.runs import run_of
from fedmf.rounds import run_in_process
keys, path, rounds = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
run = run_of(keys)
def stop(report, row):
    if report.t + 1 == rounds:
        os._exit(9)
with fedmf.start(run, path) as session:
    run_in_process(session, stop)
"""


def fedmf(*arguments: str) -> str:
    """What the command prints."""
    call = [sys.executable, "-m", "fedmf", *arguments]
    return subprocess.run(call, check=True, capture_output=True, text=True).stdout


def packed(folder: Path) -> bytes:
    """A folder as .tar.xz."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz") as archive:
        archive.add(folder, arcname=".")
    return buffer.getvalue()


def model_of(folder: Path, scratch: Path) -> list[float]:
    """The released model, flat."""
    from safetensors.numpy import load_file

    fedmf("export", str(folder), "--output", str(scratch / "model.safetensors"))
    arrays = load_file(scratch / "model.safetensors")
    return [float(x) for name in sorted(arrays) for x in arrays[name].reshape(-1)]


_WRAPPED = """
import os, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam
from support.wrapped_apps import adding, model, private, update_of
from fedmf.flower import run_app
path, last = Path(sys.argv[2]), int(sys.argv[3])
server = ServerApp()
def look(t, arrays):
    if t == last:
        os._exit(9)
@server.main()
def main(grid: Grid, context: Context) -> None:
    private(FedAdam(), path).start(grid=grid, initial_arrays=model(), num_rounds=6, evaluate_fn=look)
run_app(server, adding(lambda user, context: update_of(user)), num_supernodes=12)
"""


def make_wrapped(name: str, out: Path, scratch: Path) -> None:
    """A Flower app's run that was killed after 3 of its 6 rounds; virtual nodes cannot go on."""
    folder, tests = scratch / name, str(Path(__file__).resolve().parents[1])
    done = subprocess.run(
        [sys.executable, "-c", _WRAPPED, tests, str(folder), "3"], capture_output=True, text=True
    )
    if done.returncode != 9:
        raise SystemExit(f"{name}: {done.stderr[-2000:]}")
    (out / f"{name}.tar.xz").write_bytes(packed(folder))
    expected = {"stopped": json.loads(fedmf("account", str(folder), "--json"))}
    (out / f"{name}.json").write_text(json.dumps(expected, separators=(",", ":")))


def make_sweep(name: str, out: Path, scratch: Path) -> None:
    """A finished sweep of four runs."""
    folder, tables = scratch / name, dict[str, list[str]]()
    for key, value in {**SMALL, "cohorts.rounds": 4, "cohorts.min-separation": 2}.items():
        table, _, last = key.partition(".")
        if key != "privacy.noise-seed":
            tables.setdefault(table, [f"[{table}]"]).append(f"{last} = {json.dumps(value)}")
    (scratch / "base.toml").write_text("\n".join(line for lines in tables.values() for line in lines))
    (scratch / "sweep.toml").write_text(
        'base = "base.toml"\nbaseline = "identity"\nmetric = "accuracy"\nseeds = [0, 1]\n'
        "[variants]\n"
        'identity = { mechanism.kind = "identity" }\n'
        '"bisr p=2" = { mechanism.kind = "bisr", mechanism.bands = 2 }\n'
    )
    fedmf("sweep", str(scratch / "sweep.toml"), "--out", str(folder))
    (out / f"{name}.tar.xz").write_bytes(packed(folder))
    files = {file: (scratch / file).read_text() for file in ("base.toml", "sweep.toml")}
    (out / f"{name}.json").write_text(json.dumps({"files": files, "table": "table.md"}))


def make_run(name: str, keys: dict[str, Any], out: Path, scratch: Path) -> None:
    """A run that was killed after 7 of its rounds."""
    values = {key: value for key, value in {**SMALL, **keys}.items() if value is not None}
    folder = scratch / name
    call = [sys.executable, "-c", _RUN, json.dumps(values), str(folder), "7"]
    done = subprocess.run(call, capture_output=True, text=True)
    if done.returncode != 9:
        raise SystemExit(f"{name}: {done.stderr[-2000:]}")
    (out / f"{name}.tar.xz").write_bytes(packed(folder))
    expected: dict[str, Any] = {
        "keys": values,
        "stopped": json.loads(fedmf("account", str(folder), "--json")),
    }
    fedmf("simulate", "--resume", str(folder))
    expected["ended"] = json.loads(fedmf("account", str(folder), "--json"))
    if "privacy.noise-seed" in values:
        expected["model"] = model_of(folder, scratch)
        (scratch / "model.safetensors").unlink()
    (out / f"{name}.json").write_text(json.dumps(expected, separators=(",", ":")))


def make_stream(name: str, options: list[str], out: Path, scratch: Path) -> None:
    """A stream that ended after 12 of its 20 rows; the rest goes on."""
    import numpy as np

    rng = np.random.default_rng(0)
    rows = [f"{x:.6f},{y:.6f},u{t % 6}" for t, (x, y) in enumerate(rng.normal(0.3, 0.2, (20, 2)))]
    if "--user-column" not in options:
        rows = [row.rsplit(",", 1)[0] for row in rows]
    header = "speed,load" + (",user" if "--user-column" in options else "")
    folder = scratch / name
    input_file = scratch / f"{name}.csv"
    whole = [] if "--unbounded" in options else ["--rounds", "20"]
    base = ["--norm-bound", "1", "--epsilon", "8", "--delta", "1e-5", *whole, "--seed", "7", *options]
    base += ["--columns", "speed,load", *([] if "--user-column" in options else ["--each-row-a-user"])]
    input_file.write_text("\n".join([header, *rows[:12]]) + "\n")
    first = fedmf("stream", "--input", str(input_file), "--state", str(folder), *base)
    (out / f"{name}.tar.xz").write_bytes(packed(folder))
    stopped = json.loads(fedmf("account", str(folder), "--json"))
    input_file.write_text("\n".join([header, *rows]) + "\n")
    second = fedmf("stream", "--input", str(input_file), "--state", str(folder), *base)
    expected = {
        "options": base,
        "input": [header, *rows],
        "stopped": stopped,
        "first": first,
        "second": second,
    }
    expected["ended"] = json.loads(fedmf("account", str(folder), "--json"))
    (out / f"{name}.json").write_text(json.dumps(expected, separators=(",", ":")))


def fields_of_today() -> dict[str, dict[str, dict[str, bool]]]:
    """By place in a run and kind of value: each field, and whether records of before may lack it."""
    from fedmf.data import DATASETS
    from fedmf.models import MODELS
    from fedmf.runs.run import _KINDS

    return {
        place: {
            kind: {field.name: bool(field.metadata) for field in dataclasses.fields(value)}
            for kind, value in kinds.items()
        }
        for place, kinds in {**_KINDS, "data": DATASETS, "model": MODELS}.items()
    }


def main() -> None:
    """Make all samples, or those named; and the fields that records of this version have."""
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    fields = {
        place: {kind: [*names] for kind, names in kinds.items()} for place, kinds in fields_of_today().items()
    }
    out.with_name("fields.json").write_text(json.dumps(fields, indent=1) + "\n")
    os.environ.setdefault("XDG_STATE_HOME", tempfile.mkdtemp())
    for name, keys in RUNS.items():
        if len(sys.argv) == 2 or name in sys.argv[2:]:
            with tempfile.TemporaryDirectory() as scratch:
                make_run(name, keys, out, Path(scratch))
                print(name, flush=True)
    for name, make in (("wrapper", make_wrapped), ("sweep", make_sweep)):
        if len(sys.argv) == 2 or name in sys.argv[2:]:
            with tempfile.TemporaryDirectory() as scratch:
                make(name, out, Path(scratch))
                print(name, flush=True)
    for name, options in STREAMS.items():
        if len(sys.argv) == 2 or name in sys.argv[2:]:
            with tempfile.TemporaryDirectory() as scratch:
                make_stream(name, options, out, Path(scratch))
                print(name, flush=True)


if __name__ == "__main__":
    main()
