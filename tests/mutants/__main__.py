"""Which of the mutants the tests notice: each in a copy of the tree, several copies at once.

Tests that fail without a fault on this machine (no Ray, say) are found first and left out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tests.mutants.draw import ROOMS, drawn
from tests.mutants.mutant import VERDICTS, Mutant, keep, kept
from tests.support.importers import ROOT, nearest_tests

#: Where the tests of each room are; those of importers come after them.
FOLDERS = {
    "noise": "tests/noise/",
    "clip": "tests/training/",
    "ledger": "tests/records/",
    "accounting": "tests/accounting/",
    "wrapper": "tests/flower/",
    "streams": "tests/streaming/",
}
#: What lies beside the package and a copy does not need.
NOT_COPIED = frozenset({".git", ".venv", "build", "dist", "outputs", ".pytest_cache", ".hypothesis"})
#: Files with more than this many imports between them and the fault are not asked.
FURTHEST = 4
#: Outcomes after which a mutant is settled; a run that was cut short is tried again.
SETTLED = ("caught", "survived", "stale", "equivalent", "gone")


#: Seconds after which one test counts as hanging, which is a failure: no test alone takes a third of it.
HANGING = 120
#: Programs under way, each the leader of a group.
_running: set[int] = set()


def main() -> int:
    """Parse the arguments and do what they say."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("draw", help="draw the list afresh; reasons for equivalence are kept")
    commands.add_parser("list", help="show the list, with its verdicts and how many there are")
    note = commands.add_parser("note", help="write into the list which file caught what")
    note.add_argument("results", type=Path, nargs="+", help="of runs, the latest last")
    run = commands.add_parser("run", help="run tests on each mutant")
    run.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at once")
    run.add_argument(
        "--results", type=Path, default=Path("build/mutants.jsonl"), help="kept here; goes on from it"
    )
    run.add_argument("--seconds", type=float, default=600.0, help="at most per mutant; then it survived")
    run.add_argument("--select", default="not deployment", help="marker expression for pytest")
    run.add_argument("--only", default="", help="names that begin so, by commas")
    run.add_argument("--room-only", action="store_true", help="no tests of rooms that import the mutant's")
    run.add_argument("--green", action="store_true", help="the suite was just green: no test is tried alone")
    run.add_argument("--json", action="store_true", help="the summary as JSON")
    asked = parser.parse_args()
    if asked.command == "draw":
        reasons = {(m.file, m.within, m.before, m.after): m.equivalent for m in kept()} if _has_list() else {}
        fresh = [mutant for room in ROOMS for mutant in drawn(room)]
        keep([m.excused(reasons.get((m.file, m.within, m.before, m.after), "")) for m in fresh])
        return 0
    if asked.command == "list":
        for mutant in kept():
            print(f"{mutant.name:14} {mutant.file} {mutant.within}: {mutant.operator}: {mutant.change}")
            print(f"{'':14} {mutant.verdict} {mutant.gone or mutant.equivalent or mutant.caught}".rstrip())
        found = Counter(mutant.verdict for mutant in kept())
        print(", ".join(f"{found[verdict]} {verdict}" for verdict in VERDICTS))
        return 0
    if asked.command == "note":
        _note(asked.results)
        return 0
    signal.signal(signal.SIGTERM, _stop)
    return _run_all(asked)


def _stop(*_: object) -> None:
    """Leave nothing running: the tests of a mutant are groups of their own."""
    for leader in tuple(_running):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGKILL)
    os._exit(143)


def _has_list() -> bool:
    return (Path(__file__).parent / "mutants.json").is_file()


def _note(files: Sequence[Path]) -> None:
    """Keep the latest verdicts; a mutant that these results do not have keeps its own."""
    lines = [json.loads(line) for path in files for line in path.read_text(encoding="utf-8").splitlines()]
    by = {
        line["name"]: file_of(line["by"]) if line["outcome"] == "caught" else ""
        for line in lines
        if "name" in line
    }
    keep([mutant.judged(by.get(mutant.name, mutant.caught)) for mutant in kept()])


