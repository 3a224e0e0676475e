"""Where the time of one round of the workload goes: its parts, each without the parts within it.

    OMP_NUM_THREADS=1 taskset -c 3 python simulations/benchmarks/engines/phases.py --model mlp --rounds 200

Functions are wrapped by clocks of their own, so that the interpreter's profiler does not weigh on short
calls. Lower quartiles, microseconds.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fedmf_run
import numpy as np
import workload
from numpy.typing import NDArray

import fedmf
import fedmf.noise.rows.noise_stream as noise_stream
import fedmf.optim.server_pass as server_pass
import fedmf.records.frames as frames
import fedmf.records.ledger.ledger as ledger
import fedmf.rounds.here as here
import fedmf.rounds.requests as requests
import fedmf.runs.directory as directory
import fedmf.training.clipping.fixed_point as fixed_point
import fedmf.training.local as local
import fedmf.training.low_rank.program as low_rank
from fedmf.rounds import Rounds, run_in_process
from fedmf.runs.releases import RoundUnderWay

#: What is shown: (part, owner, function).
PARTS: list[tuple[str, Any, str]] = [
    ("training: compiled steps, clip, integers", low_rank, "train_and_sum"),
    ("training: the model laid out", low_rank.LowRankProgram, "received"),
    ("training: examples, groups, the rest", local.LocalTrainer, "add_updates"),
    ("requests: cohort", Rounds, "ask"),
    ("requests: the model copied", here, "copied_vector"),
    ("requests: answered", here, "trained"),
    ("requests: answer checked", requests.Answer, "add_to"),
    ("server: sum added", fixed_point.FixedPointSum, "add_clipped_sum"),
    ("server: noise", noise_stream.NoiseStream, "add_"),
    ("server: sum to float64, mean, step", server_pass.ServerPass, "step"),
    ("server: wait for the last commit", RoundUnderWay, "wait"),
    ("commit, aside: SHA-256 of the state", frames.State, "of"),
    ("commit, aside: checks, chain, row", ledger.Ledger, "commit_round"),
    ("commit, aside: write", frames, "write_at"),
    ("commit, aside: flush", frames, "_flush"),
    ("commit, aside: the rest", directory.RunDirectory, "commit"),
    ("all else of a round", Rounds, "_round"),
]


Spent = NDArray[np.float64]


def _now() -> Spent:
    """Seconds of the clock on the wall, and of the processor in this thread."""
    return np.array([time.perf_counter(), time.thread_time()])


class Clocks:
    """Seconds by part, each without the parts within it; of all threads. And those of a processor."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, Spent] = defaultdict(lambda: np.zeros(2))
        self._of_thread = threading.local()

    def wrap(self, part: str, owner: Any, name: str) -> None:
        """Let a function be clocked wherever its owner is asked for it."""
        raw = vars(owner)[name]
        function: Callable[..., Any] = raw.__func__ if isinstance(raw, classmethod) else raw

        def clocked(*values: Any, **named: Any) -> Any:
            within = self._of_thread.__dict__.setdefault("within", [])
            within.append(np.zeros(2))
            begun = _now()
            try:
                return function(*values, **named)
            finally:
                spent = _now() - begun
                self.seconds[part] = self.seconds[part] + spent - within.pop()
                if within:
                    within[-1] = within[-1] + spent

        setattr(owner, name, classmethod(clocked) if isinstance(raw, classmethod) else clocked)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=workload.MODELS, default="mlp")
    parser.add_argument("--mechanism", choices=("identity", "bisr"), default="bisr")
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    workload.ROUNDS = options.rounds
    clocks, after, ends = Clocks(), list[dict[str, Spent]](), list[tuple[float, float]]()
    for part in PARTS:
        clocks.wrap(*part)

    def note(*_: object) -> None:
        after.append(dict(clocks.seconds))
        ends.append((time.perf_counter(), time.process_time()))

    run = fedmf_run.described(options.mechanism, "auto", fedmf_run.task(options.model))
    with tempfile.TemporaryDirectory() as folder, fedmf.start(run, Path(folder) / "run", "cpu") as session:
        run_in_process(session, note)
    first = workload.WARM_UP
    for part in [name for name, _, _ in PARTS]:
        spent = np.diff([row.get(part, np.zeros(2)) for row in after[first:]], axis=0)
        wall, processor = 1e6 * np.quantile(spent, 0.25, axis=0)
        print(f"{part:45} {wall:9.0f} {processor:9.0f}")
    whole = np.diff(ends[first:], axis=0)
    (wall, processor), (median, _) = 1e6 * np.quantile(whole, [0.25, 0.5], axis=0)
    print(f"{'a round, from report to report':45} {wall:9.0f} {processor:9.0f}   median {median:.0f}")


if __name__ == "__main__":
    main()
