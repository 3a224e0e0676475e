"""Compare two versions of fedmf: the same public-seed runs and streams, carried out by both.

    python simulations/recorder.py --before ../old-checkout             # this tree against another
    python simulations/recorder.py --before ../old-checkout --only jme

For each run: every released model, which users counted in which round, ε and μ as planned and as
realized, and σ. For each stream: every release, and the same figures. Each row says that all of it
is equal to the bit, or the largest absolute difference of the numbers and what else differs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]

#: Of every run, as assignments; one more of a key replaces it, and `key=` takes it away.
SMALL = (
    "data.kind=digits data.users=24 model.kind=mlp model.hidden-units=5 cohorts.rounds=12"
    " cohorts.users-per-round=6 privacy.epsilon=8 privacy.delta=1e-5 privacy.noise-seed=7"
    " execution.evaluate-every=4 mechanism.kind=bisr mechanism.bands=3 client.engine=loop"
)
DIGITS = "data.users=60"
EXAMPLES = (
    f"{DIGITS} data.partition=each-example data.users=1438 cohorts.users-per-round=40"
    " client.batch-size=1"
)
JME = "server.kind=jme-adam server.relative-eps=1.0"
RUNS = {
    "engine loop": "",
    "engine auto": "client.engine=auto",
    "engine vmap": "client.engine=vmap",
    "logistic regression": "model.kind=logistic model.hidden-units=",
    "digits, cnn": f"{DIGITS} model.kind=cnn model.hidden-units= data.input-shape=1,8,8",
    "digits, several steps": f"{DIGITS} client.batch-size=4 client.epochs=2 client.momentum=0.9",
    **{
        f"mechanism {name}": f"mechanism.kind={name}"
        for name in ("bsr", "banded-toeplitz", "banded")
    },
    **{
        f"mechanism {name}": f"mechanism.kind={name} mechanism.bands="
        for name in (
            "identity",
            "square-root",
            "blt",
            "tree",
            "cgd",
            "nu-ftrl",
            "optimal-diagonal",
            "dense",
        )
    },
    "cyclic-poisson, amplified": (
        "cohorts.kind=cyclic-poisson mechanism.kind=banded privacy.amplified=true"
    ),
    "balls-in-bins, amplified": (
        "cohorts.kind=balls-in-bins mechanism.kind=cgd mechanism.bands= privacy.amplified=true"
    ),
    "b-min-sep, amplified": (
        "cohorts.kind=b-min-sep cohorts.min-separation=3 mechanism.kind=banded-toeplitz "
        "privacy.amplified=true"
    ),
    "momentum": "server.momentum=0.9",
    "adam": "server.kind=adam",
    "jme-adam": JME,
    "jme-adam, blocks": f"{JME} server.blocks=channel",
    "quantile clipping": "clipping.kind=quantile",
    "quantile clipping, adam": "clipping.kind=quantile server.kind=adam",
    "replace-one": "privacy.adjacency=replace-one mechanism.kind=blt mechanism.bands=",
    "sparse checkpoints": "execution.checkpoint-every=3",
    "example-level": f"{EXAMPLES}",
    "no noise": "privacy.kind=none privacy.epsilon= privacy.delta= privacy.noise-seed=",
    "grid, slices": "execution.messages=aggregate",
    "grid, per-user": "execution.messages=per-user",
    "grid, a message per user": "execution.messages=one-user",
}
STREAMS = {
    "stream, average": "",
    "stream, prefix": "--workload prefix",
    "stream, exponential": "--workload exponential:0.9 --method independent",
    "stream, window": "--workload window:8 --method concatenated",
    "stream, users": "--user-column user --rows-per-user 3 --min-separation 4",
    "stream, replace-one": "--adjacency replace-one --method post-processing",
    "stream, diagonal": "--second-moment diagonal",
}
WRAPPED = {"wrapped FedAvg": "FedAvg", "wrapped FedAdam": "FedAdam", "wrapped FedAvgM": "FedAvgM"}

#: Carries out what it reads, a line each, in one version; writes NumPy files of numbers and prints
#: the rest.
_DRIVER = """
import contextlib, io, json, os, sys, traceback, warnings
from pathlib import Path
warnings.simplefilter("ignore")
import numpy as np, torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])
FIGURES = {
    "epsilon": "epsilon_planned", "epsilon_spent": "epsilon_realized", "mu": "mu_planned",
    "mu_spent": "mu_realized", "noise_multiplier": "noise_multiplier",
}  # as they were called on 8b0bfc9
KEYS = {
    "client.engine=vmap": "client.engine=vectorised",
    "server.relative-eps": "server.relative-epsilon",
    "execution.messages=one-user": "execution.messages=per-user",
}
def asked(given):
    from fedmf.errors import ConfigError
    from fedmf.runs.tables.configuration import parse_assignments, run_of
    words = [f"{key}={value}" for key, value in given.items() if value]
    try:
        return run_of(parse_assignments(words))
    except ConfigError:
        for new, old in KEYS.items():
            words = [old + word[len(new):] if word.startswith(new) else word for word in words]
        return run_of(parse_assignments(words))
