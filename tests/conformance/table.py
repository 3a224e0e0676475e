"""Carries a subject out on a path, and says of what was released how far it is from what it must
be.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path as Folder
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from support.ledgers import participations
from support.pair_runs import RecordedPair
from support.small_runs import client_for

import fedmf
from fedmf.errors import ConfigError
from fedmf.flower import InProcessGrid, run_on_grid
from fedmf.flower.apps import WorkerPool
from fedmf.runs.session import Session
from fedmf.runs.simulation import run_in_process

from .aggregating import carried_out_aggregated
from .paths import BOUND, HOSTS, REFERENCE, Path
from .subjects import Subject, of_parts
from .wrapping import carried_out_wrapped

#: Of a statement, what every path promises alike.
_PROMISED: Final = (
    "noise_multiplier",
    "epsilon",
    "epsilon_spent",
    "sampling",
    "mechanism",
    "params",
    "sensitivity",
    "noise_std",
    "rounds_released",
    "actual_max_participations",
    "actual_min_separation",
)
#: In memory where there is such a place: the table is about numbers, other tests are about disks.
_SHARED: Final = "/dev/shm" if Folder("/dev/shm").is_dir() else None

Verdict = Literal["equal", "within the bound", "refused", "differs"]


@dataclass(frozen=True)
class Released:
    """What a run releases: numbers by name, and what must be equal whatever computes them."""

    numbers: dict[str, NDArray[Any]]
    facts: dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """A subject on a path.

    Args:
        subject: what was computed.
        path: how.
        verdict: of the comparison.
        ulps: distance from what it was compared with, in units in the last place of its largest
            number.
        reason: of a refusal; of a difference what differs.
    """

    subject: Subject
    path: Path
    verdict: Verdict
    ulps: float = 0.0
    reason: str = ""


def carried_out(subject: Subject, path: Path) -> Released:
    """What the run of a subject releases on a path.

    Raises:
        ConfigError: fedmf refuses it.
    """
    run = subject.run(path)
    with tempfile.TemporaryDirectory(dir=_SHARED) as folder:
        if path.host in HOSTS:
            carried = carried_out_wrapped if path.host == "wrapper" else carried_out_aggregated
            return Released(*carried(run, Folder(folder) / "run", _PROMISED))
        with fedmf.start(run, Folder(folder) / "run", path.device) as session:
            (_by_messages if path.host == "messages" else run_in_process)(session)
            numbers = {"model": session.server.parameters.cpu().numpy().copy()}
            numbers |= of_parts(run, session.directory.ledger.metrics())
            facts = {
                "who took part": sorted(participations(session.directory.ledger)),
                "who failed": sorted(_failed(session.directory.path)),
            }
            statement = session.statement().to_dict()
    if isinstance(run.server, RecordedPair):
        numbers["second moments"] = run.server.seconds()
    return Released(numbers, {**facts, **{name: statement.get(name) for name in _PROMISED}})


def _by_messages(session: Session) -> None:
    grid = InProcessGrid(client_for(session), nodes=session.run.execution.workers)
    run_on_grid(session, grid, nodes=WorkerPool(session))


def _failed(path: Folder) -> Iterator[tuple[int, str]]:
    for line in (path / "failures.jsonl").read_text().splitlines():
        row = json.loads(line)
        yield row.get("round", row.get("t")), str(row["user"])


def ulps(found: NDArray[Any], expected: NDArray[Any]) -> float:
    """max|a − b| in units in the last place, as float32, of the largest |b|; infinite for other
    shapes.
    """
    if found.shape != expected.shape or not (
        np.isfinite(found).all() and np.isfinite(expected).all()
    ):
        return np.inf
    if not found.size:
        return 0.0
    unit = np.spacing(np.float32(max(np.abs(expected).max(), 1e-30)))
    return float(np.abs(found.astype(np.float64) - expected.astype(np.float64)).max() / unit)


def judged(subject: Subject, path: Path, found: Released, expected: Released) -> Cell:
    """Compare with the path whose bits were promised, else within the bound with the reference."""
    for name, fact in found.facts.items():
        if name in expected.facts and fact != expected.facts[name]:
            shown = f"{name}: {fact!r}, not {expected.facts[name]!r}"
            return Cell(subject, path, "differs", np.inf, shown[:300])
    if found.numbers.keys() != expected.numbers.keys():
        names = ", ".join(sorted(found.numbers.keys() ^ expected.numbers.keys()))
        return Cell(subject, path, "differs", np.inf, f"released by one path alone: {names}")
    if all(np.array_equal(found.numbers[name], expected.numbers[name]) for name in found.numbers):
        return Cell(subject, path, "equal")
    far = {name: ulps(found.numbers[name], expected.numbers[name]) for name in found.numbers}
    name, most = max(far.items(), key=lambda item: item[1])
    if path.same_bits is None and most <= BOUND:
        return Cell(subject, path, "within the bound", most)
    promised = (
        "the bits of " + str(path.same_bits) if path.same_bits else f"{BOUND:g} ulps of {REFERENCE}"
    )
    return Cell(subject, path, "differs", most, f"{name}: {most:.3g} ulps; promised: {promised}")


def cells(subject: Subject, paths: Sequence[Path]) -> list[Cell]:
    """A subject on these paths, and on those that they are compared with."""
    done: dict[Path, Released | str] = {}

    def outcome(path: Path) -> Released | str:
        if path not in done:
            try:
                done[path] = carried_out(subject, path)
            except (ConfigError, NotImplementedError) as error:
                done[path] = str(error)
        return done[path]

    found = []
    for path in paths:
        mine = outcome(path)
        theirs = outcome(path.same_bits or REFERENCE)
        if isinstance(mine, str):
            found.append(Cell(subject, path, "refused", reason=mine))
        elif isinstance(theirs, str):
            found.append(
                Cell(subject, path, "differs", np.inf, f"the path it is compared with: {theirs}")
            )
        else:
            found.append(judged(subject, path, mine, theirs))
    return found
