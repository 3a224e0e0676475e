"""Training figures of DP-λCGD (arXiv 2601.22334): Figures 2, 3, 4 with Table 3, 7 and 8.

Full size: ε of the lines and ζ of IMDb are not given (1, 4, 8 and ζ = 1); the CNN of 0.3 M
parameters is not described, a VGG without dense units has its size; for BERT-base a BERT of
BERT-tiny's size is taken; rates of Table 3 are for CIFAR-10. The reduced form of Figure 4 samples
DP-SGD by Balls-in-Bins as the others.
"""

from __future__ import annotations

from typing import Final

from figures import BEST, LEAST, Claim, Figure, Form, Keys, Line
from settings import (
    BINS,
    CIFAR_SMALL_VGG,
    DIGITS,
    FASHION,
    IMDB_BERT,
    POISSON,
    PROTOTYPES,
    budgets,
    epochs,
    named,
)

__all__ = ["FIGURES"]

_PAPER: Final = "DP-λCGD"
_CNN: Final[Keys] = {**CIFAR_SMALL_VGG, "privacy.clip-norm": 8.0}
_TINY: Final[Keys] = {**IMDB_BERT, "privacy.clip-norm": 1.0}
_IMPROVES: Final = "DP-λCGD improves upon the utility of DP-SGD (conclusion)"
_BELOW_RMSE: Final = (
    "for CIFAR-10 the optimal λ is much smaller than the value suggested by the RMSE-optimal "
    "factorization (5)"
)
_BELOW_AMPLIFIED: Final = (
    "the optimal value of λ is consistently smaller than the value suggested by amplified RMSE"
    " (5.1)"
)
_SWEEP: Final = (0.0, 0.5, 0.8, 0.9, 0.95, 0.975, 0.99)
_RATES: Final = (0.02, 0.05, 0.08, 0.1, 0.2, 0.5)
_SMALL_RATES: Final = (0.5, 1.0, 2.0)


def _lambdas(*values: float) -> dict[str, Keys]:
    """Places of an axis of λ; 0 is DP-SGD."""
    return {f"{value:g}": named("cgd", lambda_=value) for value in values}


def _budget_lines(*epsilons: float) -> dict[str, Line]:
    return {f"ε = {name}": Line(keys) for name, keys in budgets(*epsilons).items()}


_FIGURE_2: Final = Figure(
    name="lambda-cgd-fig2",
    paper=_PAPER,
    item="Fig. 2",
    shows="accuracy against λ, no amplification",
    x="λ",
    baseline="0",
    by_place=True,
    claims=(Claim(_IMPROVES, place=BEST), Claim(_BELOW_RMSE, over=LEAST, place=BEST)),
    full=Form(
        keys={},
        panels={
            **{f"CIFAR-10, B = {B}": {**_CNN, **epochs(50_000, B, 10)} for B in (128, 256, 1024)},
            **{f"IMDb, B = {B}": {**_TINY, **epochs(20_000, B, 10)} for B in (64, 128, 512)},
        },
        lines=_budget_lines(1, 4, 8),
        places=_lambdas(*_SWEEP),
        rates=_RATES,
    ),
    reduced=Form(
        keys=DIGITS,
        panels={f"digits, B = {B}": epochs(1438, B, 10) for B in (64, 256)},
        lines=_budget_lines(4),
        places=_lambdas(0.0, 0.5, 0.8, 0.9, 0.95),
        rates=_SMALL_RATES,
    ),
)
_FIGURE_3: Final = Figure(
    name="lambda-cgd-fig3",
    paper=_PAPER,
    item="Fig. 3",
    shows="accuracy against λ, amplified by Balls-in-Bins",
    x="λ",
    baseline="0",
    by_place=True,
    claims=(Claim(_IMPROVES, place=BEST), Claim(_BELOW_AMPLIFIED, over=LEAST, place=BEST)),
    full=Form(
        keys=BINS,
        panels={
            "CIFAR-10, B = 128": {**_CNN, **epochs(50_000, 128, 10)},
            "IMDb, B = 64": {**_TINY, **epochs(20_000, 64, 10)},
        },
        lines=_budget_lines(1, 4, 8),
        places=_lambdas(*_SWEEP),
        rates=_RATES,
    ),
    reduced=Form(
        keys={**DIGITS, **BINS, **epochs(1438, 64, 10)},
        panels={"digits, B = 64": {}},
        lines=_budget_lines(4),
        places=_lambdas(0.0, 0.5, 0.8, 0.9, 0.95),
        rates=_SMALL_RATES,
    ),
)
#: Table 3: (λ, learning rate) by ε; the rates of the paper are those of the full form.
_EPSILONS: Final = (0.25, 0.5, 1, 2, 4, 8)


def _tabulated(keys: Keys, rates: tuple[float, ...], shares: tuple[float, ...] = ()) -> Line:
    """A row of Table 3."""
    at = {
        f"{e:g}": {"server.learning-rate": rate} for e, rate in zip(_EPSILONS, rates, strict=True)
    }
    for place, share in zip(at, shares, strict=bool(shares)):
        at[place] = {**at[place], "mechanism.params": f"lambda={share}"}
    return Line({**BINS, **keys}, at)


