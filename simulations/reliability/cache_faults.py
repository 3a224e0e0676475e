"""Caches can only be slow: kept designs and kept machine code are damaged, forged, opened, raced and killed.

A function that finds a design and two compiled functions of two signatures each fill a folder. Then something
is done to what lies there, and a process that was not there before uses them: its results must be right, and
what can be kept must be kept again. A race is several processes that begin at once in an empty or damaged
folder, of which some are killed.

    python simulations/reliability/cache_faults.py [--faults 1000] [--races 2000]
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import shutil
import signal
import sys
import tempfile
import time
import types
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from fedmf.compiled import compiled
from fedmf.factorization.matrices import Toeplitz
from fedmf.factorization.mechanisms.cache import remembered
from fedmf.participation import Participation

__all__ = ["FAULTS", "KINDS", "fault_outcomes", "race_outcomes"]

RIGHT, WRONG, TRACEBACK, KEPT = 0, 3, 4, 5
_NOBODY = 65534
_CONTRACT = Participation(64, 2, 8)


def weighted_sum(x: Any) -> float:
    """Σ (i + 1)·x_i."""
    total = 0.0
    for i in range(x.size):
        total += (i + 1) * x[i]
    return total


def squared_norm(x: Any) -> float:
    """Σ x_i²."""
    total = 0.0
    for value in x:
        total += value * value
    return total


def random_design(participation: Participation, seed: int) -> Toeplitz:
    """A Toeplitz matrix that the seed decides."""
    coefficients = np.random.default_rng(seed).random(40) / 40
    coefficients[0] = 1.0
    return Toeplitz(coefficients, participation.rounds)


def _fresh(function: Callable[..., Any]) -> Any:
    """The function as a process compiles it that has not done so."""
    copy = types.FunctionType(function.__code__, function.__globals__, function.__name__)
    copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
    return compiled(copy)


def use_designs(order: int) -> tuple[bool, bool]:
    """Whether designs are right, and whether all of them were kept."""
    made: list[int] = []

    def counted(participation: Participation, seed: int) -> Toeplitz:
        made.append(seed)
        return random_design(participation, seed)

    lookup = remembered(counted, version=1)
    seeds = (1, 2)[:: 1 if order % 2 else -1]
    found = {seed: lookup(_CONTRACT, seed).to_dict() for seed in seeds}
    return all(found[seed] == random_design(_CONTRACT, seed).to_dict() for seed in seeds), not made


def use_code(order: int) -> tuple[bool, bool]:
    """The same for compiled functions."""
    right, hits = [], 0
    for function in (weighted_sum, squared_norm):
        program = _fresh(function)
        for kind in (np.float32, np.float64)[:: 1 if order % 2 else -1]:
            x = np.arange(1, 9, dtype=kind)
            right.append(program(x) == function(x))
        hits += sum(program.stats.cache_hits.values())
    return all(right), hits == 4


KINDS: dict[str, Callable[[int], tuple[bool, bool]]] = {"designs": use_designs, "machine code": use_code}


def outcome(use: Callable[[int], tuple[bool, bool]], order: int = 1) -> int:
    """What a use ends with."""
    try:
        right, kept = use(order)
    except Exception:
        return TRACEBACK
    return WRONG if not right else KEPT if kept else RIGHT


def begun(work: Callable[[], int]) -> int:
    """The process of a child that ends with what the work gives."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        status = TRACEBACK
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            status = work()
        finally:
            os._exit(status)
    return pid


