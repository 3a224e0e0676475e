"""Training figures of "Beyond Square Roots" (γ-BIFR): Figures 3, 4, 5 with Table 1.

Full size: batch size, ε and ζ are lost in the text's formulas; B = 512, ε of Table 1 as 0.5, 1, 2,
4, 8 and ζ = 1 are taken, and for BERT-base a BERT of BERT-tiny's size.
"""

from __future__ import annotations

from typing import Final

from figures import BEST, Claim, Figure, Form, Keys, Line
from settings import (
    BINS,
    CIFAR,
    CIFAR_VGG,
    DIGITS,
    IMDB_BERT,
    POISSON,
    PROTOTYPES,
    budgets,
    epochs,
    named,
)

__all__ = ["FIGURES"]

_PAPER: Final = "γ-BIFR"
_EPSILONS: Final = (0.5, 1, 2, 4, 8)
#: 25 trials of Optuna over a log-uniform range become a grid over it.
_RATES: Final = (0.01, 0.03, 0.1, 0.3, 1.0)
_SMALL_RATES: Final = (0.5, 1.0, 2.0)
_VGG: Final[Keys] = {
    **CIFAR_VGG,
    **BINS,
    "privacy.clip-norm": 1.0,
    **epochs(50_000, 512, 20),
}
_BERT: Final[Keys] = {
    **IMDB_BERT,
    **BINS,
    "privacy.clip-norm": 1.0,
    **epochs(20_000, 512, 10),
}
#: Table 1: γ by data set and bandwidth, for the five ε in order.
_TABLE_1: Final = {
    ("CIFAR-10", 4): (0.60, 0.70, 0.80, 0.85, 0.85),
    ("CIFAR-10", 64): (0.30, 0.30, 0.35, 0.40, 0.45),
    ("IMDb", 4): (0.50, 0.55, 0.70, 0.75, 0.80),
    ("IMDb", 64): (0.15, 0.20, 0.30, 0.35, 0.40),
}


def _gammas(*values: float) -> dict[str, Keys]:
    return {f"{value:g}": {"mechanism.params": f"gamma={value}"} for value in values}


def _bands(*widths: int, epsilons: tuple[float, ...]) -> dict[str, Line]:
    return {
        f"p = {p}, ε = {e:g}": Line({**named("bifr", bands=p), "privacy.epsilon": e})
        for p in widths
        for e in epsilons
    }


def _methods(data: str, p: int) -> dict[str, Line]:
    """The methods of Figures 4 and 5 at one bandwidth."""
    gammas = dict(zip(_EPSILONS, _TABLE_1[data, p], strict=True))
    return {
        "DP-SGD": Line(POISSON),
        "BLT": Line(named("blt", buffers=4)),
        **{
            f"{label} p = {p}": Line(named(kind, bands=p))
            for label, kind in (
                ("BandInvMF", "banded-inverse"),
                ("BISR", "bisr"),
                ("BandMF", "banded-toeplitz"),
                ("BSR", "bsr"),
            )
        },
        "DP-λCGD": Line(named("cgd")),
        f"γ-BIFR p = {p}": Line(
            named("bifr", bands=p),
            {f"{e:g}": {"mechanism.params": f"gamma={g}"} for e, g in gammas.items()},
        ),
    }


_SMALL: Final = {
    "DP-SGD": Line(named("identity")),
    "BISR p = 4": Line(named("bisr", bands=4)),
    "BandMF p = 4": Line(named("banded-toeplitz", bands=4)),
    "DP-λCGD": Line(named("cgd")),
    "γ-BIFR p = 4": Line(named("bifr", bands=4)),
}
_GAMMA: Final = "γ-BIFR p = 4"
_LOW: Final = "γ-BIFR improves over the alternative methods in the low-privacy regime (4)"
_ON_PAR: Final = "it performs on par with the banded-inverse methods (4); taken as within one point"
_HIGH: Final = "only BLT achieves better performance in the high-privacy regime (4)"
_FIGURE_3: Final = Figure(
    name="gamma-bifr-fig3",
    paper=_PAPER,
    item="Fig. 3",
    shows="accuracy against γ for small bandwidths; γ = 0.5 is BISR",
    x="γ",
    baseline="0.5",
    by_place=True,
    claims=tuple(
        Claim(
            "for small bandwidth, the optimal value of γ differs significantly from 1/2, and thus "
            "outperforms the BISR factorization (5)",
            line,
            place=BEST,
        )
        for line in ("p = 2, ε = 4", "p = 4, ε = 4")
    ),
    full=Form(
        keys={
            **CIFAR,
            **BINS,
            "model.kind": "cnn",
            "privacy.clip-norm": 1.0,
            **epochs(50_000, 512, 10),
        },
        panels={"CIFAR-10": {}},
        lines=_bands(2, 4, 64, epsilons=(1, 8)),
        places=_gammas(0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95),
        rates=_RATES,
    ),
    reduced=Form(
        keys={**DIGITS, **epochs(1438, 64, 10)},
        panels={"digits": {}},
        lines=_bands(2, 4, 16, epsilons=(4,)),
        places=_gammas(0.3, 0.5, 0.8),
        rates=_SMALL_RATES,
    ),
)
_FIGURE_4: Final = Figure(
    name="gamma-bifr-fig4",
    paper=_PAPER,
    item="Fig. 4",
    shows="mechanisms against ε at high and low memory, VGG",
    x="ε",
    baseline="DP-SGD",
    claims=(
        *(
            Claim(_LOW, _GAMMA, line, place=e)
            for e in ("2", "8")
            for line in (*_SMALL, "BLT")
            if line != _GAMMA
        ),
        *(
            Claim(_ON_PAR, _GAMMA, line, place="0.5", within=1.0)
            for line in ("BISR p = 4", "DP-λCGD")
        ),
        Claim(_HIGH, "BLT", _GAMMA, place="0.5"),
    ),
    full=Form(
        keys=_VGG,
        panels={"CIFAR-10": {}},
        lines={**_methods("CIFAR-10", 4), **_methods("CIFAR-10", 64)},
        places=budgets(*_EPSILONS),
        rates=_RATES,
    ),
    reduced=Form(
        keys={**DIGITS, **BINS, **epochs(1438, 128, 20)},
        panels={"digits": {}},
        lines={**_SMALL, "BLT": Line(named("blt", buffers=4))},
        places=budgets(0.5, 2, 8),
        rates=_SMALL_RATES,
        seeds=10,
        tuning_seeds=(1000, 1001),
    ),
)
_FIGURE_5: Final = Figure(
    name="gamma-bifr-fig5",
    paper=_PAPER,
    item="Fig. 5",
    shows="mechanisms against ε at high and low memory, BERT-base",
    x="ε",
    baseline="DP-SGD",
    claims=tuple(Claim(_LOW, _GAMMA, line) for line in _SMALL if line != _GAMMA),
    full=Form(
        keys=_BERT,
        panels={"IMDb": {}},
        lines={**_methods("IMDb", 4), **_methods("IMDb", 64)},
        places=budgets(*_EPSILONS),
        rates=_RATES,
    ),
    reduced=Form(
        keys={**PROTOTYPES, **BINS, **epochs(2000, 200, 10)},
        panels={"prototypes": {}},
        lines=_SMALL,
        places=budgets(1),
        rates=_SMALL_RATES,
    ),
)
FIGURES: Final = (_FIGURE_3, _FIGURE_4, _FIGURE_5)
