"""Time, memory and disk of large runs, as the dry run predicts them and as they are measured.

    python simulations/benchmarks/scale.py run [--users N] [--per-round M] [--rounds R] [--tenth T]
    python simulations/benchmarks/scale.py ledger [--participations P ...]
    python simulations/benchmarks/scale.py memory [--users N ...]
    python simulations/benchmarks/scale.py ray [--models mlp cnn lstm] [--workers W ...]

``run`` prints the dry run of configs/million.toml with an MLP of 101,066 parameters, and of T of
its R rounds, which it then carries out. ``ledger`` commits rounds of users who contribute zeros to
the ledger of one run, and at each number of participations opens it again and accounts for it.
``memory`` holds N users with examples in memory. ``ray`` trains the same rounds in this process and
on Ray, compares the models bit by bit, and extrapolates to four workers by Amdahl's law.

Every measurement is a process of its own and a line of JSON. Runs are in a temporary folder, which
``--folder`` places.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the process that measures others stays small
    from fedmf.runs.loop import RoundRecord
    from fedmf.runs.run import Run
    from fedmf.runs.session import Session
    from fedmf.runs.tasks import FunctionTask
    from fedmf.training import Task

PROJECT = Path(__file__).resolve().parents[2]
MILLION = PROJECT / "configs" / "million.toml"
FEDMF = [sys.executable, "-m", "fedmf"]
#: 60·256 + 256 + 256·320 + 320 + 320·10 + 10 = 101,066 parameters.
MLP = {"model.kind": "mlp", "model.hidden-units": "256,320"}
#: Users of a round of the comparison with Ray: one or two seconds on a core.
COHORTS = {"mlp": 5000, "cnn": 640, "lstm": 640}
RAY_ROUNDS = 6
MIB = float(1 << 20)


def measured(words: list[str], **environment: str) -> tuple[float, float, str]:
    """Seconds, largest resident MiB and standard output of a process."""
    paths = os.pathsep.join(filter(None, (str(PROJECT), os.environ.get("PYTHONPATH"))))
    begun = time.perf_counter()
    child = subprocess.Popen(
        words,
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": paths, **environment},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    output = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(words)} failed with exit code {child.returncode}")
    unit = 1.0 if sys.platform == "darwin" else 1024.0
    return time.perf_counter() - begun, usage.ru_maxrss * unit / MIB, output


def in_child(
    function: Callable[..., dict[str, Any]], *arguments: object, **environment: str
) -> Any:
    """The result of a function of this file in a process of its own, with its peak memory."""
    words = [sys.executable, __file__, "child", function.__name__, *map(str, arguments)]
    _, peak, output = measured(words, **environment)
    return {**json.loads(output.splitlines()[-1]), "peak MiB": round(peak)}


def show(name: str, **facts: Any) -> None:
    """Print a measurement as a line of JSON, with three digits after the point."""
    row = dict[str, Any](name=name)
    for fact, value in facts.items():
        row[fact] = round(value, 3) if isinstance(value, float) else value
    print(json.dumps(row), flush=True)


def mebibytes_in(folder: Path) -> float:
    """Disk space of the files in a folder."""
    return sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file()) / MIB


# A run, and a tenth of it


def show_run(options: argparse.Namespace, folder: Path) -> None:
    """Print the dry run of all rounds and of some, and the measurement of these."""
    keys = {**MLP, "data.users": options.users, "cohorts.users-per-round": options.per_round}
    for rounds in dict.fromkeys((options.rounds, options.tenth)):
        show(f"dry run of {rounds} rounds", **dry_run({**keys, "cohorts.rounds": rounds}))
    words = assignments({**keys, "cohorts.rounds": options.tenth})
    command = [*FEDMF, "simulate", str(MILLION), *words, "--log-format", "json"]
    seconds, peak, _ = measured([*command, "--out", str(folder / "run")])
    size = mebibytes_in(folder / "run")
    facts = {"seconds": seconds, "seconds a round": seconds / options.tenth}
    show(f"{options.tenth} rounds", **facts, **{"peak MiB": round(peak), "disk MiB": size})


def assignments(keys: dict[str, Any]) -> list[str]:
    """Keys as options of the command line."""
    words = list[str]()
    for key, value in keys.items():
        words += ["--set", f"{key}={value}"]
    return words


def dry_run(keys: dict[str, Any]) -> dict[str, str]:
    """Labels and texts of a dry run that have a time or a size."""
    command = [*FEDMF, "simulate", str(MILLION), *assignments(keys), "--dry-run"]
    _, _, output = measured(command)
    said = dict[str, str]()
    for line in output.splitlines():
        label, text = re.split(r"  +", line, maxsplit=1)
        if label.startswith(("time", "memory", "disk")):
            said[label] = text
    return said


# The ledger


def show_ledger(options: argparse.Namespace, folder: Path) -> None:
    """Print what rounds, an opening and an account cost as participations grow."""
    path = folder / "ledger"
    for participations in options.participations:
        rounds = participations // options.per_round
        facts = in_child(commit_rounds, path, options.users, options.per_round, rounds)
        show(f"rounds up to {participations:.0e} participations", **facts)
        ledger = (path / "ledger.sqlite").stat().st_size
        show("ledger", bytes=ledger, **{"bytes a participation": ledger / participations})
        show("resume", **in_child(resume, path))
        statement = folder / f"{participations}.json"
        words = [*FEDMF, "account", str(path), "--public", str(statement)]
        seconds, peak, _ = measured(words)
        show("fedmf account", seconds=seconds, **{"peak MiB": round(peak)})
        verify = [sys.executable, str(PROJECT / "simulations" / "verify.py")]
        seconds, peak, said = measured([*verify, str(statement), str(path / "released")])
        accepted = "ACCEPTED" in said
        show("verify.py", accepted=accepted, seconds=seconds, **{"peak MiB": round(peak)})


def commit_rounds(path: str, users: str, per_round: str, last: str) -> dict[str, Any]:
    """Commit rounds whose users contribute zeros, without training; the median of the last 20."""
    from fedmf.runs.session import Session
    from fedmf.runs.tables.configuration import load_run

    if Path(path).exists():
        session = Session.resume(Path(path))
    else:
        keys = {
            "data.users": int(users),
            "cohorts.rounds": 2000,
            "cohorts.users-per-round": int(per_round),
            "execution.keep-releases": True,
        }
        session = Session.start(Path(path), load_run(MILLION, keys))
    seconds = list[float]()
    with session:
        for t in range(session.server.t, int(last)):
            begun = time.perf_counter()
            cohort = session.cohort(t)
            total = session.server.new_sum()
            total.add_nothing(len(cohort))
            session.server.release(total, sorted(cohort.values()))
            seconds.append(time.perf_counter() - begun)
    return {"rounds": int(last), "ms a round": 1e3 * statistics.median(seconds[-20:])}


def resume(path: str) -> dict[str, Any]:
    """Open a run until its next round could begin, which includes its reports."""
    from fedmf.runs.session import Session

    begun = time.perf_counter()
    with Session.resume(Path(path)) as session:
        opened = time.perf_counter()
        session.write_reports()
        reported = time.perf_counter()
    return {"seconds to open": opened - begun, "seconds to report": reported - opened}


# Examples in memory


def show_memory(options: argparse.Namespace, folder: Path) -> None:
    """Print the memory of users whose examples are in the memory of the process."""
    del folder
    for users in options.users:
        facts = in_child(hold_examples, users)
        show(f"{users} users in memory", **facts)


def hold_examples(users: str) -> dict[str, Any]:
    """Make a data set of users with 20 examples of 60 features from arrays."""
    import numpy as np

    from fedmf.data import Dataset

    count = 20 * int(users)
    x = np.zeros((count, 60), np.float32)
    x[:] = 1.0  # the memory is used
    y = np.arange(count) % 10
    names = [f"user-{u:07}" for u in range(int(users))]
    begun = time.perf_counter()
    owners = np.repeat(np.array(names, dtype=object), 20)
    dataset = Dataset.from_arrays(x, y, owners, user_list=names, classes=10)
    return {
        "arrays MiB": (x.nbytes + y.nbytes) / MIB,
        "seconds": time.perf_counter() - begun,
        "users": dataset.users,
    }


# Ray


def show_ray(options: argparse.Namespace, folder: Path) -> None:
    """Print the rounds of each model in one process, and on Ray by the number of workers."""
    for model in options.models:
        digests = set[str]()
        spent = dict[int, float]()
        for threads in options.workers:
            facts = in_child(train, "inprocess", model, 1, folder, OMP_NUM_THREADS=str(threads))
            digests.add(facts.pop("digest"))
            show(f"{model}: one process, {threads} threads", **facts)
        for workers in options.workers:
            facts = in_child(train, "ray", model, workers, folder, RAY_worker_niceness="0")
            digests.add(facts.pop("digest"))
            spent[workers] = facts["seconds a round"]
            show(f"{model}: Ray, {workers} workers", **facts)
        show(f"{model}: models", **{"same bits": len(digests) == 1})
        if {1, 2} <= spent.keys():
            show_four_workers(model, spent[1], spent[2])


def show_four_workers(model: str, one: float, two: float) -> None:
    """Print an extrapolation: T(w) = serial + divided/w, from one and two workers."""
    divided = 2 * (one - two)
    serial = one - divided
    four = serial + divided / 4
    show(
        f"{model}: Ray, 4 workers (extrapolated)",
        **{
            "serial seconds": serial,
            "seconds a round": four,
            "users/s": COHORTS[model] / four,
        },
    )


def train(engine: str, model: str, workers: str, folder: str) -> dict[str, Any]:
    """Train some rounds; the median of their seconds but the first, and a digest of the model."""
    from fedmf.flower.apps import run_on_ray
    from fedmf.runs.session import Session
    from fedmf.runs.simulation import run_in_process

    seconds = list[float]()

    def note(record: RoundRecord) -> None:
        assert record.report is not None
        seconds.append(record.report.seconds)

    run: Callable[[Session, Callable[[RoundRecord], None]], object] = run_in_process
    if engine == "ray":
        run = run_on_ray
    with (
        tempfile.TemporaryDirectory(dir=folder) as place,
        Session.start(Path(place) / "run", run_of_model(model, int(workers))) as session,
    ):
        run(session, note)
        digest = hashlib.sha256(session.server.parameters.numpy().tobytes()).hexdigest()
    typical = statistics.median(seconds[1:])
    users_a_second = COHORTS[model] / typical
    return {"seconds a round": typical, "users/s": users_a_second, "digest": digest}


def run_of_model(model: str, workers: int) -> Run:
    """A run with a public seed: that of `show_run`, or one of a model of engine.py."""
    from fedmf.runs.tables.configuration import load_run, run_of

    cohorts = {"cohorts.rounds": RAY_ROUNDS, "cohorts.users-per-round": COHORTS[model]}
    execution = {"execution.workers": workers, "execution.evaluate-every": RAY_ROUNDS}
    keys = {**cohorts, **execution, "privacy.noise-seed": 0}
    if model == "mlp":
        return load_run(MILLION, {**MLP, **keys})
    task = {
        "task.kind": "function",
        "task.function": f"scale:{model}",
        "task.users": COHORTS[model],
    }
    client = {"client.batch-size": 10, "client.learning-rate": 0.1}
    return run_of({**task, **client, **keys})


def cnn(source: FunctionTask) -> Task:
    """The CNN of engine.py and its users."""
    from engine import task_of

    return task_of("cnn", source.users)


def lstm(source: FunctionTask) -> Task:
    """The LSTM of engine.py and its users."""
    from engine import task_of

    return task_of("lstm", source.users)


CHILDREN = {each.__name__: each for each in (commit_rounds, resume, hold_examples, train)}


def main() -> None:
    """Measure what the first argument names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="where runs are kept while they are measured")
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("run")
    command.set_defaults(measure=show_run)
    command.add_argument("--users", type=int, default=10**6)
    command.add_argument("--per-round", type=int, default=5000)
    command.add_argument("--rounds", type=int, default=2000)
    command.add_argument("--tenth", type=int, default=200)
    command = commands.add_parser("ledger")
    command.set_defaults(measure=show_ledger)
    command.add_argument("--users", type=int, default=10**6)
    command.add_argument("--per-round", type=int, default=5000)
    command.add_argument("--participations", type=int, nargs="+", default=[10**5, 10**6, 10**7])
    command = commands.add_parser("memory")
    command.set_defaults(measure=show_memory)
    command.add_argument("--users", type=int, nargs="+", default=[10**5])
    command = commands.add_parser("ray")
    command.set_defaults(measure=show_ray)
    command.add_argument("--models", nargs="+", choices=COHORTS, default=list(COHORTS))
    command.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    command = commands.add_parser("child")
    command.add_argument("words", nargs="+")
    options = parser.parse_args()
    if "words" in options:
        name, *arguments = options.words
        print(json.dumps(CHILDREN[name](*arguments)))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        options.measure(options, Path(folder))


if __name__ == "__main__":
    main()
