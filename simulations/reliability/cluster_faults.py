"""A node of a Ray cluster is killed in the middle of a round: the run goes on without what its users sent.

Three Ray nodes on this machine, one slice of each cohort on each. While a round is being trained one node is
killed; two rounds later another one joins. Then the same run is made in this process, where exactly the
slices that were lost fail: model and ledger must be the same, to the bit.

    python simulations/reliability/cluster_faults.py [--rounds 7] [--kill-in 3]
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from without_faults import Lost, in_one_process, records

import fedmf
from fedmf.flower.simulation import run_on_ray
from fedmf.rounds import RoundReport, SentMessage, watched_messages

WORKERS = 3
NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 * 2**20}


def run_of(rounds: int, address: str = "") -> fedmf.Run:
    """A run whose rounds take a second or so, so that there is a middle to be hit."""
    return fedmf.Run(
        task=fedmf.Classification(fedmf.Digits(users=30), fedmf.Mlp(hidden_units=(8,))),
        cohorts=fedmf.CyclicCohorts(rounds=rounds, size=15),
        privacy=fedmf.UserLevel(epsilon=8.0, delta=1e-5, clip_norm=0.3, noise_seed=3),
        mechanism=fedmf.NamedMechanism("bisr", {"bands": 2}),
        optimizer=fedmf.Sgd(learning_rate=0.2, momentum=0.9),
        local=fedmf.LocalSGD(epochs=600, batch_size=8),
        execution=fedmf.Execution(workers=WORKERS, ray_address=address),
    )


@dataclass(frozen=True)
class Outcome:
    """What became of the run on the cluster.

    Args:
        released: rounds.
        lost: users whose contribution was the zero vector, by round.
        seconds: of each round.
        same: whether the run in one process, where the same slices fail, has the same model and ledger.
    """

    released: int
    lost: Lost
    seconds: tuple[float, ...]
    same: bool

    def is_right(self, rounds: int, kill_in: int) -> bool:
        """Whether a slice was lost from that round on, nothing before, and nothing in the last round.

        A round that is much shorter than those before may end before the node does: then the next one loses.
        """
        return (
            self.same
            and self.released == rounds
            and min(self.lost, default=-1) in (kill_in - 1, kill_in)
            and rounds - 1 not in self.lost
        )


@contextmanager
def _cluster() -> Iterator[tuple[Any, Any]]:
    """Three nodes, and that one of them which is to be killed; all of them end with this."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        victim = [cluster.add_node(**NODE) for _ in range(WORKERS - 1)][-1]
        cluster.wait_for_nodes()
        cluster._shutdown_at_exit = False  # another thread, which may set no signal handlers, adds later ones
        yield cluster, victim
    finally:
        cluster.shutdown()


def on_a_cluster(place: Path, rounds: int, kill_in: int) -> tuple[dict[int, frozenset[str]], list[float]]:
    """Make the run on three nodes and kill one in the middle of a round, counted from 1."""
    with _cluster() as (cluster, victim):
        return _disturbed(cluster, victim, place, rounds, kill_in)


def _disturbed(
    cluster: Any, victim: Any, place: Path, rounds: int, kill_in: int
) -> tuple[dict[int, frozenset[str]], list[float]]:
    import ray
    from ray._private.state import actors

    killers: list[threading.Timer] = []
    begun: set[int] = set()

    def begin(sent: SentMessage) -> None:
        if sent.kind == "train" and int(sent.group) not in begun:
            begun.add(int(sent.group))
            if int(sent.group) == kill_in:
                killers.append(threading.Timer(min(seconds) / 4, lambda: _kill(cluster, victim)))
                killers[0].start()
            if int(sent.group) == kill_in + 2:
                _until(lambda: sum(node["Alive"] for node in ray.nodes()) == WORKERS - 1)
                cluster.add_node(**NODE)
                _until(lambda: all(actor["State"] in ("ALIVE", "DEAD") for actor in actors().values()))

    lost: dict[int, frozenset[str]] = {}
    seconds: list[float] = []

    def note(report: RoundReport, _: object) -> None:
        seconds.append(report.seconds)
        if report.failures:
            lost[report.t] = frozenset(failure.user for failure in report.failures)

    try:
        with watched_messages(begin), fedmf.start(run_of(rounds, str(cluster.address)), place) as session:
            run_on_ray(session, note)
    finally:
        for killer in killers:
            killer.join()
    return lost, seconds


def _kill(cluster: Any, node: Any) -> None:
    """A node and its workers at once, as when a machine loses its power."""
    (raylet,) = node.all_processes["raylet"]
    workers = _children(raylet.process.pid)
    cluster.remove_node(node, allow_graceful=False)
    for pid in workers:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _children(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(stat.read_text().rpartition(") ")[2].split()[1]) == parent:
                found.append(int(stat.parent.name))
    return found


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 600
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the cluster did not notice what happened.")
        time.sleep(0.2)


def outcome(folder: Path, rounds: int = 7, kill_in: int = 3) -> Outcome:
    """The experiment in an empty folder."""
    lost, seconds = on_a_cluster(folder / "cluster", rounds, kill_in)
    in_one_process(run_of(rounds), folder / "alone", lost)
    return Outcome(
        len(seconds), lost, tuple(seconds), records(folder / "cluster") == records(folder / "alone")
    )


def main() -> int:
    """The command; exit status 1 if the run did not go on, or not to the same model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--kill-in", type=int, default=3, help="round, counted from 1")
    given = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = outcome(Path(folder), given.rounds, given.kill_in)
    for name, value in dataclasses.asdict(found).items():
        print(f"{name}: {value}")
    print(f"{time.monotonic() - begun:.0f} s")
    return int(not found.is_right(given.rounds, given.kill_in))


if __name__ == "__main__":
    raise SystemExit(main())
