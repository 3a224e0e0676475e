"""What is disturbed: a run, a stream and caches, whose undisturbed result is known to the bit."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from cache_faults import KINDS
from torch import Tensor

import fedmf
from fedmf.errors import ConfigError, LedgerError
from fedmf.runs import Standing, opened_evidence, session
from fedmf.streaming import Settings, StateError, StreamState, open_run

__all__ = ["DOCUMENTED", "Job", "caches", "length", "releases_shown", "stream", "training", "with_parts"]

#: What a user sees as one line: the command line shows what the operating system says as it is.
DOCUMENTED = (ConfigError, LedgerError, StateError, OSError)
ROWS, EVERY = 12, 2


@dataclass(frozen=True)
class Job:
    """Something that releases, on a directory.

    Args:
        name: shown.
        go: does all that is left; tells the descriptor how many releases others may have seen.
        released: how many releases the records of a directory hold; raises what a user would see.
        result: what the finished job leaves, to be compared.
    """

    name: str
    go: Callable[[Path, int], object]
    released: Callable[[Path], int]
    result: Callable[[Path], object]


def releases_shown(said: bytes) -> int:
    """How many releases others may have seen, from what a job told its descriptor, among other things."""
    return max(map(int, re.findall(rb"shown (\d+)\n", said)), default=0)


def run_of(checkpoint_every: int) -> fedmf.Run:
    """A run of five rounds with a regenerated and a kept part of noise and momentum on the server."""
    return fedmf.Run(
        task=fedmf.Classification(fedmf.Digits(users=20), fedmf.Mlp(hidden_units=(2,))),
        cohorts=fedmf.CyclicCohorts(rounds=5, size=5),
        privacy=fedmf.UserLevel(epsilon=8.0, delta=1e-5, clip_norm=0.3, noise_seed=3),
        mechanism=fedmf.NamedMechanism("bisr", {"bands": 2}),
        optimizer=fedmf.Sgd(learning_rate=0.2, momentum=0.9),
        execution=fedmf.Execution(checkpoint_every=checkpoint_every),
    )


def training(checkpoint_every: int) -> Job:
    """The run; its result is the model and who took part when."""
    return _training(f"run, checkpoint every {checkpoint_every}", run_of(checkpoint_every))


def _training(name: str, run: fedmf.Run) -> Job:
    """A run as a job."""

    def go(root: Path, say: int) -> None:
        def tell(standing: Standing) -> None:
            if not standing.opening:
                os.write(say, b"shown %d\n" % standing.rounds)

        # The picture of a finished run is no record, and takes longer than all the rest.
        with mock.patch.object(session, "draw_learning_curve", return_value=False):
            fedmf.simulate(run, root / "run", observers=[tell])

    def result(root: Path) -> object:
        with opened_evidence(root / "run") as evidence:
            _, ledger, _ = evidence.records
            took_part = list(ledger.participations())
        if run.execution.checkpoint_every > 1:  # work may be lost, by decision 9, and with it the same model
            return took_part
        model = fedmf.load_model(root / "run")
        return took_part, {name: value.numpy().tobytes() for name, value in model.items()}

    return Job(name, go, lambda root: _committed_rounds(root / "run"), result)


def length(update: Tensor) -> Tensor:
    """A statistic of one user: the norm of its clipped update."""
    return update.norm()[None]


def with_parts() -> Job:
    """The run with a clip norm that moves and an own statistic; its result has what they released too."""
    own = fedmf.OwnStatistic("jobs:length", ("length",), bound=0.3, share=0.1)
    clipping = fedmf.QuantileClipping(rounds_per_update=1)
    run = dataclasses.replace(run_of(checkpoint_every=1), clipping=clipping, beside=(own,))
    job = _training("run with parts", run)

    def result(root: Path) -> object:
        with opened_evidence(root / "run") as evidence:
            _, ledger, _ = evidence.records
            columns = (*clipping.columns, *own.columns)
            noted = {t: [row[name] for name in columns] for t, row in ledger.metrics().items() if t}
        return job.result(root), noted

    return dataclasses.replace(job, result=result)


def _committed_rounds(path: Path) -> int:
    return fedmf.account(path).recorded.rounds if path.exists() else 0


def _committed_releases(path: Path) -> int:
    if not path.exists():
        return 0
    with StreamState.open(path) as state:
        return state.position.records


def stream() -> Job:
    """A stream of running averages into a file."""
    settings = Settings(
        norm_bound=1.0, epsilon=8.0, delta=1e-5, seed=5, rounds=ROWS, workloads=("average",), every=EVERY
    )

    def go(root: Path, say: int) -> None:
        source = root.parent / "rows.csv"
        if not source.exists():
            source.write_text("a,b\n" + "".join(f"{i % 3 / 3},{-i % 5 / 5}\n" for i in range(ROWS)))

        def progress(t: int, n: int) -> None:
            os.write(say, b"shown %d\n" % (t // EVERY))

        with open_run(root / "state", settings, source, root / "out.jsonl", progress=progress) as (
            run,
            reader,
        ):
            run.feed(reader)
            run.conclude()

    return Job(
        "stream",
        go,
        lambda root: _committed_releases(root / "state"),
        lambda root: (root / "out.jsonl").read_bytes(),
    )


def caches() -> Job:
    """Kept designs and kept machine code, both used twice: they release nothing, and are never wrong."""

    def use(root: Path) -> list[bool]:
        places = {"FEDMF_CACHE": str(root / "kept"), "NUMBA_CACHE_DIR": str(root / "kept")}
        with mock.patch.dict(os.environ, places):
            return [right for order in (0, 1) for right, _ in (use(order) for use in KINDS.values())]

    def go(root: Path, _: int) -> None:
        if not all(use(root)):
            raise RuntimeError("a cache gave another function or another design.")

    return Job("caches", go, lambda _: 0, use)
