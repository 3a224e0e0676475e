"""A table of a sweep in LaTeX, for a paper."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import pandas as pd

#: What LaTeX takes for a command, a comment or an argument, and letters that pdflatex lacks.
_ESCAPED: Final = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "{": r"\{",
        "}": r"\}",
        "$": r"\$",
        "&": r"\&",
        "#": r"\#",
        "%": r"\%",
        "_": r"\_",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        '"': r"\textquotedbl{}",
        "[": "{[}",
        "*": "{*}",
        "\n": " ",
        "±": r"$\pm$",
        "−": "$-$",
        "∞": r"$\infty$",
        "×": r"$\times$",
        "≤": r"$\le$",
        "≥": r"$\ge$",
        "–": "--",
        "α": r"$\alpha$",
        "β": r"$\beta$",
        "γ": r"$\gamma$",
        "δ": r"$\delta$",
        "ε": r"$\varepsilon$",
        "ζ": r"$\zeta$",
        "η": r"$\eta$",
        "λ": r"$\lambda$",
        "μ": r"$\mu$",
        "ν": r"$\nu$",
        "ρ": r"$\rho$",
        "σ": r"$\sigma$",
        "τ": r"$\tau$",
        "θ": r"$\theta$",
        "ω": r"$\omega$",
    }
)

_NUMBER: Final = re.compile(r"[-+−]?[0-9.]")


def escaped(text: str) -> str:
    r"""Text as LaTeX prints it.

    >>> print(escaped("accuracy (%), λ_2"))
    accuracy (\%), $\lambda$\_2
    """
    return text.translate(_ESCAPED)


def latex_table(table: pd.DataFrame, comment: str) -> str:
    """A table in the style of the package booktabs; columns of numbers are aligned on the right.

    pandas' `to_latex` escapes nothing by default: a % in a heading hides the end of its row, and
    pdflatex then repeats one error for ever.

    Args:
        table: strings.
        comment: what the table shows, as a comment above it.
    """
    columns = []
    for name in table.columns:
        if all(_NUMBER.match(cell) for cell in table[name] if cell):
            columns.append("r")
        else:
            columns.append("l")
    lines = [
        f"% {' '.join(comment.split())}",
        r"% It needs \usepackage{booktabs}.",
        rf"\begin{{tabular}}{{{''.join(columns)}}}",
        r"\toprule",
        _row(table.columns),
        r"\midrule",
    ]
    lines += [_row(cells) for cells in table.to_numpy().tolist()]
    lines += [r"\bottomrule", r"\end{tabular}", ""]
    return "\n".join(lines)


def _row(cells: Iterable[str]) -> str:
    return " & ".join(escaped(cell) for cell in cells) + r" \\"
