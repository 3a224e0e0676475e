"""Reports of a run: the metrics table, the learning curve, and a warning if nothing is learned."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

from fedmf.figures import COLORS, LARGE, new_figure, save_figure, style
from fedmf.ledger.durable_files import write_durably

if TYPE_CHECKING:
    from fedmf.data import Dataset
    from fedmf.runs.statistics import Statistic
    from fedmf.training import Task


_SPENT: Final = "ε spent"
METRICS = "metrics.parquet"
QUALITY = "quality.json"
PICTURE = "learning-curve.png"
_ADVICE: Final = (
    "Scale the features, or try other learning rates (client and server) or more rounds."
)


def central(metric: str, dataset: Dataset) -> str:
    """The column of a metric of the central test part, marked if users of the run own this part."""
    if dataset.test_owner == "training users":
        return f"{metric}_not_private"
    return metric


def metric_columns(task: Task | None, statistics: Sequence[Statistic] = ()) -> list[str]:
    """The columns of a run's metrics table in order; without a task, those that need none."""
    columns = list[str]()
    if task is not None:
        columns.append(central("loss", task.dataset))
        for metric in task.metrics:
            columns.append(central(metric.name, task.dataset))
    columns.append("epsilon")
    for statistic in statistics:
        columns += statistic.columns
    return columns


def write_metrics(
    path: Path, rows: Mapping[int, Mapping[str, Any]], columns: Sequence[str]
) -> None:
    """Write ``metrics.parquet`` with one row per evaluated round.

    The columns are round, loss, the task's metrics and epsilon. ``round`` counts released rounds,
    so round 0 is the initial model. epsilon is the privacy that the worst allowed user has spent by
    then (`Plan.epsilon_after`); it is missing in a run without privacy, as is every value that a
    row does not have.
    """
    rounds = np.array(sorted(rows), dtype=np.int64)
    table = {"round": pa.Array.from_buffers(pa.int64(), rounds.size, [None, pa.py_buffer(rounds)])}
    for name in columns:
        values = [_number(rows[t].get(name)) for t in rounds.tolist()]
        table[name] = _column(np.array(values, np.float64))
    buffer = io.BytesIO()
    parquet.write_table(pa.Table.from_arrays([*table.values()], names=[*table]), buffer)
    write_durably(path / METRICS, buffer.getvalue())


def write_quality(path: Path, quality: Mapping[str, Any]) -> None:
    """Write ``quality.json``: loss, metrics and final metrics of the last released model."""
    if quality:
        write_durably(path / QUALITY, (json.dumps(quality, indent=2) + "\n").encode())


def _number(value: float | None) -> float:
    """NaN for a missing value."""
    if value is None:
        return math.nan
    return value


def _column(numbers: NDArray[np.float64]) -> Any:
    """A column with null for NaN, by its buffers: `pyarrow.array` would import pandas."""
    present = np.packbits(~np.isnan(numbers), bitorder="little")
    return pa.Array.from_buffers(
        pa.float64(), numbers.size, [pa.py_buffer(present), pa.py_buffer(numbers)]
    )


def draw_learning_curve(
    path: Path, rows: Mapping[int, Mapping[str, Any]], title: str, task: Task
) -> bool:
    """Draw the metrics, the loss and the spent ε into ``learning-curve.png``.

    Args:
        path: the run directory.
        rows: of the metrics table by released rounds.
        title: of the picture.
        task: of the run.

    Returns:
        False if matplotlib (the extra ``report``) is not installed; nothing is drawn then.
    """
    curves = _curves(rows, task)
    try:
        figure = new_figure(7, max(6, 2 * len(curves)))
    except ImportError:
        return False
    rounds = sorted(rows)
    panels = figure.subplots(len(curves), sharex=True, squeeze=False)[:, 0]
    for axes, color, (label, values) in zip(panels, cycle(COLORS), curves.items(), strict=False):
        axes.plot(rounds, values, color=color)
        style(axes)
        axes.set_title(label, loc="left", size=LARGE)
        if label != _SPENT and math.isfinite(values[0]):
            axes.axhline(values[0], color="0.4", linestyle=":", label="untrained model")
            axes.legend(frameon=False)
    panels[-1].set_xlabel("rounds released")
    figure.suptitle(title)
    buffer = io.BytesIO()
    save_figure(figure, buffer, "png")
    write_durably(path / PICTURE, buffer.getvalue())
    return True


