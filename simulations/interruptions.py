"""Interrupt tiny runs at random moments, resume them, and compare with an uninterrupted run.

    python simulations/interruptions.py --moments 20

For each way of stopping and each interval of checkpoints: in how many runs it hit between the first
and the last commit, rounds lost, the spent ε at the end, and how many models are equal to the bit.
"flwr stop" is a ServerApp's handler of signals, and the SIGINT that Flower then sends.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import random
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from flwr.supercore.exit.signal_handler import register_signal_handlers
from flwr.supercore.telemetry import EventType

import fedmf
from fedmf.flower.apps import make_client_app
from fedmf.flower.clients import run_on_grid
from fedmf.flower.grid import InProcessGrid
from fedmf.runs.loop import RoundRecord
from fedmf.runs.simulation import run_in_process
from fedmf.runs.tables.configuration import run_of
from fedmf.training import LocalTrainer

ROUNDS = 14
SIGNALS = {"SIGINT": 2, "SIGINT twice": 2, "SIGTERM": 15, "flwr stop": 2}
KEYS = {
    **{"data.kind": "digits", "data.users": 24, "model.kind": "mlp", "model.hidden-units": "5"},
    **{"cohorts.rounds": ROUNDS, "cohorts.users-per-round": 6, "mechanism.kind": "bisr"},
    **{"mechanism.bands": 3, "client.engine": "loop", "server.momentum": 0.9},
    **{"execution.evaluate-every": ROUNDS, "client.batch-size": 64},
    **{"privacy.epsilon": 8.0, "privacy.delta": 1e-5, "privacy.noise-seed": 7},
}
CONTEXT: Any = mp.get_context("forkserver")


def execute(place: Path, every: int, way: str, last: int, delay: float) -> None:
    """Start a run in this process, and stop it after round ``last``, or ``delay`` seconds later."""

    def strike() -> None:
        for _ in range(1 + (way == "SIGINT twice")):
            os.kill(os.getpid(), SIGNALS[way])
            time.sleep(0.005)

    if last == 0:
        threading.Timer(delay, strike).start()

    def on_round(record: RoundRecord) -> bool:
        if record.rounds == last and way in SIGNALS:
            threading.Timer(delay, strike).start()
        time.sleep(0.02)
        if record.rounds == last and way == "exception":
            raise RuntimeError("interrupted")
        return record.rounds == last and way == "callback"

    run = run_of({**KEYS, "execution.checkpoint-every": every})
    if way == "flwr stop":
        register_signal_handlers(EventType.FLWR_SERVERAPP_RUN_LEAVE)
        with fedmf.start(run, place) as session:
            trainer = LocalTrainer(session.task, run.client)
            client = make_client_app(lambda _: (trainer, session.sums))
            run_on_grid(session, InProcessGrid(client), on_round)
    else:
        fedmf.simulate(run, place, on_round=on_round, progress=False)


def finish(place: Path, every: int, report: Path) -> None:
    """Resume a run, or start it if nothing was started, and report what became of it."""
    run = run_of({**KEYS, "execution.checkpoint-every": every})
    begin = fedmf.resume if (place / "ledger.sqlite").exists() else fedmf.start
    with begin(run, place) as session:
        found: dict[str, Any] = {"released": session.server.t, "lost": len(session.server.lost)}
        run_in_process(session)
        found["model"] = session.server.parameters.tolist()
        found["epsilon"] = session.statement()["epsilon_spent"]
    report.write_text(json.dumps(found))


def silently(function: Any, *arguments: Any) -> None:
    """Call a function with one thread and without its messages."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    torch.set_num_threads(1)
    function(*arguments)


def in_process(function: Any, *arguments: Any) -> None:
    """Run a function in a process of its own."""
    process = CONTEXT.Process(target=silently, args=(function, *arguments))
    process.start()
    process.join()


def interrupted(folder: Path, way: str, every: int, index: int) -> dict[str, Any]:
    """The report of one run that was interrupted and resumed.

    A signal comes 0 to 60 ms after a random round, or in the first two seconds of the process.
    """
    draw = random.Random(f"{way} {every} {index}")
    place = folder / f"{way} {every} {index}"
    last = draw.randint(1, ROUNDS - 1)
    delay = draw.uniform(0.0, 0.06)
    if way in SIGNALS and index % 5 == 0:
        last = 0
        delay = draw.uniform(0.0, 2.0)
    in_process(execute, place, every, way, last, delay)
    report = place.with_suffix(".json")
    in_process(finish, place, every, report)
    return json.loads(report.read_text())


def main() -> None:
    """Carry all of it out and print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--moments", type=int, default=20)
    options.add_argument("--ways", nargs="*", default=[*SIGNALS, "exception", "callback"])
    given = options.parse_args()
    CONTEXT.set_forkserver_preload(["fedmf.flower.apps", "fedmf.runs.simulation"])
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(3) as pool:
        folder = Path(name)
        in_process(finish, folder / "whole", 1, folder / "whole.json")
        whole = json.loads((folder / "whole.json").read_text())
        print("way | checkpoints every | hit in training | rounds lost | ε spent | models equal")
        for way in given.ways:
            for every in (1, 10, 100):
                jobs = [
                    pool.submit(interrupted, folder, way, every, index)
                    for index in range(given.moments)
                ]
                reports = [job.result() for job in jobs]
                hit = sum(0 < report["released"] < ROUNDS for report in reports)
                lost = sum(report["lost"] for report in reports)
                epsilons = sorted({round(report["epsilon"], 6) for report in reports})
                equal = sum(report["model"] == whole["model"] for report in reports)
                print(way, every, hit, lost, epsilons, equal, sep=" | ", flush=True)


if __name__ == "__main__":
    main()
