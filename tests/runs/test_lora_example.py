"""The program of the page on LoRA: a public model, adapted privately."""

from __future__ import annotations

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


def test_the_program_runs_privately_in_rounds_and_resumes(
    example: ModuleType, tmp_path: Path
) -> None:
    run = example.run
    digest = run.task.model.constants_digest()
    with fedmf.start(run, tmp_path / "run") as session:
        session.server.release(session.server.new_sum(), [])
    result = fedmf.simulate(run, tmp_path / "run")
    assert result.statement["epsilon"] == pytest.approx(8.0)
    assert result.parameters.numel() == run.task.model.dimension
    run.task.model.module.load_state_dict(fedmf.load_model(tmp_path / "run"))
    assert run.task.model.constants_digest() == digest
