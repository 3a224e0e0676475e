"""Training figures of "Scaling up the Banded Matrix Factorization Mechanism": Figures 3 (b, c) and 9."""

from __future__ import annotations

import dataclasses
from typing import Final

from figures import Claim, Figure, Form, Keys, Line
from settings import CENTRAL, DIGITS, budgets, epochs, named

__all__ = ["FIGURES"]

_ADAPTIVE: Final[Keys] = {"server.kind": "adam"}
_PLAIN: Final[Keys] = {"server.kind": "sgd", "server.momentum": 0.9}


def _lines(*widths: int) -> dict[str, Line]:
    """Banded Toeplitz strategies of these bandwidths, and BLT."""
    return {
        **{
            f"p = {p}": Line(named("banded-toeplitz", bands=p) if p > 1 else named("identity"))
            for p in widths
        },
        "BLT": Line(named("blt")),
    }


_FIGURE_3: Final = Figure(
    name="bandmf-fig3",
    paper="BandMF",
    item="Fig. 3 (b, c)",
    shows="evaluation loss against RMSE, for bands and noise levels, adaptive and plain optimizer",
    x="ε",
    y="loss",
    baseline="p = 1",
    # Without an adaptive rule the loss follows the RMSE; with Adam p = 1 is ahead in spite of its RMSE.
    claims=(
        *(Claim(line, panel="digits, not adaptive") for line in ("p = 4", "p = 22")),
        *(Claim("p = 1", line, panel="digits, adaptive") for line in ("p = 4", "p = 22")),
    ),
    full=Form(
        keys={
            **CENTRAL,
            "task.kind": "next-token",
            "data.kind": "table",
            "data.path": "stackoverflow.parquet",
            "data.text-column": "tokens",
            "data.vocabulary": "words",
            "data.vocabulary-path": "public.txt",
            "data.vocabulary-size": 10_004,
            "data.length": 64,
            "data.most-sequences": 1,  # one a text, which is the example
            "data.users": 1_000_000,
            "privacy.clip-norm": 1.0,
            "model.kind": "transformer",
            "model.width": 128,
            "model.heads": 2,
            "model.feed-forward": 512,
            "privacy.delta": 1e-8,
            "cohorts.users-per-round": 200,
            "cohorts.rounds": 5000,
        },
        panels={"adaptive": _ADAPTIVE, "not adaptive": _PLAIN},
        lines=_lines(1, 8, 64, 512),
        places=budgets(0.1, 0.3, 1, 3, 10, 30, 100),
        rates=(1e-3, 1e-2, 1e-1, 1.0),
    ),
    reduced=Form(
        keys={**DIGITS, **epochs(1438, 64, 10)},
        panels={
            "digits, adaptive": {**_ADAPTIVE, "server.epsilon": 1e-3},
            "digits, not adaptive": _PLAIN,
        },
        lines={name: line for name, line in _lines(1, 4, 22).items() if name != "BLT"},
        places=budgets(1, 8),
        rates=(0.02, 0.04, 0.08),
    ),
    unknown="BertTiny as a next-word model: a transformer of its width; batch, examples, clip norm and "
    "optimizers' parameters: 200, 10⁶, 1 "
    "and defaults; noise multipliers over 3 orders of magnitude are given here as ε",
    needs="StackOverflow as token blocks, a large GPU",
)
#: The same runs against another error.
_FIGURE_9: Final = dataclasses.replace(
    _FIGURE_3,
    name="bandmf-fig9",
    item="Fig. 9",
    shows="evaluation loss against the largest error of a query (MaxSE); the runs of bandmf-fig3",
    runs_of="bandmf-fig3",
)
FIGURES: Final = (_FIGURE_3, _FIGURE_9)
