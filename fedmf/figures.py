"""The common style of all pictures, and of tables in notebooks."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Any, Final

#: Distinguishable for the color-blind (Okabe and Ito, 2008), black last.
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def new_figure(width: float, height: float) -> Any:
    """Create an empty figure of a size in inches.

    Raises:
        ImportError: matplotlib (the extra ``report``) is not installed.
    """
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def style(axes: Any, **labels: Any) -> None:
    """Label axes, with a light grid and no frame."""
    axes.set(**labels)
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


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