def file_of(failure: str) -> str:
    """The file of a test that failed, or of an example; "" where nothing is said of it."""
    found = re.search(r"(?:tests|fedmf)/[\w/]+\.py", failure)
    return found[0] if found else ""


def _run_all(asked: argparse.Namespace) -> int:
    results: dict[str, dict[str, Any]] = {}
    alone: dict[str, list[str]] = {}
    for line in asked.results.read_text().splitlines() if asked.results.is_file() else []:
        entry = json.loads(line)
        if "test" in entry:
            alone[entry["test"]] = entry["failing"]
        else:
            results[entry["name"]] = entry
    wanted = tuple(filter(None, asked.only.split(",")))
    chosen = [m for m in kept() if not wanted or m.name.startswith(wanted)]
    waiting = [m.found() for m in chosen if results.get(m.name, {}).get("outcome") not in SETTLED]
    stages = [_stages(m, asked.room_only) for m in waiting if not asked.green]
    tests = {test for found in stages for stage in found for test in stage} - alone.keys()
    asked.results.parent.mkdir(parents=True, exist_ok=True)
    with _copies(min(asked.jobs, len(waiting))) as copies, asked.results.open("a", buffering=1) as file:

        def check(test: str) -> None:
            with copies.one() as place:
                alone[test] = _failing(test, place, asked)
            file.write(json.dumps({"test": test, "failing": alone[test]}) + "\n")

        def judge(mutant: Mutant) -> None:
            with copies.one() as place:
                results[mutant.name] = entry = _outcome(mutant, place, asked, red)
            file.write(json.dumps(entry) + "\n")
            line = f"{mutant.name:14} {entry['outcome']:10} {entry['seconds']:6.0f} s  {entry['by']}"
            print(line, file=sys.stderr)

        with ThreadPoolExecutor(asked.jobs) as pool:
            list(pool.map(check, sorted(tests)))
            red = sorted({name for names in alone.values() for name in names})
            print(f"left out, as they fail without a fault: {red}", file=sys.stderr)
            list(pool.map(judge, waiting))
    return _summarise(chosen, results, asked.json)


def not_copied(folder: str, names: list[str]) -> set[str]:
    """For `shutil.copytree`: only at the root, since a folder of the package may be called "outputs" too."""
    return {*names} & NOT_COPIED if Path(folder) == ROOT else set()


class _Copies:
    """Copies of the tree, handed out one at a time."""

    def __init__(self, folder: Path, count: int) -> None:
        self._free: SimpleQueue[Path] = SimpleQueue()
        for i in range(count):
            shutil.copytree(ROOT, folder / str(i) / "tree", ignore=not_copied, symlinks=True)
            self._free.put(folder / str(i))

    @contextlib.contextmanager
    def one(self) -> Iterator[Path]:
        place = self._free.get()
        try:
            yield place
        finally:
            self._free.put(place)


@contextlib.contextmanager
def _copies(count: int) -> Iterator[_Copies]:
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        yield _Copies(Path(folder), count)


def _outcome(mutant: Mutant, place: Path, asked: argparse.Namespace, red: list[str]) -> dict[str, Any]:
    """Run the tests that lead to the fault, nearest first, until one fails."""
    begun, tree = time.monotonic(), place / "tree"
    entry: dict[str, Any] = {"name": mutant.name, "by": "", "seconds": 0.0}
    if mutant.equivalent:
        return {**entry, "outcome": "equivalent", "by": mutant.equivalent}
    if mutant.gone:
        return {**entry, "outcome": "gone", "by": mutant.gone}
    path = tree / mutant.file
    source = path.read_text(encoding="utf-8") if path.is_file() else ""
    faulty = mutant.applied(source) if source else None
    if faulty is None:
        return {**entry, "outcome": "stale", "by": "its lines are gone"}
    outcome, by = "survived", ""
    try:
        _write(path, faulty)
        for tests in _stages(mutant, asked.room_only):
            left = asked.seconds - (time.monotonic() - begun)
            code, output = _pytest(tests, place, asked.select, left, red) if left > 5 else (None, "")
            if code is None:
                by = "out of time"
                break
            if code not in (0, 5):
                outcome, by = "caught", _first_failure(output)
                break
    finally:
        _write(path, source)
    return {**entry, "outcome": outcome, "by": by, "seconds": round(time.monotonic() - begun, 1)}


