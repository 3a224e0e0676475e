"""The papers' training figures: every configuration parses and plans, and the index has a row for each."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import datasets
import numpy as np
import pytest

from fedmf.data import DATASETS
from fedmf.data.tokens import BpeVocabulary
from fedmf.models import MODELS
from fedmf.runs import dry_run, render_toml, run_of

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "simulations" / "papers"
sys.path.insert(0, str(FOLDER))
catalogue = importlib.import_module("catalogue")
comparison, cells, figures, settings = map(
    importlib.import_module, ("comparison", "cells", "figures", "settings")
)
sys.path.remove(str(FOLDER))

FIGURES = catalogue.FIGURES
#: What the issue that asked for them lists.
ASKED = {
    "lambda-cgd": {"fig2", "fig3", "fig4", "fig7", "fig8"},
    "gamma-bifr": {"fig3", "fig4", "fig5"},
    "bandmf": {"fig3", "fig9"},
    "nu-dp-ftrl": {"fig4"},
    "jme": {"fig6"},
}


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
    if kept["model.kind"] not in MODELS or kept["data.kind"] not in DATASETS:
        kept = {key: value for key, value in kept.items() if key.partition(".")[0] not in ("model", "task")}
    if kept["data.kind"] not in DATASETS:
        split = "each-example" if keys["data.partition"] == "each-example" else "iid"
        kept = {key: value for key, value in kept.items() if not key.startswith("data.")}
        kept |= {"data.users": keys["data.users"], "data.partition": split}
    return kept


def test_the_settings_for_imdb_read_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Splits train, test and unsupervised of texts with a label 0, 1 or −1, as stanfordnlp/imdb has them."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    columns = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])}
    )
    (tmp_path / "imdb").mkdir()
    for split, labels in {"train": [0, 1] * 10, "test": [1, 0], "unsupervised": [-1, -1]}.items():
        texts = [
            f"review {i}: <br /> {'good' if label else 'bad'}, wasn't it?" for i, label in enumerate(labels)
        ]
        rows = datasets.Dataset.from_dict({"text": texts, "label": labels}, features=columns)
        rows.to_parquet(tmp_path / "imdb" / f"{split}-00000-of-00001.parquet")
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(BpeVocabulary.made_from((b"a good review , a bad review",), 280).description)
    files = {"data.path": str(tmp_path / "imdb"), "data.vocabulary-path": str(tokenizer), "data.users": 16}
    run = run_of({**settings.IMDB, **files, "model.kind": "bert", "cohorts.size": 4, "cohorts.rounds": 4})
    dataset = run.task_source.build().dataset
    assert (dataset.users, dataset.classes, dataset.test_features.shape) == (16, 2, (4, 512))
    features, labels = dataset.examples(np.arange(16))
    assert features.shape == (16, 512)
    assert sorted([*labels.tolist(), *dataset.test_labels.tolist()]) == [0] * 10 + [1] * 10


def test_every_figure_that_was_asked_for_is_there() -> None:
    assert set(FIGURES) == {f"{paper}-{item}" for paper, items in ASKED.items() for item in items}


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("form", ["full", "reduced"])
def test_configurations_parse_and_render(name: str, form: str) -> None:
    contracts = set()
    for keys in configurations(name, form):
        run = run_of(keys)
        contracts.add(run.participation)
        assert run.privacy.unit.name == ("user" if keys["privacy.kind"] == "user-level" else "example")
    assert f'kind = "{run.privacy.kind}"' in render_toml(run)
    assert all(contract.rounds >= contract.min_separation for contract in contracts)


@pytest.mark.parametrize("name", [name for name in FIGURES if not FIGURES[name].runs_of])
def test_reduced_runs_can_be_carried_out(name: str) -> None:
    keys = configurations(name, "reduced")
    shown = dry_run(run_of({**keys[-1], "privacy.amplified": False}))
    assert shown["epsilon"].startswith(f"{keys[-1]['privacy.epsilon']:g}")


def test_a_point_keeps_the_keys_of_its_paper() -> None:
    """Table 3 of λCGD: ε = 4, B = 128, ζ = 8, λ = 0.95, η = 0.5; 50,000/128 batches of 10 epochs."""
    form = FIGURES["lambda-cgd-fig4"].full
    keys = form.configuration(
        figures.Cell("lambda-cgd-fig4", "full", "CIFAR-10, B = 128", "DP-λCGD", "4", 9.0, 0)
    )
    assert (keys["mechanism.kind"], keys["mechanism.lambda"], keys["optimizer.learning-rate"]) == (
        "cgd",
        0.95,
        0.5,
    )
    assert (keys["cohorts.size"], keys["cohorts.rounds"], keys["privacy.clip-norm"]) == (128, 3900, 8.0)
    assert keys["cohorts.kind"] == "balls-in-bins"


def test_rates_are_chosen_on_seeds_that_are_not_reported(tmp_path: Path) -> None:
    figure = FIGURES["jme-fig6"]
    made = cells.Cells(tmp_path / "cells.jsonl")
    spot = next(figure.reduced.spots())
    seeds = {cell.seed for cell in comparison.tuning(figure, "reduced")}
    assert not seeds & set(range(figure.reduced.seeds))
    for rate, accuracy in zip(figure.reduced.rates, (10.0, 30.0, 20.0), strict=True):
        made.found[figures.Cell(figure.name, "reduced", *spot, rate, 1000)] = {"accuracy": accuracy}
    assert comparison.rates(figure, "reduced", made) == {spot: figure.reduced.rates[1]}
    # A loss is better when it is smaller.
    other = FIGURES["bandmf-fig3"]
    spot = next(other.reduced.spots())
    for rate, loss in zip(other.reduced.rates, (2.0, 1.0), strict=True):
        made.found[figures.Cell(other.name, "reduced", *spot, rate, 1000)] = {"loss": loss}
    assert comparison.rates(other, "reduced", made)[spot] == other.reduced.rates[1]


def test_finished_runs_are_not_made_again(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    cell = figures.Cell("jme-fig6", "reduced", "p", "l", "x", 0.1, 0)
    line = '{"cell": {"figure": "jme-fig6", "form": "reduced", "panel": "p", "line": "l", "place": "x", '
    path.write_text(line + '"rate": 0.1, "seed": 0}, "value": {"accuracy": 1.0}}\n')
    made = cells.Cells(path)
    assert made.found == {cell: {"accuracy": 1.0}}
    made.make([cell, cell], processes=1)
    assert len(path.read_text().splitlines()) == 1


def test_the_index_has_a_row_for_each_figure_and_no_other() -> None:
    """Which figure, how it is run at full size, and what came of it here; results that it names exist."""
    rows = [
        line for line in (ROOT / "docs/project/papers.md").read_text().splitlines() if line.startswith("| ")
    ]
    named = {}
    for row in rows:
        if found := re.search(r"`simulations/papers/run\.py (\S+) --full`", row):
            named[found[1]] = row
    assert set(named) == set(FIGURES)
    for name, row in named.items():
        assert FIGURES[name].paper in row
        assert FIGURES[name].item in row
        result = ROOT / "docs" / "results" / "papers" / f"{name}.md"
        assert (f"](../results/papers/{name}.md)" in row) == result.exists(), name
        assert result.exists() or "not run" in row