def figures(statement):
    present = lambda name, old: statement[name] if name in statement else statement[old]
    return {name: present(name, old) for name, old in FIGURES.items()}
def told(path, models, name):
    import fedmf
    from fedmf.ledger.ledger import Ledger
    statement = fedmf.account(path).to_dict()
    with Ledger.open(Path(path) / "ledger.sqlite", read_only=True) as ledger:
        took = ledger.participations()
        if isinstance(took, tuple):
            took = zip(took[0].tolist(), [ledger.histories.names[key] for key in took[1].tolist()])
        counted = sorted([t, user] for t, user in took)
    np.save(name + ".npy", np.array(models))
    return {"counted": counted, **figures(statement)}
def run(name, text):
    import fedmf
    from fedmf.flower import InProcessGrid, run_on_grid
    try:
        from fedmf.runs.simulation import run_in_process
    except ImportError:
        from fedmf.rounds import run_in_process
    from support.small_runs import client_for
    models, given = [], dict(word.split("=", 1) for word in text.split())
    with fedmf.start(asked(given), name) as session:
        def after(*_):
            models.append(session.server.parameters.double().numpy().copy())
        if name.startswith("grid"):
            run_on_grid(session, InProcessGrid(client_for(session)), after)
        else:
            run_in_process(session, after)
    return told(name, models, name)
def wrapped(name, inner):
    from flwr.serverapp import ServerApp
    from fedmf.flower import run_app
    from support.wrapped_apps import INNER, adding, flat, model, private, update_of
    server, models = ServerApp(), []
    @server.main()
    def main(grid, context):
        strategy = private(INNER[inner](), Path(name))
        look = lambda t, arrays: models.append(flat(arrays))
        strategy.start(grid=grid, initial_arrays=model(), num_rounds=6, evaluate_fn=look)
        strategy.close()
    run_app(server, adding(lambda user, context: update_of(user)), num_supernodes=12)
    return told(name, models, name)
def stream(name, options):
    from fedmf.cli.app import run as command
    users, drawn = "--user-column" in options, np.random.default_rng(0).normal(0.3, 0.2, (20, 2))
    rows = [f"{x:.6f},{y:.6f}" + f",u{t % 6}" * users for t, (x, y) in enumerate(drawn)]
    Path("rows.csv").write_text("\\n".join(["speed,load" + ",user" * users, *rows]) + "\\n")
    base = "stream --input rows.csv --clip-norm 1 --epsilon 8 --delta 1e-5 --rounds 20 --seed 7 "
    base += "--columns speed,load " + "--row-level " * (not users) + options
    words = [*base.split(), "--state-dir", name, "--output", name + ".jsonl", "--raw"]
    code = command(words)
    if code:
        raise RuntimeError(f"exit code {code}")
    from fedmf.streaming import account_stream
    flat = lambda value: [x for v in value for x in flat(v)] if isinstance(value, list) else [value]
    lines = [json.loads(line) for line in open(name + ".jsonl")]
    named = [("t", "t"), ("sum", "first"), ("sum_of_squares", "second"), ("mean", "mean")]
    numbers = [x for line in lines for one in named for x in flat(line[one[one[0] not in line]])]
    np.save(name + ".npy", np.array(numbers, dtype=float))
    return figures(account_stream(Path(name)))
