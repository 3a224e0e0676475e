"""The training figures of simulations/papers: redrawn from kept points, or run anew in their reduced form."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from items import Item

__all__ = ["TRAINING"]

#: (paper, name below docs/results/papers, item, setting)
_FIGURES = (
    ("DP-λCGD", "lambda-cgd-fig2", "Figure 2", "accuracy against λ"),
    ("DP-λCGD", "lambda-cgd-fig3", "Figure 3", "accuracy against λ, amplified"),
    ("DP-λCGD", "lambda-cgd-fig4", "Figure 4, Table 3", "mechanisms against ε"),
    ("DP-λCGD", "lambda-cgd-fig7", "Figure 7", "more epochs"),
    ("DP-λCGD", "lambda-cgd-fig8", "Figure 8", "texts"),
    ("γ-BIFR", "gamma-bifr-fig3", "Figure 3", "accuracy against γ"),
    ("γ-BIFR", "gamma-bifr-fig4", "Figure 4, Tables 2-5", "images"),
    ("γ-BIFR", "gamma-bifr-fig5", "Figure 5, Tables 2-5", "texts"),
    ("BandMF", "bandmf-fig3", "Figure 3 (b, c)", "loss against RMSE"),
    ("ν-DP-FTRL", "nu-dp-ftrl-fig4", "Figure 4 (a, b)", "images and language"),
    ("JME", "jme-fig6", "Figure 6, Tables 3, 4", "private Adam"),
)

_PAPERS: Final = Path(__file__).resolve().parents[2] / "docs" / "results" / "papers"


def _item(paper: str, name: str, item: str, setting: str) -> Item:
    """A figure with its committed page; of one that was not run yet, its full command alone."""
    committed = (_PAPERS / f"{name}.md").exists()
    return Item(
        f"training-{name}", paper, item, f"{setting}, reduced",
        (f"papers/{name}.md", f"papers/{name}.png") if committed else (),
        ("papers/run.py", name, "--tables") if committed else (), ("papers/run.py", name, "--reduced"),
        kept=("papers/points.json", "papers/calibrations.jsonl") if committed else (),
        unrun="its runs are minutes; page and picture are made anew from kept ones: docs/papers.md"
        if committed else "its runs are minutes: docs/papers.md",
        grade="reduced",
    )  # fmt: skip


TRAINING: Final[tuple[Item, ...]] = tuple(_item(*figure) for figure in _FIGURES)
