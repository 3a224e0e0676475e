"""G4: a fault before whichever call that changes a file loses nothing and releases nothing
twice.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from fedmf.errors import ConfigError, HorizonExceededError, LedgerError
from fedmf.ledger.ledger import INLINE
from guarantees.small import NAMES, aggregator, random_rows, stream
from guarantees.system_calls import SUPPORTED, Call, traced

pytestmark = pytest.mark.skipif(
    not SUPPORTED, reason="system calls are traced on Linux and x86-64 alone"
)

ROUNDS = 3
DIMENSION = 5
ROWS = random_rows(DIMENSION).astype(np.float32)
#: What the documentation says a process may end with: one line each.
DOCUMENTED = (ConfigError, LedgerError, OSError)
REFUSED = 3


#: Ends what a directory holds, tells a descriptor what is released; what it knows, and how far it
#: was.
Job = Callable[[Path, int], tuple[dict[int, bytes], int]]


def run(place: Path, say: int) -> tuple[dict[int, bytes], int]:
    """To the last round; each model is told after it was released, and so is the one that is
    found.
    """
    opened = aggregator(place, ROUNDS).begin({"w": np.zeros(DIMENSION, np.float32)})
    found = opened.t
    shown = {found: opened.model["w"].tobytes()}
    tell(say, found, shown[found])
    while opened.t < ROUNDS:
        for user in opened.cohort(opened.t):
            opened.add(user, {"w": ROWS[NAMES.index(user)]})
        model = opened.release()["w"].tobytes()
        shown[opened.t] = model
        tell(say, opened.t, model)
    opened.close()
    return shown, found


def tell(say: int, t: int, values: bytes) -> None:
    os.write(say, b"shown %d %s\n" % (t, values.hex().encode()))


def pushed(place: Path, say: int) -> tuple[dict[int, bytes], int]:
    """To the last row, each with a key; what was released is told again."""
    shown = {}
    with stream(place, ROUNDS, dimension=DIMENSION, clip_norm=2.0) as opened:
        found = opened.t
        for t in range(1, ROUNDS + 1):
            release = opened.push(ROWS[t], user=f"u{t}", key=f"row {t}")
            shown[t] = np.asarray(release.sum, np.float64).tobytes()
            tell(say, t, shown[t])
    return shown, found


JOBS: dict[str, Job] = {"run": run, "stream": pushed}
#: Every so many-th call fails, or is the last before which a process is killed.
STRIDE = {"SIGKILL": 17, "ENOSPC": 5, "EIO": 4}


def finished(job: Job, place: Path) -> tuple[dict[int, bytes], int]:
    sink = os.open(os.devnull, os.O_WRONLY)
    try:
        return job(place, sink)
    finally:
        os.close(sink)


def releases(said: bytes) -> dict[int, bytes]:
    """What was shown, by round; what is shown again must be the same."""
    found: dict[int, bytes] = {}
    for t, shown in re.findall(rb"shown (\d+) ([0-9a-f]*)\n", said):
        model = bytes.fromhex(shown.decode())
        assert found.setdefault(int(t), model) == model, (
            "a round was shown twice with other numbers"
        )
    return found


def attempt(job: Job, place: Path, decide: Callable[[Call], int | None]) -> bytes:
    """What a traced process says until it ends, by itself or by what was decided."""
    said: list[bytes] = []

    def watching(call: Call) -> int | None:
        if call.name == "say":
            said.append(call.content)
            return None
        return decide(call)

    def body() -> None:
        try:
            job(place / "job", os.pipe()[1])
        except DOCUMENTED as error:
            raise SystemExit(REFUSED if "\n" not in str(error) else 1) from None

    place.mkdir(exist_ok=True)
    code = traced(body, place, watching)
    assert code in (0, REFUSED, -9), code
    return b"".join(said)


def check_faults(job: Job, folder: Path, fault: str) -> int:
    """Before every n-th call that changes a file; how many were tried."""
    number = {"SIGKILL": 0, "ENOSPC": errno.ENOSPC, "EIO": errno.EIO}[fault]
    expected, _ = finished(job, folder / "whole")
    for tried in range(1000):
        at = tried * STRIDE[fault]
        calls = [0]

        def decide(_: Call, at: int = at, calls: list[int] = calls) -> int | None:
            calls[0] += 1
            return number if calls[0] == at + 1 else None

        place = folder / f"{tried}"
        go_on(job, place, attempt(job, place, decide), expected)
        shutil.rmtree(place)
        if calls[0] <= at:
            return tried
    raise AssertionError("the job makes no end")


def go_on(job: Job, place: Path, said: bytes, expected: dict[int, bytes]) -> None:
    """Where a process ended, another loses nothing that was shown, and shows nothing else."""
    seen = releases(said)
    again, found = finished(job, place / "job")
    assert found >= max(seen, default=0), "what was shown is lost"
    for shown in (seen, again):
        assert shown.items() <= expected.items(), said
    assert ROUNDS in again


@pytest.mark.parametrize("fault", STRIDE)
@pytest.mark.parametrize("job", JOBS)
def test_a_fault_before_a_call_loses_nothing(job: str, fault: str, tmp_path: Path) -> None:
    assert check_faults(JOBS[job], tmp_path, fault) > 6


def check_kills(job: Job, folder: Path) -> int:
    """Before every call. A kill leaves what is there, so each is gone on from a copy that is made
    of it.
    """
    expected, _ = finished(job, folder / "whole")
    place = folder / "place"
    said = list[bytes]()
    left = list[tuple[bytes, Path]]()

    def watching(call: Call) -> None:
        if call.name == "say":
            said.append(call.content)
        else:
            left.append((b"".join(said), folder / f"before-{len(left)}"))
            shutil.copytree(place, left[-1][1])

    place.mkdir()
    assert traced(lambda: job(place / "job", os.pipe()[1]), place, watching) == 0
    for shown, before in left:
        shutil.rmtree(place)
        before.rename(place)  # a run knows its place
        go_on(job, place, shown, expected)
    return len(left)


@pytest.mark.parametrize("job", JOBS)
def test_a_kill_before_any_call_loses_nothing(job: str, tmp_path: Path) -> None:
    assert check_kills(JOBS[job], tmp_path) > 100


@dataclass
class Entry:
    """A file or folder of a disk that keeps what was flushed: content and names, each now and
    kept.
    """

    content: bytearray = field(default_factory=bytearray)
    kept_content: bytes = b""
    names: dict[str, Entry] | None = None
    kept_names: dict[str, Entry] = field(default_factory=dict)

    def write(self, place: Path) -> None:
        """What a power loss leaves of it."""
        if self.names is None:
            place.write_bytes(self.kept_content)
            place.chmod(0o600)
            return
        place.mkdir(mode=0o700)
        for name, entry in self.kept_names.items():
            entry.write(place / name)


class Disk:
    """Files below a folder, by the calls that changed them: names are kept by a flush of their
    folder.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.top = Entry(names={})

    def _at(self, path: str) -> tuple[dict[str, Entry], str, Entry | None]:
        """The names of its folder, its name, and what it is."""
        *folders, name = Path(path).relative_to(self._root).parts or ("",)
        names = self.top.names
        for folder in folders:
            assert names is not None
            names = names[folder].names
        assert names is not None
        return names, name, names.get(name) if name else self.top

    def take(self, call: Call) -> None:
        """Carry a call out."""
        names, name, entry = self._at(call.path)
        if call.name in ("create", "mkdir"):
            names[name] = Entry(names={} if call.name == "mkdir" else None)
        elif call.name == "rename":
            target, new, _ = self._at(call.target)
            target[new] = names.pop(name)
        elif call.name in ("unlink", "rmdir"):
            names.pop(name, None)
        elif entry is not None and call.name == "sync":
            entry.kept_content = bytes(entry.content)
            entry.kept_names = dict(entry.names or {})
        elif entry is not None and call.name in ("open-truncated", "write", "truncate"):
            begin = 0 if call.name == "open-truncated" else call.offset
            entry.content.extend(bytes(max(0, begin - len(entry.content))))
            end = begin + len(call.content) if call.name == "write" else len(entry.content)
            entry.content[begin:end] = call.content


