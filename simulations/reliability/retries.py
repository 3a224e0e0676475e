"""What tries again after a commit that failed, with another sum; and who reads the records meanwhile.

Each job releases vectors of which one coordinate alone depends on its users, and draws that coordinate anew
for every attempt. So two releases of one round that were made with one row of noise differ in this coordinate
and agree in all others; with two rows they differ everywhere. Keys are secret; the judge looks at released
values and at nothing else.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import random
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from jobs import DOCUMENTED
from numpy.typing import NDArray
from torch import Tensor, nn

import fedmf
from fedmf import PrivateStream
from fedmf.data.memory import InMemoryDataset
from fedmf.flower import CorrelatedNoise, InProcessGrid, UsersSayWho, user_id_mod
from fedmf.records import Ledger, load_state, unguarded
from fedmf.runs import PrivateEvaluation, PrivateEvaluator, Run, Session, run_of
from fedmf.streaming import StreamState
from fedmf.training import FixedPointSum, Task, classification

logging.getLogger("flwr").setLevel(logging.ERROR)

__all__ = ["RETRIES", "Reader", "Retrying"]

ROUNDS, USERS, DIMENSION, ATTEMPTS, OPENINGS = 4, 12, 16, 3, 4
#: What was released: by number of the release, a vector whose first coordinate depends on users.
Released = dict[int, NDArray[np.float64]]
_SAID = re.compile(rb"released (\d+) ([0-9a-f]+)\n")
_LEDGER, _EVALUATIONS, _STATE = "ledger.sqlite", "evaluation.sqlite", "state.sqlite"


def output_as_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    del labels
    return outputs[..., 0]


def task_of(rows: Tensor) -> Task:
    """A task whose updates do not depend on the model: user u's gradient is row u."""
    model = nn.Linear(rows.shape[1], 1, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    dataset = InMemoryDataset(
        features=rows,
        labels=torch.zeros(len(rows), dtype=torch.int64),
        owned=tuple(np.array([u]) for u in range(len(rows))),
        user_ids=tuple(f"u{u:03d}" for u in range(len(rows))),
        test_features=rows[:2],
        test_labels=torch.zeros(2, dtype=torch.int64),
        classes=1,
    )
    return classification(dataset, model, output_as_loss)


@dataclass(frozen=True)
class Retrying:
    """Something that releases and does not give up.

    Args:
        name: shown.
        go: does all that is left, and tells the descriptor what it releases.
        read: what whoever has a copy of the directory can take for released.
    """

    name: str
    go: Callable[[Path, int], None]
    read: Callable[[Path], Released]


def _any_length() -> float:
    return random.SystemRandom().uniform(-1.0, 1.0)


def _tell(say: int, number: int, vector: Sequence[float] | NDArray[np.float64]) -> None:
    content = np.asarray(vector, np.float64).tobytes().hex()
    os.write(say, f"released {number} {content}\n".encode())


def _openings(body: Callable[[], None]) -> None:
    """Do something that opens, until it ends well."""
    for left in reversed(range(OPENINGS)):
        try:
            return body()
        except DOCUMENTED:
            if not left:
                raise
    return None


def _attempts(release: Callable[[], None]) -> None:
    """In one opening, until it ends well."""
    for left in reversed(range(ATTEMPTS)):
        try:
            return release()
        except DOCUMENTED:
            if not left:
                raise
    return None


def _sum(total: FixedPointSum, count: int, dimension: int) -> FixedPointSum:
    """A sum over so many users, of which one contributes, at most its clip norm of 0.3 or more."""
    rows = torch.zeros(count, dimension)
    rows[0, 0] = 0.3 * _any_length()
    total.add_updates(rows)
    return total


def _run(judged: bool) -> Run:
    rows = torch.zeros(USERS, DIMENSION)
    keys = {
        "data.users": USERS,
        "cohorts.rounds": ROUNDS,
        "cohorts.size": 3,
        "mechanism.kind": "bisr",
        "mechanism.bands": 2,
        "optimizer.momentum": 0.0,
    }
    run = dataclasses.replace(run_of(keys), task=task_of(rows))
    if judged:
        run = dataclasses.replace(run, evaluation=PrivateEvaluation(every=1, size=6, share=0.2))
    return run


def _session(run: Run, path: Path) -> Session:
    return fedmf.resume(run, path) if (path / _LEDGER).exists() else fedmf.start(run, path)


def _run_on(root: Path, say: int, judged: bool) -> None:
    run, path = _run(judged), root / "run"

    def opening() -> None:
        with _session(run, path) as session:
            if judged:
                _evaluate(session, say)
            while session.server.t < ROUNDS:
                _attempts(lambda: _train(session, say))
                if judged:
                    _attempts(lambda: _evaluate(session, say))

    _openings(opening)


def _train(session: Session, say: int) -> None:
    server = session.server
    t = server.t
    users = [str(session.task.dataset.user_ids[u]) for u in map(int, session.cohort_schedule().cohort(t))]
    parameters = server.release(_sum(server.new_sum(), len(users), DIMENSION), users)
    if not isinstance(session.evaluator, PrivateEvaluator):
        _tell(say, t, parameters.double().numpy())


def _evaluate(session: Session, say: int) -> None:
    evaluator = session.evaluator
    assert isinstance(evaluator, PrivateEvaluator)
    session.evaluate()  # the metrics that the estimates go with
    e = evaluator.due(session.server.t)
    if e is not None:
        users = list(session.judges(e).values())
        evaluator.release(e, _sum(evaluator.new_sum(), len(users), evaluator.dimension), users)
        _tell(say, e, evaluator._released[e])


def _last_state(ledger: Path) -> tuple[int, NDArray[np.float64]] | None:
    with Ledger.open(ledger, read_only=True) as opened:
        committed = opened.checkpoint()
        if committed is None:
            return None
        values, *_ = load_state(opened, *committed[1:])
        return committed[0], values.double().numpy()


def _models(root: Path) -> Released:
    state = _last_state(root / "run" / _LEDGER)
    return {} if state is None else dict([state])


def _estimates(root: Path) -> Released:
    state = _last_state(root / "run" / _EVALUATIONS)
    return {} if state is None else dict(enumerate(state[1]))


def _push_on(root: Path, say: int) -> None:
    def opening() -> None:
        with PrivateStream(
            root / "state", epsilon=8.0, delta=1e-5, norm_bound=1.0, dimension=DIMENSION, rounds=ROUNDS,
            workloads="prefix", second="energy",
        ) as stream:  # fmt: skip
            while stream.t < ROUNDS:
                _attempts(lambda: push(stream))

    def push(stream: PrivateStream) -> None:
        release = stream.push([_any_length(), *[0.0] * (DIMENSION - 1)], user=f"u{stream.t}")
        _tell(say, release.t - 1, release.first)

    _openings(opening)


def _steps(root: Path) -> Released:
    with StreamState.open(root / "state") as state:
        return dict(enumerate(state.releases(0, state.position.records).numbers[:, :DIMENSION]))


def _wrap_on(root: Path, say: int) -> None:
    start = ArrayRecord({"w": Array(np.zeros(DIMENSION, np.float32))})
    roster = [f"user {u}" for u in range(USERS)]

    def tell(t: int, arrays: ArrayRecord) -> None:
        if t:
            _tell(say, t - 1, arrays["w"].numpy())

    def opening() -> None:
        strategy = CorrelatedNoise(
            FedAvg(), epsilon=8.0, delta=1e-5, clipping_norm=1.0, num_users=USERS, users_per_round=3,
            num_rounds=ROUNDS, mechanism="bisr", run_dir=root / "run", identity=UsersSayWho(roster),
        )  # fmt: skip
        try:
            grid = InProcessGrid(_clients(), nodes=USERS)
            _attempts(lambda: strategy.start(grid, start, evaluate_fn=tell) and None)
        finally:
            strategy.close()

    _openings(opening)


def _clients() -> ClientApp:
    app = ClientApp(mods=[user_id_mod(lambda context: f"user {context.node_config['partition-id']}")])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        w = message.content["arrays"]["w"].numpy().copy()
        w[0] += _any_length() / 2
        content = {"arrays": ArrayRecord({"w": Array(w)}), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    return app


RETRIES = (
    Retrying("training", lambda root, say: _run_on(root, say, judged=False), _models),
    Retrying("evaluation", lambda root, say: _run_on(root, say, judged=True), _estimates),
    Retrying("stream", _push_on, _steps),
    Retrying("wrapper", _wrap_on, _models),
)


@dataclass
class Reader:
    """Somebody who looks at a directory at any moment and remembers what it took for released.

    Looking is copying the directory and opening the copy, so that no lock is in the way.

    Args:
        job: whose directory.
        place: the directory.
    """

    job: Retrying
    place: Path
    seen: dict[int, list[NDArray[np.float64]]] = field(default_factory=dict)
    _last: object = None

    def look(self) -> None:
        """Take what the records hold now."""
        now = sorted(_stated(self.place))
        if now == self._last:
            return
        self._last = now
        with tempfile.TemporaryDirectory() as folder, unguarded(), suppress(*DOCUMENTED):
            shutil.copytree(self.place, Path(folder) / "copy")
            for number, vector in self.job.read(Path(folder) / "copy").items():
                self.note(number, vector)

    def hear(self, said: bytes) -> None:
        """Take what the job told."""
        for number, content in _SAID.findall(said):
            self.note(int(number), np.frombuffer(bytes.fromhex(content.decode()), np.float64))

    def note(self, number: int, vector: NDArray[np.float64]) -> None:
        """One more release, unless it is known."""
        known = self.seen.setdefault(number, [])
        if not any(np.array_equal(vector, other) for other in known):
            known.append(vector)

    def verdict(self) -> dict[str, int]:
        """How many releases were two: with one row of noise, or with two rows and one record."""
        counts = {"ONE ROW, TWO SUMS": 0, "TWO RELEASES OF ONE ROUND": 0}
        for vectors in self.seen.values():
            if len(vectors) > 1:
                rest = [float(np.abs(a - b)[1:].max()) for i, a in enumerate(vectors) for b in vectors[:i]]
                counts["ONE ROW, TWO SUMS" if min(rest) < 1e-6 else "TWO RELEASES OF ONE ROUND"] += 1
        return {what: count for what, count in counts.items() if count}


def _stated(place: Path) -> Iterator[tuple[str, int, int]]:
    for folder, _, names in os.walk(place):
        for name in names:
            with suppress(FileNotFoundError):
                status = os.stat(os.path.join(folder, name))
                yield os.path.join(folder, name), status.st_size, status.st_mtime_ns
