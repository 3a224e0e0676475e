"""A run with an own factorization, optimizer and task: trained, killed, resumed, accounted for."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import fedmf
from fedmf.errors import ConfigError, LedgerError
from fedmf.ledger.ledger import Ledger
from fedmf.matrices.toeplitz import Toeplitz
from fedmf.runs.loop import RoundRecord

DOCS = Path(__file__).resolve().parents[2] / "docs"
EXAMPLE = DOCS / "examples/own_parts.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("own_parts", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def released(path: Path) -> int:
    """Rounds on record; 0 while there is no ledger."""
    try:
        with Ledger.open(path / "ledger.sqlite", read_only=True) as ledger:
            last = ledger.released - 1
    except LedgerError:
        return 0
    return last + 1


def test_resumed_bit_for_bit_and_only_with_the_same_parts(
    example: ModuleType, tmp_path: Path
) -> None:
    run = dataclasses.replace(example.run, privacy=fedmf.UserLevel(noise_seed=3))
    whole = fedmf.simulate(run, tmp_path / "whole")

    def stop(record: RoundRecord) -> bool:
        return record.rounds == 21

    assert fedmf.simulate(run, tmp_path / "stopped", on_round=stop).stopped
    assert released(tmp_path / "stopped") == 21
    with pytest.raises(
        ConfigError, match=r"task was given as an object .*Linear.*fedmf\.recorded_run\(path, task="
    ):
        fedmf.recorded_run(tmp_path / "stopped")
    with pytest.raises(
        ConfigError, match=r"optimizer was given as an object \(own_parts\.SignMomentum\)"
    ):
        fedmf.recorded_run(tmp_path / "stopped", task=example.ink())
    other = dataclasses.replace(run, server=fedmf.Sgd())
    with pytest.raises(ConfigError, match=r"its server\.kind is 'given', not 'sgd'"):
        fedmf.resume(other, tmp_path / "stopped")
    smaller = dataclasses.replace(run, mechanism=Toeplitz([1.0, 0.5], 60))
    with pytest.raises(
        ConfigError, match=r"its mechanism\.choice\.factorization\.coefficients differs"
    ):
        fedmf.resume(smaller, tmp_path / "stopped")
    renamed = dataclasses.replace(example.ink().dataset, user_ids=[f"x{u}" for u in range(120)])
    with pytest.raises(
        ConfigError, match=r"stopped holds another run: its task\.users is '120 with ids"
    ):
        fedmf.resume(
            dataclasses.replace(run, task=dataclasses.replace(example.ink(), dataset=renamed)),
            tmp_path / "stopped",
        )
    again = fedmf.simulate(run, tmp_path / "stopped")
    assert torch.equal(again.parameters, whole.parameters)
    assert again.metrics == whole.metrics
    assert again.statement.to_dict() == whole.statement.to_dict()


class Dishonest(Toeplitz):
    """Claims to be half as sensitive as its coefficients are."""

    def column_sum(self, indices: object) -> np.ndarray:
        return 0.5 * super().column_sum(indices)  # type: ignore[arg-type]

    def gram_diagonal(self, gap: int) -> np.ndarray:
        return 0.25 * super().gram_diagonal(gap)


def test_what_an_object_says_of_its_sensitivity_is_not_trusted(example: ModuleType) -> None:
    honest = fedmf.plan(dataclasses.replace(example.run, mechanism=Toeplitz([1.0, 0.5, 0.25], 60)))
    claimed = fedmf.plan(
        dataclasses.replace(example.run, mechanism=Dishonest([1.0, 0.5, 0.25], 60))
    )
    assert claimed.sensitivity == honest.sensitivity
    assert claimed.noise_std == honest.noise_std
