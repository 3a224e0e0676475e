"""`simulations/language/lora.py` in its smallest form: the table, what is adapted, and going on."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fedmf
from fedmf.runs import FunctionTask
from fedmf.training.gradients import layers_of

FOLDER = Path(__file__).parents[2] / "simulations" / "language"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))  # worker processes search there too
    module = importlib.import_module("lora")
    monkeypatch.setattr(module, "EPSILONS", (8.0,))
    monkeypatch.setattr(module, "RATES", (0.5,))
    monkeypatch.setattr(module, "ROWS", {"full": (0, 0.3), "LoRA, rank 2": (2, 3.0)})
    return module


def test_smallest_form_prints_a_row_for_each_way_and_goes_on(
    script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--reduced", "--seeds", "1", "--out", str(tmp_path)]
    row = r"\| 8 \| (.*?) \| ([\d,]+) \| 0\.5 \| ([\d.]+) \(.*?\) \| .*? \| \d+ \|"
    script.main(arguments)
    rows = re.findall(row, capsys.readouterr().out)
    assert [row[0] for row in rows] == ["full", "LoRA, rank 2"]
    assert int(rows[1][1].replace(",", "")) < int(rows[0][1].replace(",", ""))
    finished = {path: path.stat().st_mtime_ns for path in (tmp_path / "sweep" / "finished").iterdir()}
    assert len(finished) == 2 * (1 + 1)
    script.main(arguments)
    assert re.findall(row, capsys.readouterr().out) == rows
    assert finished == {path: path.stat().st_mtime_ns for path in (tmp_path / "sweep" / "finished").iterdir()}


def test_adaptation_starts_from_the_public_model_of_the_seed_in_the_fast_engine(
    script: Any, tmp_path: Path
) -> None:
    for seed in (0, 1):
        script.train_public(script.REDUCED, seed, tmp_path / str(seed))
    public = fedmf.load_model(tmp_path / "1")
    outputs, trained = [], []
    for variant in script.comparison(script.REDUCED, 1, tmp_path).variants.values():
        task = script.adapted(FunctionTask("lora:adapted", 12, 1, variant["task.options"]))
        state = task.model.state(task.model.initial())
        for name, tensor in public.items():
            adapted = name if name in state else re.sub(r"\.(weight|bias)$", r".base_layer.\1", name)
            assert torch.equal(state[adapted], tensor)
        assert layers_of(task.model, torch.device("cpu")) is not None
        outputs.append(task.model.forward(task.model.initial(), task.dataset.test_features))
        trained.append(set(task.model.trained))
    assert torch.equal(*outputs)
    assert trained[0] == set(public)
    assert all("lora_" in name for name in trained[1])


def test_seconds_are_of_the_rounds_between_the_first_and_the_last(
    script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script.train_public(script.REDUCED, 0, tmp_path / "0")
    sweep = script.comparison(script.REDUCED, 1, tmp_path)
    ends = iter((10.0, 11.0, 13.0, 99.0))
    monkeypatch.setattr(script, "time", SimpleNamespace(perf_counter=lambda: next(ends)))
    keys = sweep.keys_of(sweep.cells[0], {}, 0) | {"cohorts.rounds": 4}
    assert script.seconds_of_rounds(keys) == [1.0, 2.0]
