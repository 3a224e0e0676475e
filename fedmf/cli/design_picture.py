"""The picture of a comparison: the error of each mechanism, and the memory that its noise takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedmf.cli.design_screen import error_label, is_independent, memory
from fedmf.figures import COLOURS, LARGE, PALE, new_figure, save_figure


def draw_comparison(rows: Sequence[dict[str, Any]], file: Path, compared: bool) -> None:
    """Draw a bar for each mechanism, the smallest error first, with its numbers at its end.

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
    figure = new_figure(8, 0.42 * len(rows) + 1.2)
    axes = figure.subplots()
    widest = max(row["objective_error"] for row in rows)
    gap = 0.01 * widest
    for place, row in enumerate(rows):
        error = row["objective_error"]
        look: dict[str, Any] = {"va": "center", "size": LARGE}
        colour = PALE
        if row is chosen:
            look["weight"] = "bold"
            colour = COLOURS[0]
        elif is_independent(row):
            colour = COLOURS[1]
        axes.barh(place, error, color=colour, height=0.72)
        label = f"{error:.3g}"
        if memory(row) != "none":
            label += f"  ({memory(row)})"
        if row is chosen:
            label += ", recommended"
        axes.text(error + gap, place, label, **look)
        axes.text(-gap, place, row["mechanism"], ha="right", **look)
    axes.set(xlim=(0, 1.3 * widest), ylim=(len(rows) - 0.5, -0.5), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    figure.suptitle(_title(rows[0]), x=0.01, ha="left", size=LARGE)
    save_figure(figure, file, dpi=200)


def _title(row: dict[str, Any]) -> str:
    """Return what the bars are, and for which participation and budget."""
    title = (
        f"{error_label(row)} of the sums over {row['rounds']} rounds, each user in at most"
        f" {row['max_participations']}"
    )
    if row["epsilon"] is not None:
        title += f", ε = {row['epsilon']:.4g}"
    return title