for line in sys.stdin:
    how, name, what = json.loads(line)
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            facts = {"run": run, "stream": stream, "wrapped": wrapped}[how](name, what)
        except BaseException as error:
            facts = {"error": (str(error) or repr(error)) + said.getvalue()[-200:]}
    print(json.dumps(facts), file=sys.__stdout__, flush=True)
"""


class Version:
    """A checkout and the process that carries out runs with it, in a folder of its own."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        state = {
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(tree),
        }
        command = [sys.executable, "-c", _DRIVER, str(tree / "tests")]
        more: dict[str, Any] = {"cwd": folder, "env": {**os.environ, **state}, "text": True}
        self._process: Any = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            **more,
        )

    def facts(self, how: str, name: str, what: str) -> tuple[dict[str, Any], np.ndarray]:
        """What a run or stream gave: figures and participations, and all numbers that were
        released.
        """
        self._process.stdin.write(json.dumps([how, name, what]) + "\n")
        self._process.stdin.flush()
        said = json.loads(self._process.stdout.readline() or '{"error": "the process ended"}')
        return said, np.load(self.folder / f"{name}.npy") if "error" not in said else np.empty(0)

    def close(self) -> None:
        """End it."""
        self._process.communicate()


def difference(
    before: tuple[dict[str, Any], np.ndarray], after: tuple[dict[str, Any], np.ndarray]
) -> list[str]:
    """In what they differ; nothing if all is equal to the bit."""
    said, numbers = before
    now, others = after
    if "error" in said or "error" in now:
        return [
            f"{name}: {facts['error']}"
            for name, facts in (("before", said), ("after", now))
            if "error" in facts
        ]
    found = [
        f"{name} {said[name]!r} -> {now[name]!r}"
        for name in said
        if said[name] != now[name] and name != "counted"
    ]
    found += ["which users counted"] * (said.get("counted") != now.get("counted"))
    if numbers.shape != others.shape:
        return [*found, f"{numbers.shape} numbers released, then {others.shape}"]
    if not np.array_equal(numbers, others):
        largest = np.abs(numbers - others).max()
        found.append(
            f"released numbers by at most {largest:.3g} (largest {np.abs(numbers).max():.3g})"
        )
    return found


def main() -> int:
    """Carry out, compare, print a line for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="checkout of the other version")
    parser.add_argument("--only", default="", help="subjects whose name holds this")
    given = parser.parse_args()
    subjects = [("run", name, f"{SMALL} {keys}") for name, keys in RUNS.items()]
    subjects += [("stream", name, options) for name, options in STREAMS.items()]
    subjects += [("wrapped", name, inner) for name, inner in WRAPPED.items()]
    chosen = [subject for subject in subjects if given.only in subject[1]]
    different = 0
    with tempfile.TemporaryDirectory(prefix="recorder-") as scratch:
        old, new = (
            Version(tree.resolve(), Path(scratch) / name)
            for name, tree in (("before", given.before), ("after", ROOT))
        )
        for how, name, what in chosen:
            wrong = difference(old.facts(how, name, what), new.facts(how, name, what))
            print(f"{name:32s} {'; '.join(wrong) or 'equal'}", flush=True)
            different += bool(wrong)
        old.close()
        new.close()
    print(f"{len(chosen)} compared, {different} differ")
    return int(different > 0)


if __name__ == "__main__":
    raise SystemExit(main())
