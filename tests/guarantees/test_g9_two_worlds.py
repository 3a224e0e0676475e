"""G9: what leaves two worlds that differ in one user's data is equal but for noised values."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam
from torch import Tensor

import fedmf
from fedmf.flower import CorrelatedNoise, InProcessGrid
from fedmf.ledger.ledger import Ledger
from fedmf.release.private_server import PrivateServer
from fedmf.training import UserFailure
from guarantees.small import ROUNDS, linear_task, random_rows, run_of, stream

#: What a run keeps for itself (key, ledger, failures, rows that were pushed); times, which nobody
#: promises.
SECRET = re.compile(
    r"noise\.key|(ledger|stream)\.sqlite.*|\w+\.(bin|jsonl)|operator\.json|phases\.parquet"
)
#: Columns that are functions of a released model.
NOISED = {"loss", "accuracy", "client_right"}
#: The row of one user in both worlds.
WORLDS = {"usual": 0.1, "NaN": np.nan}


def published(folder: Path) -> dict[str, Any]:
    """Everything that a run directory has for others, noised values left out."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir() or SECRET.fullmatch(path.name):
            continue
        if path.suffix == ".parquet":
            table = pq.read_table(path)
            found[name] = [
                {column: row[column] if column not in NOISED else None for column in sorted(row)}
                for row in table.to_pylist()
            ]
        elif path.name == "quality.json":
            quality = json.loads(path.read_bytes())
            found[name] = {
                figure: None if figure in NOISED else quality[figure] for figure in quality
            }
        else:
            found[name] = path.read_bytes()
    return found


class Log(logging.Handler):
    """What is logged, numbers left out."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(re.sub(r"\d+(\.\d+)?(e-?\d+)?", "0", record.getMessage()))


def logged(log: Log) -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("fedmf", "flwr")]
    for each in loggers:
        each.addHandler(log)
    yield
    for each in loggers:
        each.removeHandler(log)


def leaves(world: Callable[[Path, float], object], folder: Path, value: float) -> dict[str, Any]:
    """What one world lets out: files, what is logged, and what the world returns; always at one
    place.
    """
    log = Log()
    place = folder / "world"
    watching = logged(log)
    next(watching)
    told = world(place, value)
    next(watching, None)
    found = {"told": told, "log": log.lines, **published(place)}
    place.rename(folder / f"{value}")
    return found


def check(world: Callable[[Path, float], object], folder: Path) -> None:
    first, second = (leaves(world, folder, value) for value in WORLDS.values())
    assert first.keys() == second.keys()
    assert {"told", "log", "statement.json"} <= first.keys()
    assert [name for name in first if first[name] != second[name]] == []


def run(place: Path, value: float) -> object:
    """Evaluated after every round; each evaluation is of a model that is committed."""
    rows = random_rows(4)
    rows[0] = value
    task = linear_task(rows)
    seen: list[int] = []

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        if (place / "ledger.sqlite").exists() and bool((labels == 1).all()):
            with Ledger.open(place / "ledger.sqlite", read_only=True) as ledger:
                seen.append(ledger.released)
        return outputs[..., 0]

    task = replace(task, loss=loss)
    made = run_of(
        rows,
        task=task,
        client=fedmf.LocalSGD(learning_rate=1.0, batch_size=4, engine="loop"),
        execution=fedmf.Execution(evaluate_every=1),
    )
    result = fedmf.simulate(made, place)
    assert sorted(set(seen)) == list(range(ROUNDS + 1))
    assert seen == sorted(seen)
    rounds = sorted(result.metrics)
    assert len(seen) == len(rounds), "a model was evaluated that is not committed"
    return rounds, result.statement.to_dict()


def wrapped(place: Path, value: float) -> object:
    """What every client is sent, its arrays left out, and what the strategy returns."""
    app = ClientApp()
    sent = []

    @app.train()
    def train(message: Message, context: Context) -> Message:
        user = int(context.node_config["partition-id"])
        arrays = message.content["arrays"]
        assert isinstance(arrays, ArrayRecord)
        configs = {name: dict(record) for name, record in message.content.config_records.items()}
        shapes = [(name, array.dtype, tuple(array.shape)) for name, array in arrays.items()]
        sent.append((user, message.metadata.group_id, message.metadata.ttl > 0, configs, shapes))
        changed = {
            name: Array(array.numpy() + np.float32(value if user == 0 else 0.1))
            for name, array in arrays.items()
        }
        return Message(RecordDict({"arrays": ArrayRecord(changed)}), reply_to=message)

    strategy = CorrelatedNoise(
        FedAdam(),
        fedmf.UserLevel(epsilon=8.0, delta=1e-5, clip_norm=0.5, noise_seed=3),
        fedmf.CyclicCohorts(rounds=4, users_per_round=3),
        users=6,
        mechanism="bisr",
        run_dir=place,
    )
    start = ArrayRecord({"w": Array(np.zeros(5, np.float32))})
    result = strategy.start(grid=InProcessGrid(app, nodes=6), initial_arrays=start, num_rounds=4)
    metrics = {name: dict(getattr(result, name)) for name in vars(result) if "metrics" in name}
    return sorted(map(repr, sent)), repr(metrics)


def streamed(place: Path, value: float) -> object:
    """Releases, their values left out, and the refusals of rows."""
    told = []
    with stream(place, 6, dimension=2) as opened:
        for i in range(6):
            release = opened.push([value if i == 2 else 0.3, 0.1], user=f"u{i}").to_dict()
            told.append(
                {
                    name: x
                    for name, x in release.items()
                    if not re.match(r"(sum|sum_of_squares)$|x|mean", name)
                }
            )
    numbers = json.dumps(told)
    return re.sub(r'("(?:sum|mean)[^"]*": )\[?[^],}]*', r"\1", numbers)


WAYS: dict[str, Callable[[Path, float], object]] = {
    "run": run,
    "wrapped app": wrapped,
    "stream": streamed,
}


@pytest.mark.parametrize("way", WAYS)
def test_nothing_but_noised_values_differs(way: str, tmp_path: Path) -> None:
    check(WAYS[way], tmp_path)


def test_an_evaluation_before_the_commit_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = []
    right = PrivateServer._step

    def early(self, noised):
        after = right(self, noised)
        tasks[-1].evaluate(after.parameters)
        return after

    start = fedmf.training.Task.evaluate

    def noted(self, parameters):
        tasks.append(self)
        return start(self, parameters)

    monkeypatch.setattr(fedmf.training.Task, "evaluate", noted)
    monkeypatch.setattr(PrivateServer, "_step", early)
    with pytest.raises(AssertionError, match="not committed"):
        check(run, tmp_path)


def test_a_failure_that_is_told_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = fedmf.runs.Session.note_failures

    def telling(self, t, failures, present=0):
        if failures:
            logging.getLogger("fedmf").warning("%s failed", failures[0].user)
        return right(self, t, failures, present)

    monkeypatch.setattr(fedmf.runs.Session, "note_failures", telling)
    for way in ("run", "wrapped app"):
        with pytest.raises(AssertionError):
            check(WAYS[way], tmp_path / way)


def test_the_only_failure_of_a_round_is_not_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where nobody else takes part, so that it is most of the round."""
    failure = UserFailure("u00", "training", "too large")
    with fedmf.start(run_of(random_rows(4)), tmp_path / "run") as session:
        for present in (1, 2, 6):
            session.note_failures(0, [failure], present)
    assert caplog.text == ""
