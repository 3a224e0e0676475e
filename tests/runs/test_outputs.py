"""Metrics table and learning curve."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.small_runs import linear_task

from fedmf.runs import outputs
from fedmf.runs.outputs import METRICS, metric_columns, write_metrics
from fedmf.sweeps.results import MetricColumn
from fedmf.training import Task
from fedmf.training.metrics import ACCURACY, MAE, RMSE, Metric

ROWS: dict[int, dict[str, Any]] = {
    2: {"loss": 1.0, "accuracy": 0.75, "epsilon": 3.5, "seconds": 9},
    0: {"loss": 2.5, "accuracy": 0.1, "epsilon": 0.0},
    1: {"loss": math.nan, "accuracy": 0.5, "epsilon": 2.0},
}


TASK = linear_task(2, 3)


def table(path: Path, rows: Mapping[int, Mapping[str, Any]]) -> pd.DataFrame:
    write_metrics(path, rows, metric_columns(TASK))
    return pd.read_parquet(path / METRICS)


def test_the_table_has_a_row_per_evaluated_round_in_order(tmp_path: Path) -> None:
    read = table(tmp_path, ROWS)
    assert list(read.columns) == ["round", "loss", "accuracy", "epsilon"]
    assert read["round"].tolist() == [0, 1, 2]
    np.testing.assert_array_equal(read["loss"], [2.5, math.nan, 1.0])
    assert read["accuracy"].tolist() == [0.1, 0.5, 0.75]
    assert read["epsilon"].tolist() == [0.0, 2.0, 3.5]
    assert read.dtypes.astype(str).tolist() == ["int64", "float64", "float64", "float64"]


def test_metrics_have_the_columns_of_their_task(tmp_path: Path) -> None:
    named = metric_columns(dataclasses.replace(TASK, metrics=(MAE, RMSE)))
    assert named == ["loss", "mae", "rmse", "epsilon"]
    row = {"loss": 1.0, "mae": 0.5, "epsilon": 2.0}
    write_metrics(tmp_path, {0: row}, named)
    (read,) = pd.read_parquet(tmp_path / METRICS).to_dict("records")
    assert {name: value for name, value in read.items() if not math.isnan(value)} == {
        "round": 0,
        **row,
    }
    assert list(read) == ["round", *named]


def panels(
    path: Path, rows: Mapping[int, Mapping[str, Any]], task: Task, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """The titles of the panels of a learning curve."""
    figures: list[Any] = []
    monkeypatch.setattr(outputs, "save_figure", lambda figure, *_: figures.append(figure))
    assert outputs.draw_learning_curve(path, rows, "", task)
    return [axes.get_title("left") for axes in figures[0].axes]


def test_pictures_and_tables_of_sweeps_mark_what_users_own_rows_gave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = "training users"
    dataset = dataclasses.replace(TASK.dataset, test_owner=owner)  # type: ignore[type-var]
    task = dataclasses.replace(TASK, dataset=dataset)
    rows = {t: dict.fromkeys(metric_columns(task), 0.5) for t in (0, 1)}
    assert panels(tmp_path, rows, task, monkeypatch) == [
        "test accuracy not private (%)",
        "test loss not private",
        "ε spent",
    ]
    assert MetricColumn("loss", "loss_not_private").label == "loss not private"


def test_only_shares_are_shown_in_percent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss and a score with the default clip_range are none, and every metric has a panel."""
    metrics = [Metric(name, MAE.terms, name != "entropy") for name in ("entropy", "score")]
    task = dataclasses.replace(TASK, metrics=(*metrics, ACCURACY))
    rows = {t: {"entropy": 0.9, "score": -0.2, "accuracy": 0.5, "loss": 1.0} for t in (0, 1)}
    drawn = panels(tmp_path, rows, task, monkeypatch)
    assert drawn == ["test entropy", "test score", "test accuracy (%)", "test loss"]
    share = MetricColumn("score", "score", is_share=True)
    assert share.among([0.0, math.nan, 1.0]).label == "score (%)"
    assert share.among([0.5, -0.2]).label == "score"
