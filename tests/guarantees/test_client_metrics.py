"""What clients report is released with the stated noise, and a user moves its own integer only."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from scipy import stats

import fedmf
from fedmf.flower import CorrelatedNoise, InProcessGrid
from guarantees.small import COHORT, FALSE_ALARM, aggregator, bisr
from guarantees.test_g9_two_worlds import leaves

SHARE = 0.005
METRICS = tuple(fedmf.ClientMetric(f"m{i}", bound=2.0, budget_share=SHARE) for i in range(100))
ROUNDS = 48


@pytest.fixture(scope="module")
def noise_only(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A run in which nobody arrives, and its released rows: noise alone."""
    path = tmp_path_factory.mktemp("noise")
    with aggregator(path, ROUNDS, extra_releases=METRICS).begin({"w": np.zeros(1)}) as opened:
        for _ in range(ROUNDS):
            opened.release()
        return path, [dict(opened.metrics[t]) for t in range(1, ROUNDS + 1)]


def is_stated(path: Path, rows: list[dict[str, Any]], factor: float) -> bool:
    """Whether the noise has ``factor`` times the deviation that statement.json implies."""
    said = json.loads((path / "statement.json").read_text())
    noise = np.array([[row[metric.name] for metric in METRICS] for row in rows]) * COHORT
    C = bisr(ROUNDS, said["params"]["bands"])
    std = factor * 2.0 * said["noise_multiplier"] * said["sensitivity"] / math.sqrt(SHARE)
    np.testing.assert_allclose(
        [factor * row["client_m7_std"] for row in rows],
        std * np.linalg.norm(np.linalg.inv(C), axis=1) / COHORT,
        rtol=1e-5,
    )
    white = C @ noise / std
    square = float((white**2).sum())
    cross = (white.T @ white)[np.triu_indices(len(METRICS), 1)]
    level = FALSE_ALARM / 3
    return bool(
        min(stats.chi2.sf(square, white.size), stats.chi2.cdf(square, white.size)) > level
        and np.abs(cross).max() < math.sqrt(ROUNDS) * stats.norm.isf(level / cross.size)
    )


def test_released_noise_has_the_stated_deviation(
    noise_only: tuple[Path, list[dict[str, Any]]],
) -> None:
    assert is_stated(*noise_only, 1.0)
    assert not is_stated(*noise_only, 1.1)
    assert not is_stated(*noise_only, 1 / 1.1)


#: What user 0 reports, and the number of bounds that it counts as.
REPORTS: dict[str, tuple[Any, float]] = {
    "NaN": (math.nan, 0.0),
    "infinity": (-math.inf, 0.0),
    "huge": (1e300, 1.0),
    "beyond float64": (-(10**400), 0.0),
    "a list": ([0.5, 0.5], 0.0),
    "nothing": (None, 0.0),
}
HONEST = 0.25


class World:
    """A wrapped app, in which user 0 reports a value with each reply."""

    def __init__(self, reply: str) -> None:
        self.metric = fedmf.ClientMetric("right", bound=0.5, reply=reply)  # type: ignore[arg-type]
        self.asked = list[str]()
        self.columns = list[Any]()

    def client(self, value: Any) -> ClientApp:
        app = ClientApp()

        def answer(message: Message, context: Context) -> Message:
            user = int(context.node_config["partition-id"])
            content = RecordDict()
            if message.metadata.message_type == "train":
                content["arrays"] = message.content["arrays"]
            report = value if user == 0 else HONEST
            if report is not None:
                content["metrics"] = MetricRecord({"right": report})
            self.asked.append(f"{message.metadata.message_type} {user}")
            return Message(content, reply_to=message)

        app.train()(answer)
        app.evaluate()(answer)
        return app

    def __call__(self, place: Path, value: Any) -> object:
        strategy = CorrelatedNoise(
            FedAvg(),
            fedmf.UserLevel(epsilon=8.0, delta=1e-5, clip_norm=0.5, noise_seed=3),
            fedmf.CyclicCohorts(rounds=4, users_per_round=3),
            users=6,
            mechanism="bisr",
            extra_releases=[self.metric],
            run_dir=place,
        )
        start = ArrayRecord({"w": Array(np.zeros(5, np.float32))})
        grid = InProcessGrid(self.client(value), nodes=6)
        result = strategy.start(grid=grid, initial_arrays=start, num_rounds=4)
        released = result.train_metrics_clientapp
        if self.metric.reply == "evaluate":
            released = result.evaluate_metrics_clientapp
        self.columns.append(np.array([released[t]["right"] for t in range(1, 5)]))
        return [(t, sorted(record), record["right_std"]) for t, record in released.items()]


def told(world: World, folder: Path, place: str, report: Any) -> tuple[Any, Any, np.ndarray]:
    """Everything that leaves a world, who was asked in each round, and the released means."""
    world.asked.clear()
    left = leaves(lambda path, _: world(path, report), folder, float(place))
    asked = np.sort(np.array(world.asked).reshape(4, -1), axis=1)
    return left, asked.tolist(), world.columns[-1]


@pytest.mark.parametrize("reply", ["train", "evaluate"])
def test_a_hostile_report_moves_its_own_integer_only(reply: str, tmp_path: Path) -> None:
    """Two worlds with the same noise: in one of them user 0 is honest."""
    world = World(reply)
    left, asked, means = told(world, tmp_path, "0", HONEST)
    takes_part = (np.array(asked) == "train 0").any(axis=1)
    assert takes_part.sum() == 2
    assert any("evaluate 0" in users for users in asked) == (reply == "evaluate")
    for place, (hostile, bounds) in enumerate(REPORTS.values(), start=1):
        other, others_asked, moved = told(world, tmp_path, str(place), hostile)
        assert [name for name in left if left[name] != other.get(name)] == []
        assert others_asked == asked
        wanted = (bounds * world.metric.bound - HONEST) / 3 * takes_part
        np.testing.assert_allclose(moved - means, wanted, atol=1e-9)
