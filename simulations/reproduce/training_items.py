"""The training figures of simulations/papers: redrawn from kept runs, or run anew in their reduced form."""

from __future__ import annotations

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
    ("BandMF", "bandmf-fig9", "Figure 9", "loss against MaxSE"),
    ("ν-DP-FTRL", "nu-dp-ftrl-fig4", "Figure 4 (a, b)", "images and language"),
    ("JME", "jme-fig6", "Figure 6, Tables 3, 4", "private Adam"),
)

TRAINING: Final[tuple[Item, ...]] = tuple(
    Item(
        f"training-{name}", paper, item, f"{setting}, reduced",
        (f"papers/{name}.md", f"papers/{name}.png"),
        ("papers/run.py", name, "--tables"), ("papers/run.py", name, "--reduced"),
        kept=("papers/cells.jsonl",),
        unrun="runs are kept ones, hours of training; page and picture are made anew: docs/project/papers.md",
    )
    for paper, name, item, setting in _FIGURES
)  # fmt: skip
