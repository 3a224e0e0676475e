"""The program of the page on LoRA: a public model, adapted privately."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

import fedmf

DOCS = Path(__file__).resolve().parents[2] / "docs"
EXAMPLE = DOCS / "examples/lora_text.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lora_text", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with torch.random.fork_rng(devices=[]):
        spec.loader.exec_module(module)
    return module


def test_the_program_adapts_the_public_model_and_leaves_it_alone(example: ModuleType, tmp_path: Path) -> None:
    run = dataclasses.replace(example.run, privacy=fedmf.NoPrivacy(clip_norm=0.3))
    digest = run.task.model.constants_digest()
    result = fedmf.simulate(run, tmp_path / "run")
    assert result.metrics[12]["perplexity"] < result.metrics[0]["perplexity"] < example.TOKENS / 2
    adapters = fedmf.load_model(tmp_path / "run")
    assert sum(tensor.numel() for tensor in adapters.values()) == run.task.model.dimension
    assert run.task.model.dimension < run.task.model.constants["inner.transformer.wte.weight"].numel() * 2
    assert all("lora_" in name for name in adapters)
    module = run.task.model.module
    missing, unexpected = module.load_state_dict(adapters, strict=False)
    assert unexpected == []
    assert {name for name in missing if "lora_" in name} == set()
    assert run.task.model.constants_digest() == digest
    assert torch.equal(run.task.model.initial(), result.parameters)


def test_the_program_runs_privately_in_rounds_and_resumes(example: ModuleType, tmp_path: Path) -> None:
    run = example.run
    with fedmf.start(run, tmp_path / "run") as session:
        session.server.release(session.server.new_sum(), [])
    result = fedmf.simulate(run, tmp_path / "run")
    assert result.statement["epsilon"] == pytest.approx(8.0)
    assert result.parameters.numel() == run.task.model.dimension