def _curves(rows: Mapping[int, Mapping[str, Any]], task: Task) -> dict[str, list[float]]:
    """The values of each panel by its label, from the first round to the last."""
    shares = {metric.name: metric.is_share for metric in task.metrics}
    curves = dict[str, list[float]]()
    for name, is_share in {**shares, "loss": False}.items():
        column = central(name, task.dataset)
        label = f"test {column.replace('_', ' ')}"
        values = np.array([_number(rows[t].get(column)) for t in sorted(rows)])
        outside = (values < 0) | (values > 1)
        if is_share and not outside.any():
            label += " (%)"
            values = 100 * values
        curves[label] = values.tolist()
    epsilons = [_number(rows[t].get("epsilon")) for t in sorted(rows)]
    if any(math.isfinite(epsilon) and epsilon > 0 for epsilon in epsilons):
        curves[_SPENT] = epsilons
    return curves


def shortfall(
    metrics: Mapping[int, Mapping[str, Any]], horizon: int, labels: NDArray[np.int64] | None = None
) -> str | None:
    """Return a warning if the newest model diverged, or is no better than one without features.

    With p_c the share of class c among the labels, a model that ignores the features has the loss
    −Σ_c p_c·ln p_c and the accuracy max_c p_c. Without losses, as in some apps, the last accuracy
    is compared with the first.

    Args:
        metrics: on the public test part, by rounds released.
        horizon: n.
        labels: classes of the test part, shape (examples,); None where the loss is no
            cross-entropy.

    >>> rows = {0: {"loss": 0.8}, 10: {"loss": 0.9}, 50: {"loss": 0.5, "accuracy": 0.8}}
    >>> shortfall(rows, 100)
    >>> shortfall({**rows, 90: {"loss": 3.1}}, 100)
    'after round 90 of 100 the test loss is 3.1, above 0.8 of the untrained model; after round 50 it
    was 0.5 (accuracy 80.0 %): training has diverged. Lower ... or a larger epsilon.'
    >>> shortfall({0: {"loss": 0.8}, 9: {"loss": 0.6, "accuracy": 0.75}}, 9, np.array([0, 0, 0, 1]))
    'after round 9 of 9 the test loss is 0.6 (accuracy 75.0 %), no better than always predicting the
    most common class. ...'
    >>> shortfall({0: {"accuracy": 0.3}, 9: {"accuracy": 0.2}}, 9)
    'after round 9 of 9 the test accuracy is 0.2, not above 0.3 of the untrained model. ...'
    """
    from scipy.special import entr

    losses = dict[int, float]()
    for t, row in metrics.items():
        if row.get("loss") is not None:
            losses[t] = row["loss"]
    if not losses:
        return _shortfall_of_accuracy(metrics, horizon)
    t = max(losses)
    if t == 0 or not math.isfinite(losses.get(0, math.nan)):
        return None
    shares = np.zeros(1)
    entropy = math.inf
    if labels is not None:
        shares = np.bincount(labels) / len(labels)
        entropy = float(entr(shares).sum())
    best = min((at for at in losses if math.isfinite(losses[at])), key=losses.__getitem__)
    ignorant = min(losses[0], entropy)
    # Noise alone may get a little below the loss of an ignorant model.
    learned = losses[best] < ignorant - 0.05 * abs(ignorant)
    bound = losses[0]
    if learned:
        bound = ignorant
    margin = 0.0
    if t < horizon:
        margin = 0.1 * abs(bound)
    where = f"after round {t} of {horizon} the test"
    if not math.isfinite(losses[t]) or (4 * t >= horizon and losses[t] > bound + margin):
        reference = "always predicting the shares of the classes"
        if bound == losses[0]:
            reference = "the untrained model"
        why = ": the steps or the noise are too large."
        if learned:
            why = f"; after round {best} it was {_quality(metrics[best])}: training has diverged."
        return (
            f"{where} loss is {_quality(metrics[t])}, above {bound:.3g} of {reference}{why} Lower"
            " the learning rate of the clients or of the server, scale the features, or use more"
            " users per round or a larger epsilon."
        )
    if t < horizon:
        return None
    nothing_learned = (
        f"{where} loss is {_quality(metrics[t])}, no better than always predicting the"
    )
    if metrics[t].get("accuracy", math.inf) <= shares.max():
        return f"{nothing_learned} most common class. {_ADVICE}"
    if losses[t] >= entropy:
        return f"{nothing_learned} shares of the classes. {_ADVICE}"
    return None


def _shortfall_of_accuracy(metrics: Mapping[int, Mapping[str, Any]], horizon: int) -> str | None:
    first = metrics.get(0, {}).get("accuracy", math.nan)
    last = metrics.get(horizon, {}).get("accuracy", math.nan)
    if not last <= first:
        return None
    return (
        f"after round {horizon} of {horizon} the test accuracy is {last:.3g}, not above"
        f" {first:.3g} of the untrained model. {_ADVICE}"
    )


def _quality(row: Mapping[str, Any]) -> str:
    if row.get("accuracy", 2) <= 1:
        return f"{row['loss']:.3g} (accuracy {100 * row['accuracy']:.1f} %)"
    return f"{row['loss']:.3g}"
