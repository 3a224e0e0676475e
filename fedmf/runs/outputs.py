"""What a run reports: metrics table, learning curve and privacy statement."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmf.accounting import PrivacyStatement, render_page
from fedmf.records import write_durably

__all__ = [
    "FEDERATED_ACCURACY",
    "FEDERATED_LOSS",
    "METRICS",
    "PICTURE",
    "STATEMENT",
    "STATEMENT_PAGE",
    "STATEMENT_TEXT",
    "draw_learning_curve",
    "write_metrics",
    "write_statement",
]

METRICS, PICTURE = "metrics.parquet", "learning-curve.png"
#: Columns of the metrics table that say what they are: computed from users' own examples, without noise.
FEDERATED_LOSS, FEDERATED_ACCURACY = "federated_loss_not_private", "federated_accuracy_not_private"
STATEMENT, STATEMENT_TEXT, STATEMENT_PAGE = "statement.json", "statement.txt", "statement.html"


def write_statement(path: Path, statement: PrivacyStatement) -> None:
    """Write the privacy statement for programs, for a terminal and for print."""
    statement.write(path / STATEMENT)
    write_durably(path / STATEMENT_TEXT, statement.render_text().encode())
    write_durably(path / STATEMENT_PAGE, render_page(statement.to_dict()).encode())


def write_metrics(path: Path, rows: Mapping[int, Mapping[str, Any]], further: Sequence[str] = ()) -> None:
    """Write ``metrics.parquet``: a row per evaluated round with round, loss, accuracy and epsilon.

    ``round`` counts released rounds, so round 0 is the initial model. epsilon is what the worst allowed
    user has spent by then (`Plan.epsilon_after`); it is missing in a run without privacy. ``further`` names
    columns that follow; they are missing in rows that do not have them.
    """
    import pandas as pd

    columns = ("round", "loss", "accuracy", "epsilon", *further)
    table = pd.DataFrame(
        [
            {"round": t, **{name: row.get(name, math.nan) for name in columns[1:]}}
            for t, row in sorted(rows.items())
        ],
        columns=list(columns),
    ).astype({"round": "int64", **dict.fromkeys(columns[1:], "float64")})
    buffer = io.BytesIO()
    table.to_parquet(buffer, index=False)
    write_durably(path / METRICS, buffer.getvalue())


def draw_learning_curve(path: Path, rows: Mapping[int, Mapping[str, Any]], title: str) -> bool:
    """Draw test accuracy and loss, and ε spent, against rounds into ``learning-curve.png``.

    Returns:
        False if matplotlib (the extra ``report``) is not installed; nothing is drawn then.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    rounds = sorted(rows)
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot(
        rounds, [100 * rows[t]["accuracy"] for t in rounds], color="tab:blue", label="test accuracy (%)"
    )
    axes.set(xlabel="rounds released", ylabel="test accuracy (%)", ylim=(0, 100), title=title)
    axes.grid(alpha=0.3)
    epsilons = [math.nan if rows[t].get("epsilon") is None else rows[t]["epsilon"] for t in rounds]
    if any(math.isfinite(epsilon) and epsilon > 0 for epsilon in epsilons):
        right = axes.twinx()
        right.plot(rounds, epsilons, color="tab:red", linestyle="--", label="ε spent, worst allowed user")
        right.set(ylabel="ε spent", ylim=(0, None))
        lines = [*axes.get_lines(), *right.get_lines()]
        axes.legend(lines, [str(line.get_label()) for line in lines], loc="lower right")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    write_durably(path / PICTURE, buffer.getvalue())
    return True