def check_power_losses(job: Job, folder: Path) -> None:
    """After each release that was shown, all that was not flushed is gone; nothing shown is."""
    expected, _ = finished(job, folder / "whole")
    place = folder / "traced"
    disk = Disk(place)
    losses = list[tuple[int, Path]]()

    def watching(call: Call) -> int | None:
        if call.name != "say":
            disk.take(call)
        elif call.content.startswith(b"shown"):
            losses.append((int(call.content.split()[1]), folder / f"after-{len(losses)}"))
            disk.top.write(losses[-1][1])
        return None

    place.mkdir()
    assert traced(lambda: job(place / "job", os.pipe()[1]), place, watching) == 0
    assert len(losses) >= ROUNDS
    for t, after in losses:
        shutil.rmtree(place, ignore_errors=True)
        after.rename(place)  # a run knows its place
        shown, found = finished(job, place / "job")
        assert found >= t, f"round {t} was shown and is lost"
        assert ROUNDS in shown
        assert shown.items() <= expected.items()


@pytest.mark.parametrize("job", JOBS)
def test_what_was_shown_is_on_the_disk(job: str, tmp_path: Path) -> None:
    check_power_losses(JOBS[job], tmp_path)


def large_run(place: Path, say: int) -> tuple[dict[int, bytes], int]:
    """A run whose states have files of their own; sums of models are told."""
    opened = aggregator(place, ROUNDS).begin({"w": np.zeros(INLINE, np.float32)})
    found = opened.t
    shown = {found: sha256(opened.model["w"]).digest()}
    tell(say, found, shown[found])
    while opened.t < ROUNDS:
        model = sha256(opened.release()["w"]).digest()
        shown[opened.t] = model
        tell(say, opened.t, model)
    opened.close()
    return shown, found


