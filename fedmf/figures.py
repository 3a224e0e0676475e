"""The common style of all pictures."""

from __future__ import annotations

from typing import Any, Final

#: Distinguishable for the color-blind (Okabe and Ito, 2008), black last.
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
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


def style(axes: Any, **labels: Any) -> None:
    """Label axes, with a light grid and no frame."""
    axes.set(**labels)
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
