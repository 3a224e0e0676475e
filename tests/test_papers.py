"""The papers' training figures: every configuration parses and plans."""

from __future__ import annotations

import dataclasses
import importlib
import math
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fedmf.data import DATASETS
from fedmf.runs.tables.configuration import render_toml, run_of

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "simulations" / "papers"
sys.path.insert(0, str(FOLDER))
catalogue = importlib.import_module("catalogue")
comparison, cells, figures = map(importlib.import_module, ("comparison", "cells", "figures"))
calibration, points, report = map(importlib.import_module, ("calibration", "points", "report"))
settings, paper_tasks = map(importlib.import_module, ("settings", "paper_tasks"))
sys.path.remove(str(FOLDER))

FIGURES = catalogue.FIGURES


def configurations(name: str, form_name: str) -> list[dict[str, object]]:
    """The final configuration of every point of a figure."""
    form = FIGURES[name].form(form_name)
    made = [
        form.configuration(figures.Cell(name, form_name, *spot, form.rates[0], 0))
        for spot in form.spots()
    ]
    return [known(keys) for keys in made]


def known(keys: dict[str, object]) -> dict[str, object]:
    """Data and tasks that need files become digits with as many users."""
    kept = dict(keys)
    if kept.get("data.kind") not in DATASETS:
        kept = {
            key: value
            for key, value in kept.items()
            if key.partition(".")[0] not in ("model", "task")
        }
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
        assert run.task_source.unit == (
            "example" if keys.get("data.partition") == "each-example" else "user"
        )
    assert f'kind = "{run.privacy.kind}"' in render_toml(run)
    assert all(contract.rounds >= contract.min_separation for contract in contracts)


def test_models_of_the_papers_have_the_published_sizes() -> None:
    images = torch.zeros(2, 3, 32, 32)
    tokens = torch.randint(30_522, (2, 12))
    # vgg128 of google-research/DP-FTRL has 550,570. BERT-tiny layer by layer has 4,385,920; the
    # output is ours, its kinds of segments are not.
    for module, inputs, outputs, size in (
        (paper_tasks.vgg(dense_units=128), images, 10, 550_570),
        (paper_tasks.vgg(dense_units=0), images, 10, 288_298),
        (paper_tasks.Bert(30_522, 2), tokens, 2, 4_385_920 + 2 * 128 + 2 - 2 * 128),
    ):
        assert sum(parameter.numel() for parameter in module.parameters()) == size
        assert module(inputs).shape == (2, outputs)


def a_point(place: str, accuracy: list[float], rate: float = 1.0, best: float = 80.0) -> Any:
    tried = {"0.5": [-70.0, 1.0], "1": [-best, 1.0], "2": [-60.0, 1.0]}
    return points.Point(
        "p", "l", place, {}, 1.0, (1.0, 1.0), rate, tried, accuracy, [1.0] * len(accuracy)
    )


@pytest.mark.parametrize(
    ("gains", "outcome"),
    [((2.0, 3.0, 4.0), "agrees"), ((-2.0, -3.0, -4.0), "against"), ((2.0, -3.0, 4.0), "tie")],
)
def test_verdicts_are_what_the_paired_intervals_say(gains: tuple[float, ...], outcome: str) -> None:
    """The best place by its tuning runs, not by the reported ones, against the baseline."""
    base = [70.0, 75.0, 80.0]
    figure = FIGURES["lambda-cgd-fig2"]
    figure = dataclasses.replace(figure, claims=figure.claims[:1])
    made = points.Points(
        figure,
        [
            a_point("0", base),
            a_point(
                "0.5", [value + gain for value, gain in zip(base, gains, strict=True)], best=90.0
            ),
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
