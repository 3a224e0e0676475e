"""What a wrapped app trained, as a state dict that loads strictly: frozen and integer arrays too."""

from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

from fedmf import load_model
from fedmf.cli.app import run as cli
from fedmf.errors import ConfigError
from fedmf.flower import CorrelatedNoise, InProcessGrid
from fedmf.records import read_tensors
from fedmf.runs.directory import WHOLE_MODEL


class Net(nn.Module):
    """Batch statistics (frozen), a counter of batches, a frozen layer, weights of 16 and 64 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.half = nn.Linear(4, 2).half()
        self.head = nn.Linear(4, 2).double()


client = ClientApp()


@client.train()
def add(message: Message, context: Context) -> Message:
    received = message.content["arrays"]
    assert isinstance(received, ArrayRecord)
    state = {
        name: tensor + 0.01 if tensor.is_floating_point() else tensor
        for name, tensor in received.to_torch_state_dict().items()
    }
    content = {"arrays": ArrayRecord(state), "metrics": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(content), reply_to=message)


@pytest.fixture
def begun(tmp_path: Path) -> tuple[Net, ArrayRecord]:
    torch.manual_seed(0)
    net = Net()
    strategy = CorrelatedNoise(
        FedAvg(), epsilon=8.0, delta=1e-5, clipping_norm=1.0, num_users=4, users_per_round=2, num_rounds=2,
        mechanism="identity", noise_seed=1, run_dir=tmp_path / "run", frozen=("features.*", "norm.running_*"),
    )  # fmt: skip
    arrays = ArrayRecord(net.state_dict())
    result = strategy.start(grid=InProcessGrid(client, nodes=4), initial_arrays=arrays)
    strategy.close()
    assert result.arrays is not None
    return net, result.arrays


def test_all_arrays_load_strictly_with_their_types(begun: tuple[Net, ArrayRecord], tmp_path: Path) -> None:
    net, released = begun
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    model = load_model(tmp_path / "run")
    assert list(model) == list(before)
    assert {n: (t.dtype, t.shape) for n, t in model.items()} == {
        n: (t.dtype, t.shape) for n, t in before.items()
    }
    for name, tensor in released.to_torch_state_dict().items():
        assert torch.equal(model[name], tensor), name
    net.load_state_dict(model, strict=True)
    assert torch.equal(model["features.weight"], before["features.weight"])
    assert not torch.equal(model["head.weight"], before["head.weight"])


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_exported_files_hold_the_same(suffix: str, begun: tuple[Net, ArrayRecord], tmp_path: Path) -> None:
    assert cli(["export", str(tmp_path / "run"), "--output", str(tmp_path / f"model.{suffix}")]) == 0
    model, read = load_model(tmp_path / "run"), read_tensors(tmp_path / f"model.{suffix}")
    begun[0].load_state_dict(read, strict=True)
    assert all(read[n].dtype == t.dtype and torch.equal(read[n], t) for n, t in model.items())


def test_another_file_of_what_stays_is_refused(begun: tuple[Net, ArrayRecord], tmp_path: Path) -> None:
    path = tmp_path / "run" / WHOLE_MODEL
    with np.load(path) as archive:
        content = dict(archive)
    content["kept-0"] = content["kept-0"] + 1
    np.savez(path, **content)
    with pytest.raises(ConfigError, match="must be what the run began with"):
        load_model(tmp_path / "run")
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ConfigError, match="cannot read"):
        load_model(tmp_path / "run")
    path.unlink()
    with pytest.raises(ConfigError, match="FileNotFoundError"):
        load_model(tmp_path / "run")
