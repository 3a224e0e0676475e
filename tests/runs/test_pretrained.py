"""Runs that start from a file of tensors: θ_0 is the file's, which is public and does not
change.
"""

import dataclasses
import hashlib
from pathlib import Path

import pytest
import torch
from support.small_runs import small_run

import fedmf
from fedmf.errors import ConfigError
from fedmf.runs.released_model import write_tensors
from fedmf.runs.run import Run
from fedmf.runs.tasks import Classification


def state(run: Run, scale: float = 0.5) -> dict[str, torch.Tensor]:
    """Parameters other than those of the seed."""
    shapes = run.task_source.build().model.arrays
    return {name: torch.full(shape, scale) + 0.01 * i for i, (name, shape) in enumerate(shapes)}


def starting(run: Run, file: Path) -> Run:
    task = run.task
    assert isinstance(task, Classification)
    model = dataclasses.replace(task.model, initial=str(file))
    return dataclasses.replace(run, task=dataclasses.replace(task, model=model))


@pytest.fixture
def run() -> Run:
    return small_run(mechanism="bisr", rounds=3, users=12, cohort_size=4)


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_training_starts_from_the_file(suffix: str, run: Run, tmp_path: Path) -> None:
    file = tmp_path / f"model.{suffix}"
    tensors = state(run)
    write_tensors(file, tensors, {})
    with fedmf.start(starting(run, file), tmp_path / "run") as session:
        expected = torch.cat([tensor.reshape(-1) for tensor in tensors.values()])
        assert torch.equal(session.server.parameters, expected)
        declared = {
            entry["name"]: entry for entry in session.statement().to_dict()["public_inputs"]
        }
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert declared["initial parameters"]["value"] == f"model.{suffix}, SHA-256 {digest}"


def test_files_that_do_not_suit_are_refused_in_one_line_and_leave_nothing(
    run: Run, tmp_path: Path
) -> None:
    tensors = state(run)
    name, first = next(iter(tensors.items()))
    cases = {
        "missing": (
            {n: t for n, t in tensors.items() if n != name},
            f"must hold '{name}'.*got none",
        ),
        "more": ({**tensors, "extra": first}, "only its parameters; got 'extra'"),
        "shape": ({**tensors, name: first.reshape(-1)}, "of shape"),
        "whole": ({**tensors, name: first.to(torch.int64)}, "got torch.int64"),
        "nan": ({**tensors, name: first * float("nan")}, "must be finite"),
    }
    for label, (content, message) in cases.items():
        file = tmp_path / f"{label}.safetensors"
        write_tensors(file, content, {})
        with pytest.raises(ConfigError, match=message):
            fedmf.start(starting(run, file), tmp_path / label)
        assert not (tmp_path / label).exists(), label
    with pytest.raises(ConfigError, match="cannot read"):
        fedmf.start(starting(run, tmp_path / "nowhere.pt"), tmp_path / "nowhere")
    (tmp_path / "damaged.pt").write_bytes(b"no archive")
    with pytest.raises(ConfigError, match=r"damaged\.pt is not a file of tensors"):
        fedmf.start(starting(run, tmp_path / "damaged.pt"), tmp_path / "damaged")
