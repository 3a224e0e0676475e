"""A long run with failing clients, nodes that come and go, and stops: what grows, and what a round takes.

In every round one user in five fails: its client raises, answers NaN or nothing. A node leaves now and then
for some rounds and comes back under another id, as a SuperNode does that was started again. The run is
stopped and gone on with a few times, in one process.

    python simulations/reliability/soak.py [--rounds 10000] [--resumes 5] [--json]
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

import fedmf
from fedmf.flower.client_app import make_client_app
from fedmf.flower.local_run import InProcessGrid
from fedmf.flower.simulation import run_on_grid
from fedmf.flower.traffic import ForwardedGrid
from fedmf.rounds import RoundReport
from fedmf.runs import Session, local_trainer, run_of

USERS, COHORT, NODES, FAILING = 200, 10, 20, 0.2
#: Share of the rounds after each opening that memory is not fitted to: caches fill.
_WARM_UP = 0.2


def soaked_run(rounds: int) -> fedmf.Run:
    """Ten small models a round, one message each; nobody who is silent is waited for."""
    return run_of(
        {
            "data.kind": "synthetic",
            "data.users": USERS,
            "model.kind": "mlp",
            "model.hidden-units": 4,
            "cohorts.rounds": rounds,
            "cohorts.size": COHORT,
            "privacy.epsilon": 8.0,
            "privacy.noise-seed": 3,
            "mechanism.kind": "identity",
            "execution.messages": "per-user",
            "execution.users-per-message": 1,
            "execution.round-timeout": 0.2,
            "execution.handshake-timeout": 0.2,
            "execution.min-replies": 1,
            "execution.refusals": 0,
            "execution.evaluate-every": 100,
        }
    )


def _failure(user: str, t: int) -> str:
    chosen = random.Random(f"{user} {t}")
    if chosen.random() >= FAILING:
        return ""
    return chosen.choice(("raises", "NaN", "silent"))


def failing_client(session: Session) -> ClientApp:
    """The session's client app, which fails for one user in five."""
    trainer = local_trainer(session.run, session.task)
    inner, outer = make_client_app(lambda _: (trainer, session.sums)), ClientApp()

    @outer.train()
    def train(message: Message, context: Context) -> Message:
        config: Any = message.content.config_records["config"]
        failure = _failure(config["users"][0], config["round"])
        if failure == "raises":
            raise RuntimeError("the client failed")
        reply = inner(message, context)
        if failure == "NaN":
            content = reply.content
            (name,) = content.array_records["arrays"]
            shape = content.array_records["arrays"][name].shape
            content["arrays"] = ArrayRecord({name: Array(np.full(shape, np.nan, np.float32))})
        if failure == "silent":
            reply = Message(RecordDict({"silent": ConfigRecord({"silent": True})}), reply_to=message)
        return reply

    @outer.query()
    def query(message: Message, context: Context) -> Message:
        return inner(message, context)

    return outer


class ChangingGrid(ForwardedGrid):
    """A grid whose nodes come and go; one that comes back has another id. Silent replies never come.

    Args:
        grid: what carries the messages.
        seed: of who leaves when.
    """

    def __init__(self, grid: InProcessGrid, seed: int) -> None:
        super().__init__(grid)
        self._chosen = random.Random(seed)
        self._inner = {node: node for node in grid.get_node_ids()}
        self._away: dict[int, int] = {}
        self._sent = 0

    def change(self) -> None:
        """A round has passed: one node in forty leaves, for up to ten rounds."""
        for node in [node for node, left in self._away.items() if left == 0]:
            del self._away[node]
            self._inner[self._chosen.randrange(2**40, 2**63)] = node
        self._away = {node: left - 1 for node, left in self._away.items()}
        for outer, node in list(self._inner.items()):
            if self._chosen.random() < 1 / 40:
                del self._inner[outer]
                self._away[node] = self._chosen.randrange(10)

    def get_node_ids(self) -> Iterable[int]:
        """See Grid.get_node_ids."""
        return list(self._inner)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """See Grid.push_messages."""
        sent = list(messages)
        for message in sent:
            message.metadata.__dict__["_dst_node_id"] = self._inner[message.metadata.dst_node_id]
        return list(super().push_messages(sent))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        """See Grid.pull_messages."""
        for reply in super().pull_messages(message_ids):
            if not (reply.has_content() and "silent" in reply.content):
                yield reply


class _Stop(Exception):
    pass


