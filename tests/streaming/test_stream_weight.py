"""`--weight best`: the λ with the least error of what is released last, by theory, whatever the rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.command_line import one_line
from support.streams import BUDGET, run_once, sample, write_rows

from fedmf.cli.app import run as run_command
from fedmf.streaming import Layout, Settings, StreamPlan

N = 60


def planned(d: int, weight: Any, **more: Any) -> StreamPlan:
    settings = Settings(**{**BUDGET, "norm_bound": 1.7}, rounds=N, weight=weight, **more)
    return StreamPlan.of(settings, Layout((), True, d, None), N)


def errors(plan: StreamPlan) -> tuple[float, float, float]:
    """E‖Σ̂ − Σ‖² at ‖μ‖² = ζ²/2, and E‖Ŷ − Y‖²/ζ² + E‖Ŝ − S‖²/ζ⁴, after the last row; E‖μ̂ − μ‖²."""
    d, m, at = plan.layout.dimension, plan.second_moment.size, np.array([N])
    zeta = plan.mechanism.users.norm_bound
    levels = [float(plan.variances(moment, at)[0]) for moment in (0, 1)]
    v, v2 = (level / float(plan.row_sums(0, at)[0]) ** 2 for level in levels)
    full = d * (d + 1) * (v2 / 2 + v**2) + (d + 1) * v * zeta**2
    diagonal = d * v2 + 2 * v * zeta**2 + 2 * d * v**2
    moments = d * levels[0] / zeta**2 + m * levels[1] / zeta**4
    return full if m > d else diagonal, moments, d * v


@pytest.mark.parametrize(
    ("adjacency", "workload", "d", "second"),
    [
        ("zero-out", "average", 2, "full"),
        ("replace-one", "average", 10, "full"),
        ("replace-one", "exponential:0.9", 10, "diagonal"),
        ("zero-out", "window:20", 1, "full"),
    ],
)
def test_no_other_weight_has_a_smaller_error_of_the_covariance(
    adjacency: str, workload: str, d: int, second: str
) -> None:
    asked: dict[str, Any] = {"adjacency": adjacency, "workloads": (workload,), "second": second}
    best = planned(d, "best", **asked)
    least, chosen = errors(best)[0], best.mechanism.weight
    assert chosen is not None
    for factor in (0.2, 0.7, 0.97, 1.03, 1.4, 5.0):
        assert errors(planned(d, chosen * factor, **asked))[0] >= least * (1 - 1e-9)
    default = errors(planned(d, None, **asked))[0]
    assert least <= default * (1 + 1e-9)
    if adjacency == "replace-one" and d == 10:
        assert least < 0.6 * default


def test_where_there_is_no_covariance_both_moments_count() -> None:
    for asked in ({"workloads": ("average", "exponential:0.9")}, {"second": "2,3"}):
        best = planned(5, "best", **asked)
        least, chosen = errors(best)[1], best.mechanism.weight
        assert chosen is not None
        for factor in (0.5, 0.95, 1.05, 2.0):
            assert errors(planned(5, chosen * factor, **asked))[1] >= least * (1 - 1e-9)


def test_the_record_keeps_the_weight_and_its_noise_must_follow(tmp_path: Path) -> None:
    description = planned(3, "best", adjacency="replace-one").to_dict()
    StreamPlan.from_dict(description).check()
    description["mechanism"]["weight"] *= 1.01
    with pytest.raises(ValueError, match="The record was altered"):
        StreamPlan.from_dict(description).check()
    x = sample(12, 3)
    settings = Settings(**BUDGET, rounds=12, weight="best")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    run_once(whole, settings, write_rows(tmp_path / "rows.csv", x))
    run_once(parts, settings, write_rows(tmp_path / "part.csv", x[:5]))
    run_once(parts, settings, tmp_path / "rows.csv")
    assert (whole / "out.jsonl").read_bytes() == (parts / "out.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ("--weight better", "--weight must be a number or best; got 'better'"),
        ("--weight best --method ime", "weight must be a number, or best for jme; got 'best' for ime"),
    ],
)
def test_other_words_and_methods_are_refused(
    tmp_path: Path, more: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_rows(tmp_path / "rows.csv", sample(12, 3))
    command = f"stream --input {source} --norm-bound 1 --epsilon 8 --delta 1e-5 --each-row-a-user {more}"
    assert run_command(command.split()) == 2
    assert text in one_line(capsys)
