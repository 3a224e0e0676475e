"""What a run reports: metrics table, learning curve and privacy statement."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet
from scipy.special import entr

from fedmf.figures import COLOURS, new_figure, style
from fedmf.ledger.durable_files import write_durably

if TYPE_CHECKING:
    from fedmf.data import Dataset
    from fedmf.runs.statistics import Statistic
    from fedmf.training import Task


METRICS = "metrics.parquet"
PICTURE = "learning-curve.png"
_OTHERWISE: Final = (
    "Scale the features, or try other learning rates (client and server) or more rounds."
)


def central(metric: str, dataset: Dataset) -> str:
    """The column of a metric of the central test part, with a mark where users of the run own
    it.
    """
    return f"{metric}_not_private" if dataset.test_owner == "training users" else metric


def metric_columns(task: Task | None, statistics: Sequence[Statistic] = ()) -> list[str]:
    """The columns of a run's metrics table, in their order; without a task those that need none."""
    released = ["epsilon", *(column for statistic in statistics for column in statistic.columns)]
    if task is None:
        return released
    return [
        central(name, task.dataset) for name in ("loss", *(one.name for one in task.metrics))
    ] + released


def write_metrics(
    path: Path, rows: Mapping[int, Mapping[str, Any]], columns: Sequence[str]
) -> None:
    """Write ``metrics.parquet``: a row per evaluated round with round, loss, the task's metrics and
    epsilon.

    ``round`` counts released rounds, so round 0 is the initial model. epsilon is what the worst
    allowed user has spent by then (`Plan.epsilon_after`); it is missing in a run without privacy,
    as is whatever a row does not have.
    """
    order = np.array(sorted(rows), dtype=np.int64)
    table = {"round": pa.Array.from_buffers(pa.int64(), order.size, [None, pa.py_buffer(order)])}
    for name in columns:
        held = (rows[t].get(name) for t in order.tolist())
        table[name] = _column(
            np.array([math.nan if value is None else value for value in held], np.float64)
        )
    buffer = io.BytesIO()
    parquet.write_table(pa.Table.from_arrays([*table.values()], names=[*table]), buffer)
    write_durably(path / METRICS, buffer.getvalue())


def _column(numbers: NDArray[np.float64]) -> Any:
    """With null for NaN. By its buffers: `pyarrow.array` would import pandas, which is slow."""
    there = np.packbits(~np.isnan(numbers), bitorder="little")
    return pa.Array.from_buffers(
        pa.float64(), numbers.size, [pa.py_buffer(there), pa.py_buffer(numbers)]
    )


def draw_learning_curve(
    path: Path, rows: Mapping[int, Mapping[str, Any]], title: str, task: Task
) -> bool:
    """Draw the first metric, the loss and ε spent (of the worst allowed user) into
    ``learning-curve.png``.

    Args:
        path: the run directory.
        rows: of the metrics table by released rounds.
        title: of the picture.
        task: of the run.

    Returns:
        False if matplotlib (the extra ``report``) is not installed; nothing is drawn then.
    """
    try:
        figure = new_figure(7, 6)
    except ImportError:
        return False
    rounds = sorted(rows)
    shares = {metric.name: metric.is_share for metric in task.metrics[:1]}
    curves: list[tuple[str, list[float]]] = []
    for name in dict.fromkeys([*shares, "loss"]):
        scale, unit = (100.0, " (%)") if shares.get(name) else (1.0, "")
        column = central(name, task.dataset)
        values = [scale * rows[t].get(column, math.nan) for t in rounds]
        curves.append((f"test {column.replace('_', ' ')}{unit}", values))
    epsilons = [math.nan if rows[t].get("epsilon") is None else rows[t]["epsilon"] for t in rounds]
    if any(math.isfinite(epsilon) and epsilon > 0 for epsilon in epsilons):
        curves.append(("ε spent", epsilons))
    panels = figure.subplots(len(curves), sharex=True, squeeze=False)[:, 0]
    for axes, colour, (label, values) in zip(panels, COLOURS, curves, strict=False):
        axes.plot(rounds, values, color=colour)
        style(axes, ylabel=label)
        if label != "ε spent" and math.isfinite(values[0]):
            axes.axhline(values[0], color="0.4", linestyle=":", label="untrained model")
            axes.legend(frameon=False)
    panels[-1].set_xlabel("rounds released")
    figure.align_ylabels()
    figure.suptitle(title)
    figure.savefig(buffer := io.BytesIO(), format="png", dpi=150)
    write_durably(path / PICTURE, buffer.getvalue())
    return True


