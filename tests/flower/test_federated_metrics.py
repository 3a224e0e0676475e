"""Federated evaluation of a task that is no classification: its own metrics, by name, in the table."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import Message, MetricRecord
from support.small_runs import answering, client_for, linear_regression, run_small, schedule_of, small_run

import fedmf
from fedmf.flower.local_run.grid import InProcessGrid
from fedmf.flower.simulation import run_on_grid
from fedmf.rounds import RoundReport
from fedmf.runs import not_private
from fedmf.runs.outputs import METRICS

TASK = linear_regression(24, 4)
RUN = small_run(TASK, evaluate_every=6, workers=2, evaluation="not-private")
NAMES = ("loss", "mae", "rmse")
FEDERATED = [not_private(name) for name in NAMES]
SECOND_NODE = 2**63 + 1001


def by_hand(parameters: np.ndarray, users: list[int]) -> dict[str, float]:
    """Metrics over all examples of some users, in NumPy; the model is w·x + b."""
    features, labels = (part.double().numpy() for part in TASK.dataset.examples(np.array(users)))
    errors = features @ parameters[:-1].astype(np.float64) + float(parameters[-1]) - labels[:, 0]
    means = TASK.loss(torch.from_numpy(errors)[:, None], torch.zeros(len(errors), 1)).mean()
    return {
        "loss": float(means),
        "mae": float(np.abs(errors).mean()),
        "rmse": math.sqrt(np.square(errors).mean()),
    }


def finished(
    path: Path, evaluate: Callable[[Message, Message], Message] = lambda _, reply: reply
) -> tuple[pd.DataFrame, dict[int, np.ndarray], list[RoundReport]]:
    """The table, models by round and the reports of a run."""
    models: dict[int, np.ndarray] = {}
    reports: list[RoundReport] = []
    with fedmf.start(RUN, path) as session:

        def note(report: RoundReport, _: object) -> None:
            reports.append(report)
            models[report.t + 1] = session.server.parameters.numpy().copy()

        run_on_grid(session, InProcessGrid(answering(client_for(session), evaluate=evaluate), nodes=2), note)
    return pd.read_parquet(path / METRICS).set_index("round"), models, reports


def test_a_regression_is_evaluated_by_its_own_metrics(tmp_path: Path) -> None:
    table, models, reports = finished(tmp_path / "run")
    assert list(table.columns) == [*NAMES, "epsilon", *FEDERATED]
    assert list(table.index) == [0, 6, 12]
    assert table.loc[0, FEDERATED].isna().all()
    assert not any(report.failures for report in reports)
    for number in (6, 12):
        expected = by_hand(models[number], schedule_of(RUN).cohort(number - 1).tolist())
        for name in NAMES:
            # float32 outputs; the model's central figures are other numbers.
            assert table[not_private(name)][number] == pytest.approx(expected[name], rel=1e-5)
            assert table[name][number] != pytest.approx(expected[name], rel=1e-3)


BAD = {
    "a root of less than nothing": {"rmse": [-1e9]},
    "accuracy instead": {"mae": None, "accuracy": [1.0]},
    "NaN": {"mae": [math.nan]},
    "two terms": {"rmse": [1.0, 1.0]},
}


@pytest.mark.parametrize("kind", BAD)
def test_sums_that_no_examples_have_are_left_out_and_the_run_goes_on(kind: str, tmp_path: Path) -> None:
    def tamper(request: Message, reply: Message) -> Message:
        if reply.metadata.src_node_id == SECOND_NODE:
            values = {**reply.content.metric_records["metrics"], **BAD[kind]}
            reply.content["metrics"] = MetricRecord({n: v for n, v in values.items() if v is not None})
        return reply

    table, models, reports = finished(tmp_path / "run", tamper)
    plain = run_small(tmp_path / "plain", RUN)
    assert np.array_equal(models[12], plain)
    for number in (6, 12):
        (failure,) = reports[number - 1].failures
        assert failure.reason.startswith(f"evaluation, node {SECOND_NODE}: ")
        honest = [u for u in schedule_of(RUN).cohort(number - 1).tolist() if u % 2 == 0]
        expected = by_hand(models[number], honest)
        for name in NAMES:
            assert table[not_private(name)][number] == pytest.approx(expected[name], rel=1e-5)
