"""Every table and figure of the five papers and of ours that needs no training, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["CATALOGUE", "Command", "Item"]

#: A script below simulations/ and its arguments.
Command = tuple[str, ...]


@dataclass(frozen=True)
class Known:
    """A difference that is understood.

    Args:
        row: part of the labels it concerns.
        because: why.
    """

    row: str
    because: str


@dataclass(frozen=True)
class Item:
    """A table or figure of a paper, or of ours.

    The paper's figures stand in its page beside ours; here is how near they have to be.

    Args:
        name: for the command line.
        paper: which one; "fedmf" for our own.
        item: which table or figure of it.
        setting: what it is computed for.
        results: what is written below docs/results, pages with figures and pictures.
        quick: what is run in minutes; nothing if only the full form can be.
        full: what is run for all of it.
        within: how far ours may be from the paper's, relatively; 0 where its text has no numbers.
        repeats: how far figures computed anew may be from the committed ones, relatively, beyond
            intervals.
        known: differences that are understood.
        kept: files below docs/results that the script reads or goes on from.
        unrun: what the quick form leaves out and why; empty if nothing.
        grade: "reduced" where data, model or range are smaller than the paper's, "fitted" where a
            slope or constant was fitted, "restored" where lost formulas or settings were inferred,
            else empty.
    """

    name: str
    paper: str
    item: str
    setting: str
    results: tuple[str, ...]
    quick: Command = ()
    full: Command = ()
    within: float = 0.0
    repeats: float = 2e-3
    known: tuple[Known, ...] = ()
    kept: tuple[str, ...] = ()
    unrun: str = ""
    grade: str = ""

    def __post_init__(self) -> None:
        if not self.full:
            raise ValueError(f"full (command) must be given; got none for {self.name!r}.")
        if not self.quick and not self.unrun:
            raise ValueError(
                f"unrun (why it is not run) must be said without a quick form; {self.name!r}."
            )

    def command(self, full: bool) -> Command:
        """Of one form."""
        return self.full if full else self.quick


_CGD = "DP-λCGD"
_BIFR = "γ-BIFR"
_BANDMF = "BandMF"
_NU = "ν-DP-FTRL"
_JME = "JME"
_OURS = "fedmf"
_AMPLIFIED_CGD = "n = 3900, k = 10, b = 390, ε = 8 … 0.25, δ = 1e-5, Balls-in-Bins"
_AMPLIFIED_BIFR = "n = 2048, k = 8, b = 256, ε = 1 … 8, δ = 1e-5 (inferred)"
_SCRIPT = "design/bandmf.py"
_HOURS = "the other cells are hours of Monte Carlo"
_INVERSE = (
    "the paper's figure is below a certified lower bound, or of the norm of the earliest columns"
    " (errata)"
)
_OPTIMISED = "another program optimized the strategy, without regard to the sampling"


def _picture(
    name: str, paper: str, item: str, setting: str, script: str, *arguments: str, grade: str = ""
) -> Item:
    """A picture of a script in design/, whose numbers lie beside it."""
    command = (script, *arguments)
    return Item(
        name,
        paper,
        item,
        setting,
        (f"{name}.json", f"{name}.png"),
        command,
        command,
        grade=grade,
    )


_ITEMS = (
    Item(
        "lambda-cgd-table4",
        _CGD,
        "Table 4, first column",
        "n = 3900, k = 10, b = 390, ε = 8, δ = 1e-5",
        ("table4.md",),
        ("design/table4.py", "--quick"),
        ("design/table4.py",),
        within=0.005,
        known=(
            Known("BandInvMF (p=390)", _INVERSE),
            Known(
                "general banded", "general banded matrices are more than the paper's Toeplitz ones"
            ),
        ),
        unrun="wide optimized bands take minutes",
    ),
    Item(
        "lambda-cgd-table4-amplified",
        _CGD,
        "Table 4, amplified columns",
        _AMPLIFIED_CGD,
        ("table4-amplified.md",),
        (
            "accounting/table4_amplified.py",
            "--rows",
            "DP-SGD",
            "--rows",
            "BSR (p=390)",
            "--error",
            "0.05",
        ),
        # Draws of the quick form have intervals of half a per cent.
        ("accounting/table4_amplified.py",),
        within=0.02,
        repeats=0.01,
        known=(
            Known("BandInvMF (p=390)", _INVERSE),
            Known("BandInvMF", _OPTIMISED),
            Known("BLT", _OPTIMISED),
        ),
        unrun=_HOURS,
    ),
    _picture(
        "lambda-cgd-fig6", _CGD, "Figure 6", "column normalization, n = kb", "design/lambda_cgd.py"
    ),
    Item(
        "gamma-bifr-table6-unamplified",
        _BIFR,
        "Table 6, last column; Figure 1",
        "n = 2048, k = 8, b = 256, ε = 8, δ = 1e-5 (inferred)",
        ("gamma-bifr.md", "gamma-bifr-fig1.json", "gamma-bifr-fig1.png"),
        ("design/gamma_bifr.py", "--quick"),
        ("design/gamma_bifr.py",),
        within=0.005,
        known=(Known("banded-inverse", _INVERSE),),
        unrun="the optimized inverse takes minutes",
        grade="restored",
    ),
    Item(
        "gamma-bifr-tables6-7",
        _BIFR,
        "Tables 6 and 7, amplified",
        _AMPLIFIED_BIFR,
        ("gamma-bifr-amplified.md",),
        (
            "accounting/gamma_bifr_amplified.py",
            "--rows",
            "BandMF, Poisson",
            "--rows",
            "BSR, bins",
            "--epsilon",
            "8",
            "--error",
            "0.05",
        ),
        ("accounting/gamma_bifr_amplified.py", "--error", "0.05"),
        within=0.015,
        repeats=0.01,
        known=(
            Known(
                "BandMF, b-min-sep",
                "the paper does not say its bands; ours are searched, 64 at ε = 4",
            ),
            Known(
                "γ-BFR, b-min-sep",
                "the paper does not say its bands; ours are searched on few draws",
            ),
            Known(
                "1/i + c, b-min-sep",
                "the paper does not say its bands; ours are searched, and lower",
            ),
            Known(
                "BandMF + heuristic",
                "the paper does not say where its taper begins; ours is searched",
            ),
            Known("BandInvMF", _INVERSE),
        ),
        unrun=_HOURS,
        grade="restored",
    ),
    Item(
        "gamma-bifr-gammas",
        _BIFR,
        "Table 1, Figure 2",
        "n = 1940, b = 97 and n = 480, b = 48 (inferred)",
        (
            "gamma-bifr-gammas.md",
            *(f"gamma-bifr-fig2{part}.{kind}" for part in ("", "b") for kind in ("json", "png")),
        ),
        ("accounting/gamma_bifr_gammas.py", "--quick"),
        ("accounting/gamma_bifr_gammas.py",),
        # Searches on few draws.
        repeats=0.06,
        known=(
            Known("", "the optimum is flat: at the paper's γ our error is at most 1.4 % larger"),
        ),
        unrun="two of five budgets and one bandwidth",
        grade="restored",
    ),
    _picture(
        "bandmf-fig1a",
        _BANDMF,
        "Figure 1 (a)",
        "RMSE against b",
        _SCRIPT,
        "--figure",
        "1a",
    ),
    _picture("bandmf-fig1b", _BANDMF, "Figure 1 (b)", "amplified", _SCRIPT, "--figure", "1b"),
    _picture(
        "bandmf-fig2",
        _BANDMF,
        "Figure 2",
        "amplified, best bands",
        _SCRIPT,
        "--figure",
        "2",
        grade="reduced",
    ),
    Item(
        "bandmf-fig4",
        _BANDMF,
        "Figure 4",
        "time of the objective, n = 10² … 10⁷",
        ("bandmf-fig4.json", "bandmf-fig4.png"),
        ("design/bandmf_objective.py", "--largest", "100000"),
        ("design/bandmf_objective.py",),
        # Times of a machine: only what has become many times slower is stale.
        repeats=50.0,
        unrun="larger n take a minute",
        grade="reduced",
    ),
    _picture(
        "bandmf-fig6",
        _BANDMF,
        "Figure 6",
        "sampling, correlation",
        _SCRIPT,
        "--figure",
        "6",
        grade="restored",
    ),
    _picture(
        "bandmf-fig7",
        _BANDMF,
        "Figure 7",
        "by rounds and by epochs",
        _SCRIPT,
        "--figure",
        "7",
        grade="restored",
    ),
    _picture(
        "bandmf-fig8", _BANDMF, "Figure 8", "as Figure 2 (a), at ε = 8", _SCRIPT, "--figure", "8"
    ),
    Item(
        "bandmf-claims",
        _BANDMF,
        "Figures 1, 2, 6, 7, 8 in words",
        "n = 16384, δ = 1e-8",
        ("bandmf-claims.md",),
        ("design/bandmf_claims.py",),
        ("design/bandmf_claims.py",),
        within=0.03,
        kept=tuple(f"bandmf-fig{name}.json" for name in ("1a", "1b", "2", "6", "7", "8")),
        known=(
            Known("7 (a)", "ours is at n = 16384; δ of the figure is not given"),
            Known(
                "8: ",
                "ours finds 256 bands 6 % better than 128; the text has no values of the curve",
            ),
        ),
    ),
    _picture("bandmf-fig10", _BANDMF, "Figure 10", "unknown separation", _SCRIPT, "--figure", "10"),
    _picture("bandmf-fig11", _BANDMF, "Figure 11", "1/i + c", _SCRIPT, "--figure", "11"),
    Item(
        "nu-dp-ftrl",
        _NU,
        "Figures 1, 2, Tables 1, 2, 4, §2.3",
        "least squares, d = 8 … 1024",
        ("nu-dp-ftrl.md", "nu-dp-ftrl-fig1.png", "nu-dp-ftrl-fig2.png", "nu-dp-ftrl-finite.png"),
        ("stationary/nu_dp_ftrl.py", "--replicas", "4"),
        ("stationary/nu_dp_ftrl.py", "--full"),
        within=0.06,
        kept=("nu-dp-ftrl.md",),
        known=(Known("slope in T", "the paper omits logarithms, whose slopes stand beside"),),
        grade="fitted",
    ),
    Item(
        "nu-dp-ftrl-fig3",
        _NU,
        "Figure 3",
        "bounds against κ",
        ("optimized-lti.md", "optimized-lti.json", "optimized-lti.png"),
        ("design/optimized_lti.py",),
        ("design/optimized_lti.py",),
    ),
    Item(
        "jme-figs1-2-3-7",
        _JME,
        "Figures 1, 2, 3, 7",
        "expected errors, n up to 1000",
        (
            "moments.md",
            *(f"moments-fig{n}.{kind}" for n in (1, 2, 3, 7) for kind in ("json", "png")),
        ),
        ("moments/second_moments.py",),
        ("moments/second_moments.py",),
    ),
    Item(
        "jme-fig5",
        _JME,
        "Figure 5",
        "Gaussian density, d = 5, n = 100",
        ("moments-density.md", "moments-fig5.png"),
        ("moments/density.py", "--runs", "40"),
        ("moments/density.py",),
        # A few heavy-tailed runs, whose ± is one standard error.
        repeats=0.2,
        unrun="960 of 1000 runs",
        grade="reduced",
    ),
    Item(
        "jme-fig4",
        _JME,
        "Figure 4 (error of v)",
        "n = 1000, d = 1e6",
        ("optimizers-v-error.md", "optimizers-fig4.png"),
        (),
        ("optimizers/v_error.py",),
        unrun="it takes minutes of CPU; its small form is not comparable",
    ),
    Item(
        "optimizers-scaled-blocks",
        _OURS,
        "private optimizers",
        "tensors of very different size",
        ("optimizers-scaled-blocks.md",),
        (),
        ("optimizers/scaled_blocks.py",),
        unrun="it is a hundred runs",
    ),
    Item(
        "stream-answers",
        _OURS,
        "what a stream ends in",
        "flights, ratings, baseball; errors, intervals",
        ("stream-answers.md",),
        ("moments/stream_answers.py",),
        ("moments/stream_answers.py",),
    ),
    Item(
        "stream-anomalies",
        _OURS,
        "anomaly scores of private densities",
        "three data sets, ε = 1, 4, 8",
        ("stream-anomalies.md",),
        ("moments/stream_anomalies.py",),
        ("moments/stream_anomalies.py",),
    ),
    Item(
        "jax-privacy",
        _OURS,
        "designs beside jax-privacy",
        "RMSE and MaxSE in 33 settings, n = 64 … 2000",
        ("jax-privacy-errors.md",),
        ("design/jax_privacy_errors.py", "--quick"),
        ("design/jax_privacy_errors.py",),
        kept=("jax-privacy.json",),
        unrun="settings with n > 256, and dense for k > 1, take minutes",
    ),
)

CATALOGUE: Final[dict[str, Item]] = {item.name: item for item in _ITEMS}