def _failing(test: str, place: Path, asked: argparse.Namespace) -> list[str]:
    """What fails without a fault on this machine, and so tells nothing; the whole file if it does not end."""
    code, output = _pytest([test], place, asked.select, 300.0, stop=())
    if code in (0, 5):
        return []
    names = [
        line.split(" - ")[0].split(" ", 1)[1] for line in output.splitlines() if line.startswith("FAILED ")
    ]
    return names if code == 1 and names and "\nERROR " not in output else [test]


def _write(path: Path, text: str) -> None:
    """With a time that no earlier text had: Python takes kept bytecode of files with an equal time."""
    later = path.stat().st_mtime + 10
    path.write_text(text, encoding="utf-8")
    os.utime(path, (later, later))


def _stages(mutant: Mutant, room_only: bool) -> list[list[str]]:
    """The room's files and the module's own examples; then files of rooms that import it. Nearest first."""
    near = [(distance, test) for distance, test in nearest_tests({mutant.file}) if "/support/" not in test]
    own = [test for _, test in near if test.startswith(FOLDERS[mutant.room])]
    rest = [test for distance, test in near if test not in own and distance <= FURTHEST]
    # Examples last: pytest imports a module that is named first beside its package, where tests that pin a
    # name of the package by its path do not find it, and fail without any fault.
    return [[*own, mutant.file], *([rest] if rest and not room_only else [])]


def _pytest(
    tests: list[str],
    place: Path,
    select: str,
    seconds: float,
    red: Sequence[str] = (),
    stop: Sequence[str] = ("-x",),
) -> tuple[int | None, str]:
    """Exit code, None if it took longer, and what it said."""
    tests = [test for test in tests if test not in red]
    if not tests:
        return 0, ""
    scratch = place / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    quiet = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        select,
        "--tb=line",
        f"--basetemp={scratch / 'pytest'}",
        *stop,
    ]
    quiet += ["-o", f"faulthandler_timeout={HANGING}", "-o", "faulthandler_exit_on_timeout=true"]
    quiet += [f"--deselect={name}" for name in red]
    environment = {
        **os.environ,
        "PYTHONPATH": str(place / "tree"),
        "TMPDIR": str(scratch),
        "OMP_NUM_THREADS": "1",
    }
    with (scratch / "said.txt").open("w+") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *quiet, *tests],
            cwd=place / "tree",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        _running.add(process.pid)
        try:
            code = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            _running.discard(process.pid)
        said.seek(0)
        return code, said.read()


def _first_failure(output: str) -> str:
    """The first test that failed; where Python itself ended, the test it was in."""
    # What a test logged begins with its level too, and no path.
    lines = [line for line in output.splitlines() if re.match(r"(FAILED|ERROR) \S+\.(py|md)\b", line)]
    lines = lines or [line.strip() for line in output.splitlines() if "/tests/" in line and "test_" in line]
    return lines[0][:160] if lines else "\n".join(output.splitlines()[-1:])[:160]


def _summarise(chosen: list[Mutant], results: dict[str, dict[str, Any]], as_json: bool) -> int:
    outcomes = {room: Counter(results[m.name]["outcome"] for m in chosen if m.room == room) for room in ROOMS}
    table = {room: {outcome: found[outcome] for outcome in SETTLED} for room, found in outcomes.items()}
    survivors = [m for m in chosen if results[m.name]["outcome"] == "survived"]
    if as_json:
        print(json.dumps({"rooms": table, "survived": [m.name for m in survivors]}))
    else:
        print(f"{'room':12}" + "".join(f"{outcome:>12}" for outcome in SETTLED))
        for room, counts in table.items():
            print(f"{room:12}" + "".join(f"{count:12}" for count in counts.values()))
        for mutant in survivors:
            print(f"survived: {mutant.name} {mutant.file} {mutant.within}: {mutant.change}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