_TABLE_3: Final = {
    "DP-SGD": _tabulated(POISSON, (0.05, 0.08, 0.2, 0.2, 0.2, 0.2)),
    "DP-λCGD": _tabulated(
        named("cgd"), (0.05, 0.08, 0.2, 0.2, 0.5, 0.5), (0.8, 0.9, 0.9, 0.9, 0.95, 0.95)
    ),
    "BandInvMF p = 2": _tabulated(
        named("banded-inverse", bands=2), (0.02, 0.05, 0.08, 0.2, 0.2, 0.5)
    ),
    "BandInvMF p = 16": _tabulated(
        named("banded-inverse", bands=16), (0.02, 0.08, 0.08, 0.2, 0.5, 0.5)
    ),
    "BISR p = 2": _tabulated(named("bisr", bands=2), (0.05, 0.08, 0.1, 0.1, 0.2, 0.2)),
    "BISR p = 16": _tabulated(named("bisr", bands=16), (0.05, 0.1, 0.2, 0.2, 0.5, 0.5)),
    "BLT": _tabulated(named("blt"), (0.05, 0.1, 0.2, 0.5, 0.5, 0.5)),
}
_SMALL_LINES: Final = {
    "DP-SGD": Line(named("identity")),
    "DP-λCGD": Line(named("cgd")),
    "BISR p = 4": Line(named("bisr", bands=4)),
    "BLT": Line(named("blt")),
}
_FIGURE_4: Final = Figure(
    name="lambda-cgd-fig4",
    paper=_PAPER,
    item="Fig. 4, Table 3",
    shows="mechanisms against ε, amplified",
    x="ε",
    baseline="DP-SGD",
    claims=(
        Claim(
            "DP-λCGD outperforms DP-SGD even in the high-privacy regime ε = 1/4 (5.1)", "DP-λCGD"
        ),
        Claim("BLT performs better in the low-privacy regime (5.1)", "BLT", "DP-λCGD", place="8"),
    ),
    full=Form(
        keys={**_CNN, **epochs(50_000, 128, 10)},
        panels={"CIFAR-10, B = 128": {}},
        lines=_TABLE_3,
        places=budgets(*_EPSILONS),
        rates=(0.2,),
    ),
    reduced=Form(
        keys={**DIGITS, **BINS, **epochs(1438, 64, 10)},
        panels={"digits, B = 64": {}},
        lines=_SMALL_LINES,
        places=budgets(1, 8),
        rates=_SMALL_RATES,
    ),
)
_FIGURE_7: Final = Figure(
    name="lambda-cgd-fig7",
    paper=_PAPER,
    item="Fig. 7",
    shows="accuracy against λ for more epochs at a large batch",
    x="λ",
    baseline="0",
    by_place=True,
    claims=(Claim("in this regime, the optimal mechanism is not DP-SGD (Fig. 7)", place=BEST),),
    full=Form(
        keys={},
        panels={
            **{f"IMDb, k = {k}": {**_TINY, **epochs(20_000, 512, k)} for k in (20, 40, 80)},
            **{f"CIFAR-10, k = {k}": {**_CNN, **epochs(50_000, 1024, k)} for k in (20, 40, 80)},
        },
        lines=_budget_lines(1, 4, 8),
        places=_lambdas(*_SWEEP),
        rates=_RATES,
    ),
    reduced=Form(
        keys=DIGITS,
        panels={f"digits, B = 256, k = {k}": epochs(1438, 256, k) for k in (10, 40)},
        lines=_budget_lines(4),
        places=_lambdas(0.0, 0.3, 0.5, 0.7, 0.9),
        rates=_SMALL_RATES,
    ),
)
_FIGURE_8: Final = Figure(
    name="lambda-cgd-fig8",
    paper=_PAPER,
    item="Fig. 8",
    shows="mechanisms against ε, BERT-base on IMDb",
    x="ε",
    baseline="DP-SGD",
    claims=(Claim("DP-λCGD outperforms DP-SGD at most privacy levels (Fig. 8)", "DP-λCGD"),),
    full=Form(
        keys={**_TINY, **epochs(20_000, 512, 10)},
        panels={"IMDb, B = 512": {}},
        lines=_TABLE_3,
        places=budgets(*_EPSILONS),
        rates=_RATES,
    ),
    reduced=Form(
        keys={**PROTOTYPES, **BINS, **epochs(2000, 200, 10)},
        panels={"prototypes, B = 200": {}},
        lines=_SMALL_LINES,
        places=budgets(0.5, 4),
        rates=_SMALL_RATES,
    ),
)
_FASHION: Final = Figure(
    name="lambda-cgd-fashion",
    paper=_PAPER,
    item="Figs. 2, 3",
    shows="accuracy against λ on Fashion-MNIST, B = 512, n = 1,170",
    x="λ",
    baseline="0",
    by_place=True,
    claims=(
        Claim(_IMPROVES, place=BEST),
        Claim(_BELOW_RMSE, over=LEAST, panel="not amplified", place=BEST),
        Claim(_BELOW_AMPLIFIED, over=LEAST, panel="Balls-in-Bins", place=BEST),
    ),
    full=_FIGURE_3.full,
    reduced=Form(
        keys={**FASHION, **epochs(60_000, 512, 10)},
        panels={"not amplified": {}, "Balls-in-Bins": BINS},
        lines=_budget_lines(4),
        places=_lambdas(0.0, 0.5, 0.8, 0.9, 0.95),
        rates=_SMALL_RATES,
        seeds=3,
        tuning_seeds=(1000,),
        tuning={
            "data.path": "data/fashion-mnist-tuning",
            "data.users": 50_000,
            **epochs(50_000, 512, 10),
        },
    ),
)
FIGURES: Final = (_FIGURE_2, _FIGURE_3, _FASHION, _FIGURE_4, _FIGURE_7, _FIGURE_8)
