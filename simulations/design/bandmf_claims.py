"""What McKenna (2024/25) says in numbers of its Figures 1, 2, 6, 7 and 8, next to ours.

    python simulations/design/bandmf_claims.py

The text has no numbers of the curves themselves. Ours are read from the curves that `bandmf.py`
wrote.
"""

from __future__ import annotations

import json

from pictures import RESULTS

from fedmf.matrices.sensitivity import sensitivity_of
from fedmf.mechanisms.objective import errors
from fedmf.mechanisms.registry import build
from fedmf.mechanisms.workload import prefix
from fedmf.participation import Participation

Panel = dict[str, dict[float, float]]
AMPLIFIED = "BandMF, amplified"
ALONE = "BandMF, p = b"


def panel(figure: str, at: int = 0) -> Panel:
    """The curves of a panel, as {label: {x: y}}."""
    panels = json.loads((RESULTS / f"bandmf-{figure}.json").read_text(encoding="utf-8"))
    curves = list(panels.values())[at]["curves"]
    return {label: dict(map(tuple, points)) for label, points in curves.items()}


def next_best(curves: Panel, x: float) -> float:
    """How much more the best competitor has than the amplified mechanism; BandMF alone is none."""
    others = [points[x] for label, points in curves.items() if label not in (AMPLIFIED, ALONE)]
    return min(others) / curves[AMPLIFIED][x]


def suboptimality(n: int, p: int) -> float:
    """RMSE of the column-normalized optimal Toeplitz matrix over that of the optimal banded one."""
    contract = Participation(n, 1, n)

    def rmse(name: str) -> float:
        C = build(name, contract, params={"bands": p}).factorization
        return errors(C, prefix(n), sensitivity_of(C, contract)).rmse

    return rmse("normalized-banded-toeplitz") / rmse("normalized-banded")


def claims() -> list[tuple[str, str, float, str]]:
    """(what, paper, ours, what the text says); limits have no value to agree with."""
    banded = panel("fig1a")
    by_epsilon = panel("fig1b")
    bands = panel("fig2")
    at_8 = panel("fig8")
    sampling = panel("fig6")
    correlation = panel("fig6", 1)
    rounds = panel("fig7")
    eight = at_8["8 epochs"]
    longest = max(rounds[AMPLIFIED])
    best_of_8 = min(eight, key=eight.__getitem__)
    long = suboptimality(16384, 16)
    two = min(bands["2 epochs"].values())
    best_8 = min(bands["8 epochs"].values())
    best_16 = min(at_8["16 epochs"].values())
    blt = by_epsilon["BLT"][4.0] / by_epsilon[ALONE][4.0]
    return [
        (
            "1 (a): banded square root over the best",
            "1.25",
            max(banded["BSR"].values()),
            "up to 25 %",
        ),
        ("1 (a): normalized Toeplitz, n = 64", "1.02", suboptimality(64, 16), "0 to 2 %"),
        ("1 (a): the same at n = 16384", "", long, _limit(long, 1.0025)),
        ("1 (b): best competitor at ε = 1", "2", next_best(by_epsilon, 1.0), "about twice"),
        ("1 (b): best competitor at ε = 8", "1.19", next_best(by_epsilon, 8.0), "19 % better"),
        ("1 (b): BLT over BandMF alone", "1.05", blt, "about 5 %"),
        ("2 (a): two epochs over full batches", "", two, _limit(two, 2)),
        ("2 (a): eight epochs over full batches", "", best_8, _limit(best_8, 1.18)),
        ("2 (a): DP-SGD of 32 epochs over full batches", "", bands["32 epochs"][1.0], "nearly 1"),
        (
            "6 (a): gain of sampling, k = 16, ε = 8",
            "1.15",
            sampling["16 epochs"][8.0],
            "about 15 % up to 8",
        ),
        (
            "6 (b): gain of correlation, k = 1, ε = 4",
            "9",
            correlation["1 epoch"][4.0],
            "up to 9 times",
        ),
        (
            f"7 (a): next best at n = {longest:g}",
            "1.33",
            next_best(rounds, longest),
            "25 % less at n = 10⁵",
        ),
        ("8: DP-SGD of 256 epochs over full batches", "", at_8["256 epochs"][1.0], "near 1"),
        ("8: best number of bands, eight epochs", "128", best_of_8, "128"),
        (
            "8: RMSE there over that at 128 bands",
            "1",
            eight[best_of_8] / eight[128.0],
            "128 is best",
        ),
        ("8: 16 epochs over full batches", "", best_16, _limit(best_16, 2)),
    ]


def _limit(value: float, most: float) -> str:
    return f"at most {most:g}: {'holds' if value <= most else 'DOES NOT HOLD'}"


def main() -> None:
    lines = [
        (
            "McKenna (2024/25): the numbers in its text on Figures 1, 2, 6, 7 and 8, next to ours."
            " Most are"
        ),
        "limits or rounded. Written by `simulations/design/bandmf_claims.py`.",
        "",
        "| figure: what | paper | fedmf | in the text |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {what} | {paper} | {ours:.4g} | {remark} |" for what, paper, ours, remark in claims()
    ]
    print("\n".join(lines))
    (RESULTS / "bandmf-claims.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
