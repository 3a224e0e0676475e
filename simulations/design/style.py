"""How pictures look: one width, one color and marker a mechanism, names next to the lines' ends.

Pictures are 7 inches wide, so that ten points are 14 pixels where a page shows them 700 pixels
wide.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

__all__ = ["Look", "look", "name_at_ends", "number", "plain_logarithms"]

_BLUE = "#0072B2"
_ORANGE = "#E69F00"
_GREEN = "#009E73"
_RED = "#D55E00"
_PURPLE = "#CC79A7"
_SKY = "#56B4E9"
_GREY = "#777777"
_BLACK = "#222222"
_BROWN = "#7F5F2F"
#: By the beginning of a label, the longest that fits: color and marker. Colors are Okabe and
#: Ito's.
_LOOKS = {
    "ν-DP-FTRL": (_BLUE, "s"),
    "ME (dense)": (_GREEN, "D"),
    "Joint clipping": (_GREEN, "D"),
    "BandMF": (_BLUE, "s"),
    "banded-toeplitz": (_BLUE, "s"),
    "banded Toeplitz": (_BLUE, "s"),
    "optimized bands": (_BLUE, "s"),
    "BandMF, amplified": (_SKY, "s"),
    "BandMF, general": (_SKY, "p"),
    "BandMF, normalized": (_BROWN, "D"),
    "BandMF with taper": (_SKY, "d"),
    "banded": (_SKY, "p"),
    "normalized-banded-toeplitz": (_BROWN, "D"),
    "bsr": (_ORANGE, "^"),
    "BSR": (_ORANGE, "^"),
    "square root": (_ORANGE, "^"),
    "stamped square root": (_PURPLE, "v"),
    "BISR": (_RED, "v"),
    "γ-BIFR": (_PURPLE, "P"),
    "γ-BFR": (_BROWN, "X"),
    "1/i + c": (_BLACK, "*"),
    "optimized inverse": (_SKY, "h"),
    "BLT": (_GREEN, "D"),
    "tree": (_BROWN, ">"),
    "DP-SGD": (_GREY, "o"),
    "identity": (_GREY, "o"),
    "DP-λCGD": (_BLACK, "<"),
    "best ν-DP-FTRL": (_BLUE, "s"),
    "optimized LTI": (_GREEN, "D"),
    "JME": (_BLUE, "s"),
    "λ-JME": (_BLUE, "s"),
    "JME, not symmetrized": (_SKY, "d"),
    "IME": (_ORANGE, "^"),
    "CS": (_GREEN, "D"),
    "PP": (_GREY, "o"),
    "PP debiased": (_RED, "v"),
    "DP-Adam": (_GREY, "o"),
    "DP-Adam, debiased": (_RED, "v"),
    "block JME-Adam, blocks of 100": (_SKY, "d"),
    "block JME-Adam, blocks of 10,000": (_GREEN, "D"),
    "Noisy-SGD": (_GREY, "o"),
    "ν-Noisy-FTRL": (_BLUE, "s"),
    "best Toeplitz noise": (_GREEN, "D"),
    "ν = 0": (_PURPLE, "v"),
}
_ORDERED = ("#440154", "#3B528B", "#21918C", "#5EC962", "#C2A800")
_APART = 0.07


@dataclass(frozen=True)
class Look:
    """Of one curve."""

    color: str
    marker: str
    line: str = "-"


def look(label: str, at: int) -> Look:
    """By name; curves of a number ("8 epochs") go from dark to light in their order."""
    names = [name for name in _LOOKS if label.startswith(name)]
    if not names:
        return Look(_ORDERED[at % len(_ORDERED)], "os^Dv"[at % 5])
    line = "--" if label.endswith(("at most", "exact")) else "-"
    return Look(*_LOOKS[max(names, key=len)], line)


def name_at_ends(axis: Any, curves: Sequence[tuple[str, float, float, str]]) -> None:
    """Labels right of the axes at the height of the lines' ends, moved apart where they would
    overlap.

    Args:
        axis: of matplotlib, with its limits and scales set.
        curves: (label, last x, last y, color).
    """
    axis.autoscale_view()
    ends = []
    for label, x, y, color in curves:
        height = float(axis.transAxes.inverted().transform(axis.transData.transform((x, y)))[1])
        ends.append([min(max(height, 0.0), 1.0), label, color])
    ends.sort(key=lambda end: end[0])
    for lower, upper in itertools.pairwise(ends):
        upper[0] = max(upper[0], lower[0] + _APART)
    if ends and ends[-1][0] > 1.0:
        ends[-1][0] = 1.0
        for upper, lower in zip(ends[::-1], ends[-2::-1], strict=False):
            lower[0] = min(lower[0], upper[0] - _APART)
    for height, label, color in ends:
        axis.text(
            1.02, height, label, color=color, transform=axis.transAxes, fontsize=9, va="center"
        )


def plain_logarithms(axis: Any) -> None:
    """Numbers as people write them on the x or y axis, which is logarithmic: no 2×10⁰, few over a
    decade.
    """
    low, high = sorted(axis.get_view_interval())
    steps = (1, 1.5, 2, 3, 5, 7) if high < 12 * low else (1, 2, 5) if high < 150 * low else (1,)
    axis.set_major_locator(LogLocator(subs=steps))
    axis.set_major_formatter(FuncFormatter(lambda x, _: number(x)))
    axis.set_minor_formatter(NullFormatter())


def number(x: float) -> str:
    """Plain between a thousandth and a million, else a power of ten."""
    if 1e-3 <= abs(x) < 1e6 or math.log10(x) % 1:
        return f"{x:,g}"
    return f"$10^{{{round(math.log10(x))}}}$"
