"""A deployment on loopback loses its SuperLink, a SuperNode or its server app in the middle of a run.

Three SuperNodes, real processes; after the first round something is killed while the second one is under way,
and started again. The run goes on by itself, or ends and is resumed by ``execution.resume``. Then the same
run is made in this process, where exactly the users fail who were absent: the model must be the same, to the
bit, and no user may be in a round twice.

    python simulations/reliability/distributed_faults.py [--rounds 4] [--fault NAME ...] [--round-timeout 60]
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from loopback import Network, network
from without_faults import in_one_process, model, participations

import fedmf
from fedmf.records import Ledger
from fedmf.runs import dotted_keys

NODES, USERS, COHORT = 3, 12, 6
#: The longest that a SuperLink takes to notice that a server app is gone, and a run to be submitted again.
_PATIENCE = 900.0


@dataclass(frozen=True)
class Fault:
    """Something that happens in the middle of a round.

    Args:
        disturb: the network.
        isolation: of its SuperLink, see `Network`.
        goes_on: whether the run is expected to go on by itself.
    """

    disturb: Callable[[Network], None]
    isolation: str
    goes_on: bool


def _restart_link(seconds: float) -> Callable[[Network], None]:
    def disturb(net: Network) -> None:
        net.kill("superlink")
        time.sleep(seconds)
        net.start_link()

    return disturb


def _restart_node(net: Network) -> None:
    net.kill("supernode-1")
    net.start_node(1)


FAULTS = {
    "SuperNode killed and started again": Fault(_restart_node, "subprocess", goes_on=True),
    "SuperLink killed and started again, server app beside it": Fault(
        _restart_link(3.0), "process", goes_on=True
    ),
    "SuperLink killed and started again, server app below it": Fault(
        _restart_link(3.0), "subprocess", goes_on=False
    ),
    "SuperLink away for 30 seconds, server app beside it": Fault(
        _restart_link(30.0), "process", goes_on=True
    ),
    "server app killed": Fault(Network.kill_server_app, "subprocess", goes_on=False),
}


def run_of(rounds: int, place: Path, round_timeout: float) -> fedmf.Run:
    """A run with momentum and noise that depends on rows before; a node that is gone is soon given up."""
    return fedmf.Run(
        task=fedmf.Classification(fedmf.Digits(users=USERS), fedmf.Mlp(hidden_units=(4,))),
        cohorts=fedmf.CyclicCohorts(rounds=rounds, size=COHORT),
        privacy=fedmf.UserLevel(epsilon=8.0, delta=1e-5, clip_norm=0.3, noise_seed=3),
        mechanism=fedmf.NamedMechanism("bisr", {"bands": 2}),
        optimizer=fedmf.Sgd(learning_rate=0.2, momentum=0.9),
        local=fedmf.LocalSGD(engine="loop"),  # compiled steps would be compiled by every node of the copy
        execution=fedmf.Execution(
            messages="per-user",
            round_timeout=round_timeout,
            handshake_timeout=600.0,
            min_replies=1,
            grace=30.0,
            output_dir=str(place),
        ),
    )


@dataclass(frozen=True)
class Outcome:
    """What became of a run.

    Args:
        went_on: whether it completed without being resumed.
        released: rounds.
        absent: how many users of all cohorts were absent.
        same: whether the model is that of the run in one process without them, and nobody was counted twice.
        said: what a submission that failed left to be read.
        seconds: in all.
    """

    went_on: bool
    released: int
    absent: int
    same: bool
    said: str
    seconds: float

    def is_right(self, fault: Fault, rounds: int) -> bool:
        """Whether it ended as it should."""
        return self.same and self.released == rounds and self.went_on == fault.goes_on


def outcome(fault: Fault, folder: Path, rounds: int = 4, round_timeout: float = 60.0) -> Outcome:
    """The experiment in an empty folder."""
    begun, place = time.monotonic(), folder / "run"
    run, said = run_of(rounds, place, round_timeout), ""
    with network(folder, NODES, fault.isolation) as net:
        submitted = net.submit(dotted_keys(run), _PATIENCE)
        _wait(lambda: released(place) > 0 or not submitted.is_alive())
        time.sleep(1.0)  # into the second round
        fault.disturb(net)
        _wait(lambda: not net.server_app_lives())
        went_on = released(place) == rounds
        if not went_on:
            said = submitted.error or (submitted.ended.details if submitted.ended else "")
            execution = dataclasses.replace(run.execution, resume=True)
            again = net.submit(dotted_keys(dataclasses.replace(run, execution=execution)), _PATIENCE)
            again.join()
            said += again.error or (again.ended.details if again.ended and not again.ended.ok else "")
    present = participations(place)
    absent = _absent(run, present)
    alone = dataclasses.replace(run.execution, users_per_message=1, output_dir="")
    in_one_process(dataclasses.replace(run, execution=alone), folder / "alone", absent)
    same = model(place) == model(folder / "alone") and len(present) == len(set(present))
    missing = sum(map(len, absent.values()))
    return Outcome(went_on, released(place), missing, same, said, time.monotonic() - begun)


def released(place: Path) -> int:
    """How many rounds the ledger has so far."""
    if not (place / "ledger.sqlite").exists():
        return 0
    try:
        with Ledger.open(place / "ledger.sqlite", read_only=True) as ledger:
            last = ledger.last_round()
    except ValueError:  # it is just being made
        return 0
    return 0 if last is None else last + 1


def _absent(run: fedmf.Run, present: list[tuple[int, str]]) -> dict[int, frozenset[str]]:
    ids = run.task_source.build().dataset.user_ids
    schedule = run.cohorts.schedule(USERS, run.participation, secret_seed=0)
    cohorts = {t: {ids[int(u)] for u in schedule.cohort(t)} for t in range(run.cohorts.rounds)}
    return {t: frozenset(users - {u for s, u in present if s == t}) for t, users in cohorts.items()}


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {_PATIENCE:g} seconds in vain.")
        time.sleep(0.2)


def main() -> int:
    """The command; exit status 1 if a run did not end as it should."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--fault", nargs="+", choices=FAULTS, default=list(FAULTS), metavar="NAME")
    parser.add_argument(
        "--round-timeout", type=float, default=60.0, help="in seconds; more on a slow machine"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    wrong = 0
    for name in given.fault:
        with tempfile.TemporaryDirectory() as folder:
            found = outcome(FAULTS[name], Path(folder), given.rounds, given.round_timeout)
        wrong += not found.is_right(FAULTS[name], given.rounds)
        how = "went on" if found.went_on else "resumed"
        end = "the same model" if found.same else "ANOTHER MODEL"
        figures = f"{found.released} rounds, {found.absent} absent, {end}, {found.seconds:.0f} s"
        print(f"{name:58} {how}, {figures}  {found.said[:100]}", flush=True)
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