def ended(pid: int) -> int:
    """How a child ended: its status, or less than 0 for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Marked:
    """A pickle of it writes a file when it is loaded."""

    def __init__(self, marker: Path) -> None:
        self.marker = str(marker)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.marker,)


def sealed(name: str, content: bytes) -> bytes:
    """As fedmf writes a file: whoever has the user's rights can."""
    return b"fedmf kept file 1\n" + sha256(name.encode() + b"\0" + content).digest() + content


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _flip(path: Path, chosen: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[chosen.randrange(len(content))] ^= 1 << chosen.randrange(8)
    path.write_bytes(content)


def _exchange(folder: Path, chosen: random.Random) -> None:
    """Two files of one ending: numba's own cache has indices and data."""
    path = chosen.choice(_files(folder))
    other = chosen.choice([file for file in _files(folder) if file.suffix == path.suffix and file != path])
    first, second = path.read_bytes(), other.read_bytes()
    path.write_bytes(second)
    other.write_bytes(first)


def _instead(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


def _full_folder(path: Path) -> None:
    (path / "inside").mkdir(parents=True)
    (path / "inside" / "file").write_text("x")


def _large(path: Path) -> None:
    with open(path, "r+b") as file:
        file.truncate(6_300_000_000)  # a hole: it takes no room on the disk


def _forged(description: Any, numbers: bytes = b"") -> Callable[[Path], object]:
    text = description if isinstance(description, str) else json.dumps(description)
    return lambda path: path.write_bytes(sealed(path.name, text.encode() + b"\n" + numbers))


def _one(change: Callable[[Path], object]) -> Callable[[Path, random.Random], object]:
    return lambda folder, chosen: change(chosen.choice(_files(folder)))


def _all(change: Callable[[Path], object]) -> Callable[[Path, random.Random], object]:
    return lambda folder, _: [change(path) for path in _files(folder)]


def _last_folder(folder: Path) -> Path:
    return _files(folder)[0].parent


def _folder_is_a_file(folder: Path, _: random.Random) -> None:
    last = _last_folder(folder)
    shutil.rmtree(last)
    last.write_text("")


def _toeplitz(rounds: Any, coefficients: Any) -> dict[str, Any]:
    return {"type": "toeplitz", "rounds": rounds, "coefficients": coefficients}


#: What is done to a folder. Of another user's things only root can make some.
FAULTS: dict[str, Callable[[Path, random.Random], object]] = {
    "a bit flips": lambda folder, chosen: _flip(chosen.choice(_files(folder)), chosen),
    "bits of every file flip": lambda folder, chosen: [_flip(path, chosen) for path in _files(folder)],
    "cut": lambda folder, chosen: [
        os.truncate(path, chosen.randrange(path.stat().st_size or 1)) for path in _files(folder)
    ],
    "emptied": _all(lambda path: path.write_bytes(b"")),
    "noise": _all(lambda path: path.write_bytes(os.urandom(500))),
    "appended": _all(lambda path: path.write_bytes(path.read_bytes() + b"x")),
    "one missing": _one(lambda path: path.unlink()),
    "two exchanged": _exchange,
    "a folder in place of a file": _one(lambda path: _instead(path, _full_folder)),
    "a pipe in place of a file": _one(lambda path: _instead(path, os.mkfifo)),
    "an endless device": _one(lambda path: _instead(path, lambda at: at.symlink_to("/dev/zero"))),
    "a link to nothing": _one(lambda path: _instead(path, lambda at: at.symlink_to("/nowhere/at/all"))),
    "a file open to all": _all(lambda path: path.chmod(0o666)),
    "a file closed to its user": _all(lambda path: path.chmod(0)),
    "the folder open to all": lambda folder, _: _last_folder(folder).chmod(0o777),
    "the folder closed": lambda folder, _: _last_folder(folder).chmod(0),
    "the folder is a file": _folder_is_a_file,
    "another user's file": _one(lambda path: os.chown(path, _NOBODY, _NOBODY)),
    "another user's folder": lambda folder, _: os.chown(_last_folder(folder), _NOBODY, _NOBODY),
    "foreign pickles": _all(lambda path: path.write_bytes(pickle.dumps(Marked(path.parent / "marker")))),
    "foreign pickles open to all": _all(
        lambda path: (
            path.write_bytes(sealed(path.name, pickle.dumps(Marked(path.parent / "marker")))),
            path.chmod(0o666),
        )
    ),
    "sealed noise": _all(lambda path: path.write_bytes(sealed(path.name, os.urandom(500)))),
    "6.3 GB": _all(_large),
    "sealed: n = 1e9": _all(_forged(_toeplitz(10**9, [1.0]))),
    "sealed: one coefficient of n = 63": _all(_forged(_toeplitz(63, [1.0]))),
    "sealed: another type": _all(_forged({"type": "diagonal", "entries": [1.0] * 64})),
    "sealed: no numbers": _all(_forged(_toeplitz(64, {"floats": 40}))),
    "sealed: NaN": _all(_forged(_toeplitz(64, {"floats": 40}), np.full(40, np.nan).tobytes())),
    "sealed: out of range": _all(_forged(_toeplitz(64, [1.0, 1e9]))),
    "sealed: 1e300": _all(_forged(_toeplitz(64, [1e300, 1e300]))),
    "sealed: one list for many": _all(_forged([[{"floats": 4000}] * 60] * 60, bytes(8 * 4000))),
    "sealed: deep": _all(_forged("[" * 100_000 + "]" * 100_000)),
    "sealed: a number of 5,000 digits": _all(_forged('{"rounds": ' + "9" * 5000 + "}")),
    "what a killed writer left": lambda folder, _: (_last_folder(folder) / "partial").write_bytes(b"part"),
}
_AS_ROOT = {"another user's file", "another user's folder"}
#: What cannot be kept again, by right: somebody else's folder stays theirs.
_STAYS = {"another user's folder"}


def _pristine(kind: str, place: Path) -> Path:
    """A folder with all that is kept."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    os.environ["FEDMF_CACHE"] = os.environ["NUMBA_CACHE_DIR"] = str(place)
    return place


def _tried(kind: str, fault: str, folder: Path, chosen: random.Random) -> str:
    """What becomes of one fault."""
    FAULTS[fault](folder, chosen)
    order = chosen.randrange(2)
    status = ended(begun(lambda: outcome(KINDS[kind], order)))
    if list(folder.rglob("marker")):
        return "FOREIGN CODE RUN"
    if status not in (RIGHT, KEPT):
        return {WRONG: "WRONG", TRACEBACK: "TRACEBACK"}.get(status, f"ENDED {status}")
    again = ended(begun(lambda: outcome(KINDS[kind], order)))
    if again == KEPT or (again == RIGHT and fault in _STAYS):
        return "right"
    return "NOT KEPT AGAIN" if again == RIGHT else "NEEDS A HAND"


def fault_outcomes(kind: str, fault: str, place: Path, tries: int, seed: int = 1) -> Counter[str]:
    """What becomes of a fault, so many times."""
    if (fault in _AS_ROOT and os.geteuid() != 0) or tries == 0:
        return Counter()
    chosen = random.Random(f"{kind} {fault} {seed}")
    template = _pristine(kind, place)
    outcome(KINDS[kind])
    saved = place.with_name("saved")
    shutil.copytree(template, saved)
    found: Counter[str] = Counter()
    for _ in range(tries):
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(saved, place)
        found[_tried(kind, fault, place, chosen)] += 1
    shutil.rmtree(saved)
    return found


def race_outcomes(kind: str, place: Path, races: int, processes: int = 4, seed: int = 1) -> Counter[str]:
    """Processes that begin at once, in an empty folder or beside damage; some are killed while they work."""
    chosen = random.Random(f"{kind} {seed}")
    found: Counter[str] = Counter()
    usual = 0.02
    for _ in tqdm(range(races), desc=f"races, {kind}", disable=None):
        if chosen.random() < 0.5 or not _files(place):
            _pristine(kind, place)
        else:
            FAULTS["cut"](place, chosen)
        begin = time.monotonic()
        orders = [chosen.randrange(2) for _ in range(processes)]
        pids = [begun(lambda order=order: outcome(KINDS[kind], order)) for order in orders]
        killed = [pid for pid in pids if chosen.random() < 0.4]
        time.sleep(chosen.random() * usual)
        for pid in killed:
            os.kill(pid, signal.SIGKILL)  # a child that is not waited for yet
        ends = [ended(pid) for pid in pids]
        usual = 0.9 * usual + 0.1 * (time.monotonic() - begin)
        ends.append(ended(begun(lambda: outcome(KINDS[kind], 1))))
        last = ended(begun(lambda: outcome(KINDS[kind], 0)))
        wrong = [status for status in ends if status not in (RIGHT, KEPT, -signal.SIGKILL)]
        if wrong:
            found[{WRONG: "WRONG", TRACEBACK: "TRACEBACK"}.get(wrong[0], f"ENDED {wrong[0]}")] += 1
        else:
            found["right" if last == KEPT else "NOT KEPT AGAIN"] += 1
    return found


def _shown(kind: str, what: str, found: Counter[str]) -> int:
    wrong = found.total() - found["right"]
    print(f"{kind:13} {what:34} {found.total():5} {found['right']:6} {wrong:6}", flush=True)
    for how, count in found.items():
        if how != "right":
            print(f"    {count} x {how}")
    return wrong


def main() -> None:
    """Print a row for each fault and kind of file; exit status 1 if anything was wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--races", type=int, default=2000)
    parser.add_argument("--kind", choices=KINDS, help="of file; both if not given")
    arguments = parser.parse_args()
    kinds = [arguments.kind] if arguments.kind else list(KINDS)
    wrong = total = 0
    print(f"{'kept':13} {'fault':34} {'tries':>5} {'right':>6} {'wrong':>6}")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "place"
        for kind in kinds:
            _pristine(kind, place)
            outcome(KINDS[kind])  # once in this process: children need not load the compiler
            tries = -(-arguments.faults // (len(FAULTS) * len(kinds)))
            for fault in FAULTS:
                found = fault_outcomes(kind, fault, place, tries)
                wrong, total = wrong + _shown(kind, fault, found), total + found.total()
        print(f"{total} faults")
        for kind in kinds:
            # Compiling takes a hundred times as long as finding these designs.
            code = arguments.races // 16
            share = {"designs": arguments.races - code, "machine code": code}[kind]
            wrong += _shown(kind, "processes at once, some killed", race_outcomes(kind, place, share))
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
