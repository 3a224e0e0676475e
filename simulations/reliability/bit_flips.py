"""Single flipped bits in every file that a resume or an account reads, and forged values in headers.

    python simulations/reliability/bit_flips.py [--flips N] [--forged M] [--seed S] [--json]

Makes a small run (private evaluation, budgets of users, a secret key) and a small stream, and then, N times
each, copies the directory, flips one random bit of one of its files (drawn evenly over files, then over bits)
and resumes and accounts for it within this process. M times a single value of a header or of a stream's plan
is changed to another of its type, with every SHA-256 of the chain computed again, as somebody could who does
not have the key. Outcomes:

    same        nothing that a resume or an account gives is different
    refused     one line, of a class that the command line shows as one
    SILENT      accepted, with other noise, another ε, statement, model, release or state
    TRACEBACK   anything else was raised

The last two must not happen; the exit status says whether they did.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import pickle
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from forged_records import ledgers_forged, streams_forged

import fedmf
from fedmf.rounds import RoundReport, run_in_process
from fedmf.runs import PrivateEvaluator, Session, account, run_of
from fedmf.runs.directory import RunDirectory
from fedmf.streaming import Settings, open_run, stream_statement

Outcome = Callable[[Path], bytes]
#: What a run or stream writes and never reads.
WRITTEN_ONLY = ("statement", "metrics", "learning-curve", "operator")
COLUMNS = ("outcome of", "tries", "same", "refused", "SILENT", "TRACEBACK")


def make_run(folder: Path, seed: int = -1) -> Path:
    """A run of 12 rounds with private evaluations and budgets, stopped after 6; a secret key by default."""
    path = folder / "run"
    budgets = folder / "budgets.csv"
    budgets.write_text("user,epsilon\n" + "".join(f"user-{u:02d},50\n" for u in range(3)))
    run = run_of(
        {
            "data": {"users": 24},
            "model": {"hidden-units": 4},
            "cohorts": {"rounds": 12, "size": 6},
            "privacy": {"epsilon": 8.0, "noise-seed": seed, "user-budgets": str(budgets)},
            "local": {"batch-size": 32},
            "evaluation": {"kind": "private", "every": 3},
        }
    )
    with Session.start(path, run) as session, contextlib.suppress(_Stop):
        run_in_process(session, _stop_after_six)
    return path


class _Stop(Exception):
    """Raised to stop a run midway."""


def _stop_after_six(report: RoundReport, _row: object) -> None:
    if report.t == 5:
        raise _Stop


def make_stream(folder: Path) -> Path:
    """A stream of 40 steps with users, stopped after 20 rows."""
    path = folder / "stream"
    path.mkdir()
    x = np.random.default_rng(1).normal(size=(20, 3))
    lines = ["a,b,c,user", *(f"{a!r},{b!r},{c!r},u{i % 7}" for i, (a, b, c) in enumerate(x.tolist()))]
    (path / "rows.csv").write_text("\n".join(lines) + "\n")
    with open_run(path / "state", SETTINGS, path / "rows.csv", path / "out.jsonl") as (run, reader):
        run.feed(reader)
    return path


SETTINGS = Settings(
    norm_bound=1.0,
    epsilon=8.0,
    delta=1e-5,
    rounds=40,
    user_column="user",
    max_participations=3,
    min_separation=5,
)


class RunOutcome:
    """What a resume and an account of a run give, as one digest; tasks are built once."""

    def __init__(self) -> None:
        self._tasks: dict[str, Any] = {}

    def __call__(self, path: Path) -> bytes:
        """Of a directory."""
        statement = account(path).to_dict()
        run = fedmf.load(path)
        name = json.dumps(run.to_dict()["task"], sort_keys=True)
        if name not in self._tasks:
            self._tasks[name] = run.task_source.build()
        task = self._tasks[name]
        optimizer = run.optimizer_source.build(task.model.shapes, run.cohorts.rounds)
        with RunDirectory.open(path) as directory:
            session = Session(run, directory, optimizer, task.model.initial(), task.dataset.user_ids, task)
            session.evaluate()
            server, evaluator = session.server, session.evaluator
            assert isinstance(evaluator, PrivateEvaluator)
            cohort = session.cohort_schedule().cohort(server.t).tolist()
            state = {k: v.tolist() for k, v in server._state.items()}
            found = (
                statement,
                run.to_dict(),
                server.t,
                server.parameters.tolist(),
                state,
                server.plan.noise_std,
                server._noise.state_dict(),
                session.metrics,
                directory.budgets(),
                session.admit(server.t, [str(task.dataset.user_ids[u]) for u in cohort]),
                [evaluator.estimate(e) for e in range(evaluator.released)],
                directory.ledger.openings(),
            )
            return _digest(found)


def stream_outcome(path: Path) -> bytes:
    """What going on with a stream gives, all its releases sent again to another output."""
    with open_run(path / "state", SETTINGS, path / "rows.csv", path / "again.jsonl") as (run, reader):
        run.feed(reader)
        state, plan = run.state, run.plan
        statement = stream_statement(plan, run.position, run.users, state.key)
        users = sorted(state.users())
        parts = (
            statement,
            plan.to_dict(),
            run._stream.state_dict(kept_vectors=True),
            users,
            state.openings(),
        )
        counts = run.position.counts()
    return _digest((parts, counts, (path / "again.jsonl").read_bytes()))


def _digest(found: object) -> bytes:
    return hashlib.sha256(json.dumps(found, default=_plain, sort_keys=True).encode()).digest()


def _plain(value: object) -> object:
    plain = getattr(value, "tolist", None)
    return pickle.dumps(value).hex() if plain is None else plain()


def verdict(outcome: Outcome, path: Path, expected: bytes) -> tuple[str, str]:
    """(column, what was raised)."""
    try:
        found = outcome(path)
    except (ValueError, OSError) as error:
        line = str(error)
        return ("TRACEBACK" if "\n" in line or not line else "refused"), line
    except Exception as error:
        return "TRACEBACK", f"{type(error).__name__}: {error}"
    return ("same" if found == expected else "SILENT"), ""


def flip(path: Path, draw: random.Random) -> str:
    """Flip one bit of a file."""
    content = bytearray(path.read_bytes())
    bit = draw.randrange(8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    return f"{path.name} bit {bit}"


def trials(
    made: Path, outcome: Outcome, damage: Callable[[Path], str], count: int, scratch: Path
) -> Iterator[tuple[str, str, str]]:
    """(what was done, column, what was raised) of so many copies, each damaged once."""
    place = scratch / made.name

    def copied() -> Path:
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(made, place)
        return place

    expected = outcome(copied())
    if outcome(copied()) != expected:
        raise RuntimeError("the outcome of an intact directory must be the same each time.")
    for _ in range(count):
        done = damage(copied())
        yield (done, *verdict(outcome, place, expected))


def table(
    flips: int, forged: int, seed: int, show: Callable[[str], None] = lambda line: None
) -> list[tuple[str, Counter[str]]]:
    """Tries and outcomes by file."""
    draw, found = random.Random(seed), list[tuple[str, Counter[str]]]()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        scratch = root / "scratch"
        scratch.mkdir()
        run_path, stream_path = make_run(root), make_stream(root)
        cases: list[tuple[str, Path, Outcome, Callable[[Path], str], int]] = []
        for made, outcome in ((run_path, RunOutcome()), (stream_path / "state", None)):
            files = sorted(p.relative_to(made) for p in made.rglob("*") if p.is_file() and p.stat().st_size)
            files = [f for f in files if f.suffix != ".lock" and f.stem not in WRITTEN_ONLY]
            for at, file in enumerate(files):
                share = flips // len(files) + (at < flips % len(files))
                if outcome is None:
                    inside = Path("state") / file
                    name, base, check = f"stream: {file}", stream_path, stream_outcome
                else:
                    inside, name, base, check = file, f"run: {file}", run_path, outcome
                cases.append((name, base, check, lambda p, f=inside: flip(p / f, draw), share))
        for name, base, check, damage in (
            ("run: header, one value forged", run_path, RunOutcome(), ledgers_forged(draw)),
            ("stream: plan, one value forged", stream_path, stream_outcome, streams_forged(draw)),
        ):
            cases.append((name, base, check, damage, forged // 2))
        for name, base, check, damage, count in cases:
            counts: Counter[str] = Counter()
            for done, column, raised in trials(base, check, damage, count, scratch):
                counts[column] += 1
                if column in ("SILENT", "TRACEBACK"):
                    show(f"{column}: {name}: {done}: {raised}")
            found.append((name, counts))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--flips", type=int, default=2000, help="of the run, and as many of the stream")
    parser.add_argument("--forged", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    options = parser.parse_args()
    found = table(options.flips, options.forged, options.seed, lambda line: print(line, file=sys.stderr))
    total: Counter[str] = sum((counts for _, counts in found), Counter())
    if not options.json:
        print(f"{COLUMNS[0]:44}" + "".join(f"{name:>11}" for name in COLUMNS[1:]))
    for name, counts in [*found, ("all", total)]:
        row = [sum(counts.values()), *(counts[column] for column in COLUMNS[2:])]
        if options.json:
            print(json.dumps({"name": name, **dict(zip(COLUMNS[1:], row, strict=True))}))
        else:
            print(f"{name:44}" + "".join(f"{value:>11}" for value in row))
    sys.exit(1 if total["SILENT"] or total["TRACEBACK"] else 0)


if __name__ == "__main__":
    main()
