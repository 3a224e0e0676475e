"""The papers' training figures: every configuration parses and plans."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import math
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import fedmf
from fedmf.data import DATASETS
from fedmf.models import MODELS
from fedmf.runs.tables.configuration import render_toml, run_of

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "simulations" / "papers"
sys.path.insert(0, str(FOLDER))
catalogue = importlib.import_module("catalogue")
comparison, cells, figures = map(importlib.import_module, ("comparison", "cells", "figures"))
calibration, points, report = map(importlib.import_module, ("calibration", "points", "report"))
settings = importlib.import_module("settings")
sys.path.remove(str(FOLDER))

FIGURES = catalogue.FIGURES
RESULTS = ROOT / "docs" / "results" / "papers"


def configurations(name: str, form_name: str) -> list[dict[str, object]]:
    """The final configuration of every point of a figure."""
    form = FIGURES[name].form(form_name)
    made = [
        form.configuration(figures.Cell(name, form_name, *spot, form.rates[0], 0)) for spot in form.spots()
    ]
    return [known(keys) for keys in made]


def known(keys: dict[str, object]) -> dict[str, object]:
    """Data, task and model that do not exist yet become others with as many users."""
    kept = dict(keys)
    if kept.get("model.kind") not in MODELS or kept.get("data.kind") not in DATASETS:
        kept = {key: value for key, value in kept.items() if key.partition(".")[0] not in ("model", "task")}
    if kept.get("data.kind") not in DATASETS:
        split = "each-example" if keys.get("data.partition") == "each-example" else "iid"
        kept = {key: value for key, value in kept.items() if not key.startswith("data.")}
        kept |= {
            "data.users": keys.get("data.users", keys.get("task.users", 100_000)),
            "data.partition": split,
        }
    return kept


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("form", ["full"])
def test_configurations_parse_and_render(name: str, form: str) -> None:
    contracts = set()
    for keys in configurations(name, form):
        run = run_of(keys)
        contracts.add(run.participation)
        assert run.task_source.unit == ("example" if keys.get("data.partition") == "each-example" else "user")
    assert f'kind = "{run.privacy.kind}"' in render_toml(run)
    assert all(contract.rounds >= contract.min_separation for contract in contracts)


def test_a_point_keeps_the_keys_of_its_paper() -> None:
    """Table 3 of λCGD: ε = 4, B = 128, ζ = 8, λ = 0.95, η = 0.5; 50,000/128 batches of 10 epochs."""
    form = FIGURES["lambda-cgd-fig4"].full
    keys = form.configuration(
        figures.Cell("lambda-cgd-fig4", "full", "CIFAR-10, B = 128", "DP-λCGD", "4", 9.0, 0)
    )
    assert (keys["mechanism.kind"], keys["mechanism.params"], keys["server.learning-rate"]) == (
        "cgd",
        "lambda=0.95",
        0.5,
    )
    assert (keys["cohorts.users-per-round"], keys["cohorts.rounds"], keys["privacy.clip-norm"]) == (
        128,
        3900,
        8.0,
    )
    assert keys["cohorts.kind"] == "balls-in-bins"


def test_a_grid_grows_until_its_best_rate_is_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accuracy is largest at a rate that is far from the first grid; tuning and reported seeds are apart."""
    figure = FIGURES["jme-fig6"]
    made = cells.Cells(tmp_path / "cells.jsonl", calibration.Calibrations(tmp_path / "calibrations.jsonl"))
    best = 16 * max(figure.reduced.rates)

    def make(wanted: Iterable[Any]) -> None:
        for cell in wanted:
            score = 90.0 - 10.0 * abs(math.log2(cell.rate / best))
            made.found[cell] = {"accuracy": score, "loss": 1.0, "seconds": 0.1}

    monkeypatch.setattr(made, "make", make)
    comparison.compare([figure], "reduced", made)
    for spot in figure.reduced.spots():
        tried = comparison.tried(figure, "reduced", made, spot)
        assert comparison.best_rate(figure, "reduced", made, spot) == best
        assert comparison.is_inside(best, list(tried))
        assert all(b <= 2 * a for a, b in itertools.pairwise(sorted(tried)))
    assert len(figure.reduced.tuning_seeds) >= 4
    assert figure.reduced.seeds >= 20
    reported = {cell.seed for cell in made.found} - {*figure.reduced.tuning_seeds}
    assert reported == set(range(figure.reduced.seeds))


def test_a_calibrated_run_has_the_noise_of_the_amplified_one(tmp_path: Path) -> None:
    """Without amplification, at the ε that its noise has so; kept, not computed again."""
    form = FIGURES["gamma-bifr-fig4"].reduced
    kept = calibration.Calibrations(RESULTS / "calibrations.jsonl")
    keys = form.configuration(figures.Cell("gamma-bifr-fig4", "reduced", "digits", "DP-SGD", "2", 1.0, 0))
    made = kept.keys(keys)
    assert not made["privacy.amplified"]
    plan = fedmf.plan(run_of(made))
    noise = plan.noise_multiplier * plan.sensitivity.value
    own = {name: value for name, value in keys.items() if name in kept.keys_of_a_point(keys)}
    assert noise == pytest.approx(kept.entry(own)["noise_std"], rel=1e-6)
    assert made["privacy.epsilon"] > keys["privacy.epsilon"]  # it is far less noise


def a_point(place: str, accuracy: list[float], rate: float = 1.0, best: float = 80.0) -> Any:
    tried = {"0.5": [-70.0, 1.0], "1": [-best, 1.0], "2": [-60.0, 1.0]}
    return points.Point("p", "l", place, {}, 1.0, (1.0, 1.0), rate, tried, accuracy, [1.0] * len(accuracy))


@pytest.mark.parametrize(
    ("gains", "outcome"),
    [((2.0, 3.0, 4.0), "agrees"), ((-2.0, -3.0, -4.0), "against"), ((2.0, -3.0, 4.0), "tie")],
)
def test_verdicts_are_what_the_paired_intervals_say(gains: tuple[float, ...], outcome: str) -> None:
    """The best place by its tuning runs, not by the reported ones, against the baseline."""
    base = [70.0, 75.0, 80.0]
    figure = dataclasses.replace(FIGURES["lambda-cgd-fig2"])
    made = points.Points(
        figure,
        [
            a_point("0", base),
            a_point("0.5", [value + gain for value, gain in zip(base, gains, strict=True)], best=90.0),
            a_point("0.9", [99.0, 99.0, 99.0], best=85.0),
        ],
        runs=1,
        seconds=1.0,
    )
    (found,) = made.findings()
    assert found.outcome == outcome
    assert found.estimate == pytest.approx(statistics.fmean(gains))
    half = 4.302652729911275 * statistics.stdev(gains) / math.sqrt(3)
    assert (found.low, found.high) == pytest.approx((found.estimate - half, found.estimate + half))
    assert "best λ = 0.5 over 0" in found.says
    assert points.verdict(made).startswith(
        {"agrees": "agrees in 1 of 1", "tie": "tie in 1"}.get(outcome, "against")
    )
