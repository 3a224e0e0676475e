"""The common style of all pictures, and of tables in notebooks."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

#: Distinguishable for the color-blind (Okabe and Ito, 2008), black last.
COLORS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
#: Points of text that can be read in a picture of half its size.
LARGE: Final = 13
#: For what is not the point of a picture.
PALE: Final = "#A9C4D9"


def new_figure(width: float, height: float) -> Any:
    """Create an empty figure of a size in inches.

    Raises:
        ImportError: matplotlib (the extra ``report``) is not installed.
    """
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, file: Any, form: str | None = None, dpi: int = 150) -> None:
    """Write a figure to a file, with fonts that publishers accept in a PDF (TrueType, not Type 3).

    Args:
        figure: of `new_figure`.
        file: a path, or a binary file.
        form: "png" or "pdf"; the suffix of the path if left out.
        dpi: pixels of an inch.
    """
    from matplotlib import rc_context

    with rc_context({"pdf.fonttype": 42}):
        figure.savefig(file, format=form, dpi=dpi)


def style(axes: Any, **labels: Any) -> None:
    """Label axes, with a light grid and no frame."""
    axes.set(**labels)
    axes.xaxis.label.set_size(LARGE)
    axes.yaxis.label.set_size(LARGE)
    axes.tick_params(labelsize=LARGE - 2)
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def label_ends(axes: Any, ends: Sequence[tuple[float, str, str]]) -> None:
    """Write the names of lines next to their ends, in their colors, without overlaps.

    Args:
        axes: with all lines drawn; its limits are kept.
        ends: the last value, name and color of each line; lines without a value have no label.
    """
    from scipy.optimize import isotonic_regression

    shown = sorted(end for end in ends if math.isfinite(end[0]))
    if not shown:
        return
    low, high = axes.get_ylim()
    axes.set_ylim(low, high)
    points = 72 * axes.figure.get_figheight() * axes.get_position().height
    gap = 1.2 * LARGE * (high - low) / points
    # The places nearest to the values that are a line of text apart.
    closer = [value - gap * at for at, (value, _, _) in enumerate(shown)]
    for at, place in enumerate(isotonic_regression(closer).x):
        _, name, color = shown[at]
        axes.annotate(
            name,
            (1, place + gap * at),
            (8, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            color=color,
            va="center",
            size=LARGE,
        )


def html_table(rows: Iterable[tuple[str, str]]) -> str:
    """Return names and values as a table for a notebook, in which long values wrap.

    >>> html_table([("rounds", "3 < 4")])
    '<table style="..."><tr><th ...>rounds</th><td ...>3 &lt; 4</td></tr></table>'
    """
    cell = "text-align: left; vertical-align: top; white-space: normal; overflow-wrap: anywhere"
    parts = list[str]()
    for name, value in rows:
        head = f'<th style="{cell}; overflow-wrap: normal">{html.escape(name)}</th>'
        parts.append(f'<tr>{head}<td style="{cell}">{html.escape(value)}</td></tr>')
    return f'<table style="max-width: 60em">{"".join(parts)}</table>'
