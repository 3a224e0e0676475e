"""Training figure of "Scaling up the Banded Matrix Factorization Mechanism": Figure 3 (b, c).

Figure 9 shows the same runs against MaxSE; no sentence of the text makes a claim about it.

Full size: BertTiny as a next-word model is a transformer of its width; batch, examples, clip norm
and optimizers' parameters are not given (200, 10⁶, 1 and defaults); noise multipliers are places of
ε.
"""

from __future__ import annotations

from typing import Final

from figures import Claim, Figure, Form, Keys, Line
from settings import CENTRAL, DIGITS, budgets, epochs, named

__all__ = ["FIGURES"]

_ADAPTIVE: Final[Keys] = {"server.kind": "adam"}
_ADAPTIVE_SAYS: Final = (
    "for an adaptive optimizer and the same RMSE, strategies with fewer bands provide better"
    " learning performance (4.3)"
)
_PLAIN_SAYS: Final = (
    "for a non-adaptive optimizer, the lines all line up (4.3); taken as within 0.05 nats"
)
#: ε at which σ·RMSE of prefix sums is 20 and 60, for n = 220, k = 10, b = 22 and δ = 1e-5.
_EQUAL_RMSE: Final = {1: (7.9771, 2.2355), 4: (3.7841, 1.106), 22: (2.0096, 0.5993)}
_PLAIN: Final[Keys] = {"server.kind": "sgd", "server.momentum": 0.9}


def _bands(p: int) -> Keys:
    """A banded Toeplitz strategy."""
    return named("banded-toeplitz", bands=p) if p > 1 else named("identity")


_FIGURE_3: Final = Figure(
    name="bandmf-fig3",
    paper="BandMF",
    item="Fig. 3 (b, c)",
    shows="evaluation loss against RMSE, for bands and noise levels, adaptive and plain optimizer",
    x="RMSE",
    y="loss",
    baseline="p = 1",
    claims=(
        *(
            Claim(_ADAPTIVE_SAYS, ahead, behind, panel="digits, adaptive")
            for ahead, behind in (("p = 1", "p = 4"), ("p = 1", "p = 22"), ("p = 4", "p = 22"))
        ),
        *(
            Claim(_PLAIN_SAYS, p, "p = 1", "digits, not adaptive", within=0.05)
            for p in ("p = 4", "p = 22")
        ),
    ),
    full=Form(
        keys={
            **CENTRAL,
            "task.kind": "next-token",
            "data.kind": "table",
            "data.path": "stackoverflow.parquet",
            "data.text-column": "tokens",
            "data.vocabulary-path": "tokenizer.json",  # of 10,004 words
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
        lines={**{f"p = {p}": Line(_bands(p)) for p in (1, 8, 64, 512)}, "BLT": Line(named("blt"))},
        places=budgets(0.1, 0.3, 1, 3, 10, 30, 100),
        rates=(1e-3, 1e-2, 1e-1, 1.0),
    ),
    reduced=Form(
        keys={**DIGITS, **epochs(1438, 64, 10)},
        panels={
            "digits, adaptive": {**_ADAPTIVE, "server.eps": 1e-3},
            "digits, not adaptive": _PLAIN,
        },
        lines={
            f"p = {p}": Line(
                _bands(p),
                {place: {"privacy.epsilon": e} for place, e in zip(("20", "60"), es, strict=True)},
            )
            for p, es in _EQUAL_RMSE.items()
        },
        places={"20": {}, "60": {}},
        rates=(0.02, 0.04, 0.08),
    ),
)
FIGURES: Final = (_FIGURE_3,)