def test_what_was_shown_of_a_large_run_is_on_the_disk(tmp_path: Path) -> None:
    check_power_losses(large_run, tmp_path)


@pytest.mark.parametrize("job", JOBS)
def test_a_dropped_flush_is_seen(job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _: None)
    with pytest.raises((AssertionError, *DOCUMENTED)):
        check_power_losses(JOBS[job], tmp_path)


def check_damage(job: Job, folder: Path) -> None:
    """Flipped bits and lost ends of what is kept: refused in a line, or of no consequence."""
    expected, _ = finished(job, folder / "whole")
    rng = np.random.default_rng(4)
    files = [
        path
        for path in sorted((folder / "whole").rglob("*"))
        if path.stat().st_size and path.is_file()
    ]
    kept = [
        path for path in files if re.match(r"(ledger|stream)\.sqlite|noise\.key|.*\.bin", path.name)
    ]
    assert kept
    refused = 0
    for path in kept:
        whole = path.read_bytes()
        for at in rng.integers(0, len(whole), 12).tolist():
            broken = bytearray(whole)
            broken[at] ^= 1 << int(rng.integers(0, 8))
            for content in (bytes(broken), whole[:at]):
                shutil.copytree(folder / "whole", folder / "copy")
                (folder / "copy" / path.name).write_bytes(content)
                shutil.move(folder / "whole", folder / "aside")
                shutil.move(folder / "copy", folder / "whole")
                try:
                    again, _ = finished(job, folder / "whole")
                    assert again.items() <= expected.items(), (path.name, at)
                except (*DOCUMENTED, ValueError, HorizonExceededError):
                    refused += 1
                shutil.rmtree(folder / "whole")
                shutil.move(folder / "aside", folder / "whole")
    assert refused > len(kept)


@pytest.mark.parametrize("job", JOBS)
def test_damage_is_refused(job: str, tmp_path: Path) -> None:
    check_damage(JOBS[job], tmp_path)
