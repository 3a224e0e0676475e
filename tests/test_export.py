"""The released model as tensors: what the run holds, without its data and its code."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest
import torch

import fedmf
from fedmf.cli.app import run as cli

RUN = fedmf.Run(
    task=fedmf.classification(fedmf.Digits(users=20), fedmf.Mlp(hidden_units=(5,))),
    cohorts=fedmf.CyclicCohorts(rounds=4, users_per_round=5),
    privacy=fedmf.UserLevel(epsilon=8.0, delta=1e-5, clip_norm=0.3),
    mechanism="identity",
)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "digits"
    fedmf.simulate(RUN, path)
    return path


def read_safetensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Read by the format's own description, with its rules checked."""
    content = path.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    assert begin % 8 == 0
    header = json.loads(content[8:begin])
    about = header.pop("__metadata__")
    tensors = {}
    end = 0
    for name, entry in header.items():
        assert entry["dtype"] == "F32"
        assert entry["data_offsets"][0] == end, "no holes"
        first, end = entry["data_offsets"]
        array = np.frombuffer(content[begin + first : begin + end], "<f4").reshape(entry["shape"])
        tensors[name] = torch.from_numpy(array.copy())
    assert begin + end == len(content)
    return tensors, about


def test_the_model_is_the_last_released_one_by_the_names_of_the_module(run_dir: Path) -> None:
    model = fedmf.load_model(run_dir)
    module = RUN.task_source.build().model.module
    assert [(name, tensor.shape) for name, tensor in model.items()] == [
        (name, parameter.shape) for name, parameter in module.named_parameters()
    ]
    module.load_state_dict(model)
    with fedmf.resume(RUN, run_dir) as session:
        assert session.server.t == 4
        flat = torch.cat([tensor.reshape(-1) for tensor in model.values()])
        assert torch.equal(flat, session.server.parameters)
        assert torch.equal(flat, torch.cat([p.reshape(-1) for p in module.parameters()]))


def test_files_hold_the_same_tensors_and_only_their_owner_reads_them(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = fedmf.load_model(run_dir)
    for suffix in ("safetensors", "pt"):
        path = tmp_path / f"model.{suffix}"
        assert cli(["export", str(run_dir), "--output", str(path)]) == 0
        entries = sum(tensor.numel() for tensor in model.values())
        assert (
            capsys.readouterr().out
            == f"{path}: {entries} parameters in 4 tensors after 4 rounds.\n"
        )
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        if suffix == "pt":
            tensors = torch.load(path, weights_only=True)
        else:
            tensors, about = read_safetensors(path)
            assert about["rounds"] == "4"
            assert about["software"].startswith("fedmf")
        assert tensors.keys() == model.keys()
        assert all(torch.equal(tensors[name], tensor) for name, tensor in model.items())


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            ["{run}", "--output", "{tmp}/model.onnx"],
            "must have the suffix .safetensors or .pt; got 'model.onnx'.",
        ),
        (
            ["{run}", "--output", "{tmp}/there.pt"],
            "there.pt exists already and is not overwritten.",
        ),
        (["{run}", "--output", "{tmp}/no/model.pt"], "cannot write"),
        (
            ["{tmp}", "--output", "{tmp}/model.pt"],
            "is not a run directory: it has no ledger.sqlite.",
        ),
        (["{run}"], "Missing option '--output'"),
    ],
)
def test_what_cannot_be_exported_is_refused_in_one_line(
    arguments: list[str],
    error: str,
    run_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "there.pt").write_bytes(b"mine")
    before = sorted(os.listdir(tmp_path))
    assert cli(["export", *(text.format(run=run_dir, tmp=tmp_path) for text in arguments)]) == 2
    printed = capsys.readouterr().err
    assert error in printed
    assert printed.count("\n") == 1
    assert sorted(os.listdir(tmp_path)) == before
    assert (tmp_path / "there.pt").read_bytes() == b"mine"