@dataclass(frozen=True)
class Soak:
    """What a long run took.

    Args:
        rounds: made.
        resumes: how often the run was stopped and gone on with.
        failures: of users, in all rounds.
        memory_slope: growth of resident memory between two stops, after a warm-up, KiB per 1,000 rounds: the
            slope common to all of them. Going on reads the whole record, which may take memory once.
        memory: resident at the end, MiB.
        latency: of a round in thirds of the run, ms: p50, p95, p99, largest.
        ledger_growth: bytes a round, by halves of the run.
        directory_growth: the same, of all files.
        descriptors: fewest and most open after a round.
        seconds: in all.
    """

    rounds: int
    resumes: int
    failures: int
    memory_slope: float
    memory: float
    latency: tuple[tuple[float, ...], ...]
    ledger_growth: tuple[float, float]
    directory_growth: tuple[float, float]
    descriptors: tuple[int, int]
    seconds: float


def _memory() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024


def _sizes(path: Path) -> tuple[int, int]:
    files = {file: file.stat().st_size for file in path.rglob("*") if file.is_file()}
    ledger = sum(size for file, size in files.items() if file.name.startswith("ledger.sqlite"))
    return ledger, sum(files.values())


def soak(path: Path, rounds: int, resumes: int, seed: int = 1) -> Soak:
    """The run in a directory that does not exist yet."""
    run, begun = soaked_run(rounds), time.monotonic()
    rows: list[tuple[float, ...]] = []
    failures = 0
    stops = {round(rounds * i / (resumes + 1)) for i in range(1, resumes + 1)}
    while len(rows) < rounds:
        with fedmf.resume(run, path) if path.exists() else fedmf.start(run, path) as session:
            grid = ChangingGrid(InProcessGrid(failing_client(session), NODES), seed + len(rows))

            def note(report: RoundReport, _: object, grid: ChangingGrid = grid) -> None:
                nonlocal failures
                failures += len(report.failures)
                files = len(os.listdir("/proc/self/fd"))
                rows.append((report.t, report.seconds, _memory(), files, *_sizes(path)))
                grid.change()
                if len(rows) in stops:
                    raise _Stop

            try:
                run_on_grid(session, grid, note)
            except _Stop:
                continue
    return _summary(np.array(rows), len(stops), failures, time.monotonic() - begun)


def _summary(rows: np.ndarray, resumes: int, failures: int, seconds: float) -> Soak:
    t, latency, memory, files, ledger, directory = rows.T
    openings = np.array_split(np.arange(len(rows)), resumes + 1)
    warm = [opening[int(_WARM_UP * len(opening)) :] for opening in openings]
    first, second = np.array_split(np.arange(len(rows)), 2)
    return Soak(
        rounds=len(rows),
        resumes=resumes,
        failures=failures,
        memory_slope=_slope(*(np.concatenate([x[w] - x[w].mean() for w in warm]) for x in (t, memory))) * 1e3,
        memory=float(memory[-1]) / 1024,
        latency=tuple(
            (*(float(np.percentile(third, p)) for p in (50, 95, 99)), float(third.max()))
            for third in np.array_split(latency * 1000, 3)
        ),
        ledger_growth=(_slope(t[first], ledger[first]), _slope(t[second], ledger[second])),
        directory_growth=(_slope(t[first], directory[first]), _slope(t[second], directory[second])),
        descriptors=(int(files.min()), int(files.max())),
        seconds=seconds,
    )


def _slope(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.polyfit(x, y, 1)[0])


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--resumes", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.ERROR)  # thousands of failing clients are meant
    with tempfile.TemporaryDirectory() as folder:
        found = soak(Path(folder) / "run", given.rounds, given.resumes)
    if given.json:
        print(json.dumps(asdict(found)))
        return
    print(f"{found.rounds} rounds, {found.resumes} resumes, {found.failures} failures, {found.seconds:.0f} s")
    print(f"memory: {found.memory_slope:+.0f} KiB per 1,000 rounds, {found.memory:.0f} MiB at the end")
    for name, third in zip(("first", "second", "last"), found.latency, strict=True):
        p50, p95, p99, largest = third
        print(f"{name} third: p50 {p50:.1f} ms, p95 {p95:.1f}, p99 {p99:.1f}, largest {largest:.1f}")
    print("bytes a round in the two halves: ledger {:.0f}, {:.0f};".format(*found.ledger_growth), end=" ")
    print("directory {:.0f}, {:.0f}".format(*found.directory_growth))
    print("open descriptors: {} to {}".format(*found.descriptors))


if __name__ == "__main__":
    main()
