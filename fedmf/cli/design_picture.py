"""The picture of a comparison: the error of each mechanism, and the memory that its noise takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from fedmf.cli.design_screen import error_label, is_independent, memory
from fedmf.figures import COLORS, LARGE, PALE, new_figure, save_figure

_NOTE: Final = (
    "1 × model: memory for one vector as long as the model, kept between rounds.\n"
    "1 regenerated: noise of one earlier round, drawn again instead of kept."
)


def draw_comparison(rows: Sequence[dict[str, Any]], file: Path, compared: bool) -> None:
    """Draw a bar for each mechanism, the smallest error first, with its numbers at the right edge.

    Args:
        rows: the rows of the comparison, the smallest error first.
        file: .png, .svg or .pdf.
        compared: whether the mechanisms are fedmf's choice, so that one is recommended.

    Raises:
        OSError: the file cannot be written.
    """
    from fedmf.mechanisms.design import recommended

    chosen = None
    if compared:
        chosen = recommended(rows)
    figure = new_figure(9, 0.42 * len(rows) + 2)
    axes = figure.subplots()
    errors = [row["objective_error"] for row in rows]
    digits = max(0, 2 - math.floor(math.log10(min(errors))))
    names = list[str]()
    labels = list[str]()
    for place, row in enumerate(rows):
        color = PALE
        if row is chosen:
            color = COLORS[0]
        elif is_independent(row):
            color = COLORS[1]
        axes.barh(place, errors[place], color=color, height=0.72)
        names.append(row["mechanism"])
        label = f"{errors[place]:.{digits}f}"
        if memory(row) != "none":
            label += f"  ({memory(row)})"
        if row is chosen:
            label += ", recommended"
        labels.append(label)
    axes.set(xlim=(0, max(errors)), ylim=(len(rows) - 0.5, -0.5), xticks=[])
    right = axes.secondary_yaxis("right")
    for side, texts in ((axes, names), (right, labels)):
        side.set_yticks(range(len(rows)), texts, size=LARGE)
        side.tick_params(length=0)
        side.spines[:].set_visible(False)
        for row, text in zip(rows, side.get_yticklabels(), strict=True):
            if row is chosen:
                text.set_weight("bold")
    figure.suptitle(_title(rows[0]), x=0.01, ha="left", size=LARGE)
    figure.supxlabel(_NOTE, x=0.01, ha="left", size=LARGE - 2)
    save_figure(figure, file, dpi=200)


def _title(row: dict[str, Any]) -> str:
    """Return what the bars are, and for which participation and budget."""
    title = (
        f"{error_label(row)} of the sums over {row['rounds']} rounds; smaller is better.\n"
        f"Each user in at most {row['max_participations']} of them"
    )
    if row["epsilon"] is not None:
        title += f", ε = {row['epsilon']:.4g}, δ = {row['delta']:.4g}"
    return title