def shortfall(
    metrics: Mapping[int, Mapping[str, Any]], horizon: int, labels: NDArray[np.int64] | None = None
) -> str | None:
    """A line if the newest model has diverged, or is no better than one that ignores the features.

    With p_c the share of class c among the labels, the latter has the loss −Σ_c p_c·ln p_c and the
    accuracy max_c p_c. Where there are accuracies alone, as in some apps, only the last is judged,
    by the first.

    Args:
        metrics: on the public test part, by rounds released.
        horizon: n.
        labels: classes of the test part, shape (examples,); None where the loss is no
            cross-entropy.

    >>> rows = {0: {"loss": 0.8}, 10: {"loss": 0.9}, 50: {"loss": 0.5, "accuracy": 0.8}}
    >>> shortfall(rows, 100), shortfall({**rows, 90: {"loss": 3.1}}, 100)
    (None, 'after round 90 of 100 the test loss is 3.1, above 0.8 of the untrained model; after
    round 50 it
     was 0.5 (accuracy 80.0 %): training has diverged. Lower ... or a larger epsilon.')
    >>> shortfall({0: {"loss": 0.8}, 9: {"loss": 0.6, "accuracy": 0.75}}, 9, np.array([0, 0, 0, 1]))
    'after round 9 of 9 the test loss is 0.6 (accuracy 75.0 %), no better than always predicting the
    commonest
     class. ...'
    >>> shortfall({0: {"accuracy": 0.3}, 9: {"accuracy": 0.2}}, 9)
    'after round 9 of 9 the test accuracy is 0.2, not above 0.3 of the untrained model. ...'
    """
    losses = {t: row["loss"] for t, row in metrics.items() if row.get("loss") is not None}
    first, last = (metrics.get(t, {}).get("accuracy", math.nan) for t in (0, horizon))
    if not losses and last <= first:
        said = (
            f"after round {horizon} of {horizon} the test accuracy is {last:.3g}, not above"
            f" {first:.3g}"
        )
        return f"{said} of the untrained model. {_OTHERWISE}"
    t = max(losses, default=0)
    if t == 0 or not math.isfinite(losses.get(0, math.nan)):
        return None
    shares = np.zeros(1) if labels is None else np.bincount(labels) / len(labels)
    entropy = math.inf if labels is None else float(entr(shares).sum())
    best = min((at for at in losses if math.isfinite(losses[at])), key=losses.__getitem__)
    ignorant = min(losses[0], entropy)
    learned = losses[best] < ignorant - 0.05 * abs(
        ignorant
    )  # noise alone may get a little below it
    most = ignorant if learned else losses[0]
    where = f"after round {t} of {horizon} the test"
    margin = 0.0 if t == horizon else 0.1 * abs(most)
    if not math.isfinite(losses[t]) or (4 * t >= horizon and losses[t] > most + margin):
        whose = (
            "the untrained model"
            if most == losses[0]
            else "always predicting the shares of the classes"
        )
        why = ": the steps or the noise are too large."
        if learned:
            why = f"; after round {best} it was {_judged(metrics[best])}: training has diverged."
        return (
            f"{where} loss is {_judged(metrics[t])}, above {most:.3g} of {whose}{why} Lower the"
            " learning rate of the clients or of the server, scale the features, or take more"
            " users a round or a larger epsilon."
        )
    common = metrics[t].get("accuracy", math.inf) <= shares.max()
    if t < horizon or not (common or losses[t] >= entropy):
        return None
    what = "commonest class" if common else "shares of the classes"
    return (
        f"{where} loss is {_judged(metrics[t])}, no better than always predicting the {what}."
        f" {_OTHERWISE}"
    )


def _judged(row: Mapping[str, Any]) -> str:
    share = f" (accuracy {100 * row['accuracy']:.1f} %)" if row.get("accuracy", 2) <= 1 else ""
    return f"{row['loss']:.3g}{share}"
