"""How far a thing travels: functions and files of fedmf from its arrival to its commit.

    python simulations/call_counts.py [config | start | reply | row ...] [--files]

`config`: a TOML file is read for the first time. `start`: a session of a run is planned and opened.
`reply`: one user's update is read, added, released with noise and committed, in a round after the
first. `row`: one row is pushed into a stream and released, after the first. Calls are counted by
sys.setprofile; what is loaded or compiled once is done before.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

import fedmf

PACKAGE = str(Path(fedmf.__file__).parent)
USERS = [f"u{u:02d}" for u in range(8)]


def counted(what: str, act: Callable[[], object]) -> None:
    """Print calls, functions and files of fedmf, in this thread, while something is done."""
    calls: Counter[tuple[str, str, int]] = Counter()

    def note(frame, event, _):  # type: ignore[no-untyped-def]
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            calls[code.co_filename, code.co_qualname, code.co_firstlineno] += 1

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    files = {file for file, _, _ in calls}
    print(f"{what}: {sum(calls.values())} calls of {len(calls)} functions in {len(files)} files")
    if "--files" in sys.argv:
        for file, functions in sorted(Counter(file for file, _, _ in calls).items()):
            print(f"  {functions:3} {Path(file).relative_to(PACKAGE)}")


def config(folder: Path) -> None:
    import fedmf.runs.tables.configuration  # what is imported is not counted

    file = Path(PACKAGE).parent / "configs/digits.toml"
    counted("TOML file to run", lambda: fedmf.load_run(file))


def start(folder: Path) -> None:
    run = fedmf.Run(cohorts=fedmf.CyclicCohorts(rounds=12), mechanism="bisr")
    fedmf.start(run, folder / "first").__exit__()
    counted("session start", lambda: fedmf.start(run, folder / "second").__exit__())


def aggregator(folder: Path) -> fedmf.PrivateAggregator:
    """One of eight users, in the arguments of either version."""
    values = {"epsilon": 8.0, "delta": 1e-5, "noise_seed": 1}
    more = {"users": USERS, "run_dir": folder / "run", "mechanism": "bisr"}
    try:
        cohorts = fedmf.CyclicCohorts(rounds=4, users_per_round=2)
        return fedmf.PrivateAggregator(fedmf.UserLevel(clip_norm=1.0, **values), cohorts, **more)
    except TypeError:
        more |= {"clipping_norm": 1.0, "num_rounds": 4, "users_per_round": 2}
        return fedmf.PrivateAggregator(**values, **more)


def reply(folder: Path) -> None:
    model = {"w": np.zeros(2410, np.float32)}
    with aggregator(folder).begin(model) as opened:

        def one_round() -> None:
            opened.add(opened.cohort(opened.t)[0], {"w": np.ones(2410, np.float32)})
            opened.release()

        one_round()
        counted("reply to commit", one_round)


def row(folder: Path) -> None:
    values = {
        "epsilon": 1.0,
        "delta": 1e-5,
        "rounds": 16,
        "workloads": "prefix",
        "mechanisms": "bisr",
    }
    values |= {"seed": 1, "dimension": 2}
    try:
        stream = fedmf.PrivateStream(folder / "stream", clip_norm=1.0, **values)
    except TypeError:
        stream = fedmf.PrivateStream(folder / "stream", norm_bound=1.0, **values)
    with stream:
        stream.push([0.3, 0.1], user="a")
        counted("row to commit", lambda: stream.push([0.3, 0.1], user="b"))


MODES = {"config": config, "start": start, "reply": reply, "row": row}

if __name__ == "__main__":
    for mode in [mode for mode in MODES if mode in sys.argv[1:]] or MODES:
        with tempfile.TemporaryDirectory() as folder:
            MODES[mode](Path(folder))
