"""Checkpoints: old or new but never torn, bound to their digest, and free of code."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fedmf.records import durable
from fedmf.records.checkpoint import load_checkpoint, save_checkpoint
from fedmf.records.durable import write_durably

PARAMETERS = torch.randn(33, generator=torch.Generator().manual_seed(0))
STATE = {"velocity": torch.arange(33, dtype=torch.float64), "step": torch.tensor(7)}
NOISE = {"t": 3, "digest": "00ff"}


def check_equal(state: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert list(state) == list(expected)
    for name, value in expected.items():
        assert state[name].dtype == value.dtype
        assert torch.equal(state[name], value)


@pytest.mark.parametrize(
    "state", [STATE, {}, {"parameters": torch.ones(2), "file": torch.zeros(1)}], ids=list
)
def test_what_was_saved_is_loaded_bit_for_bit(tmp_path: Path, state: dict[str, Tensor]) -> None:
    path = tmp_path / "c.npz"
    special = torch.tensor([float("nan"), float("inf"), -0.0, 1e-45])
    digest = save_checkpoint(path, torch.cat([PARAMETERS, special]), state, NOISE)
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
    parameters, loaded, noise = load_checkpoint(path, digest)
    assert noise == NOISE
    assert parameters.numpy().tobytes() == torch.cat([PARAMETERS, special]).numpy().tobytes()
    check_equal(loaded, state)
    parameters.add_(1.0)
    assert os.listdir(tmp_path) == ["c.npz"]


def test_saving_detaches(tmp_path: Path) -> None:
    digest = save_checkpoint(tmp_path / "c.npz", PARAMETERS.clone().requires_grad_(), {}, NOISE)
    assert not load_checkpoint(tmp_path / "c.npz", digest)[0].requires_grad


@pytest.mark.parametrize("damage", ["flip", "cut", "append", "empty"])
def test_a_file_that_is_not_the_committed_one_is_refused(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "c.npz"
    digest = save_checkpoint(path, PARAMETERS, STATE, NOISE)
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
    else:
        content = {"cut": content[:-1], "append": content + b"\0", "empty": bytearray()}[damage]
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is not the one the ledger committed: its SHA-256 differs"):
        load_checkpoint(path, digest)


def test_another_rounds_checkpoint_is_refused(tmp_path: Path) -> None:
    first = save_checkpoint(tmp_path / "1.npz", PARAMETERS, STATE, NOISE)
    second = save_checkpoint(tmp_path / "2.npz", PARAMETERS + 1, STATE, NOISE)
    assert first != second
    with pytest.raises(ValueError, match="is not the one the ledger committed"):
        load_checkpoint(tmp_path / "2.npz", first)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot read checkpoint .*absent.npz: No such file"):
        load_checkpoint(tmp_path / "absent.npz", "0" * 64)


class Bomb:
    """Touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


def test_loading_runs_no_pickled_code(tmp_path: Path) -> None:
    """Even with the right digest, an archive that carries a pickle is refused unopened."""
    fuse = tmp_path / "exploded"
    buffer = io.BytesIO()
    np.savez(buffer, parameters=np.array([Bomb(fuse)], dtype=object))
    content = buffer.getvalue()
    (tmp_path / "c.npz").write_bytes(content)
    with pytest.raises(ValueError, match="allow_pickle"):
        load_checkpoint(tmp_path / "c.npz", hashlib.sha256(content).hexdigest())
    assert not fuse.exists()
    pickle.loads(pickle.dumps(Bomb(fuse)))
    assert fuse.exists()


def test_writing_replaces_and_leaves_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "f"
    for content in (b"old", b"", b"new" * 100_000):
        write_durably(path, content)
        assert path.read_bytes() == content
        assert os.listdir(tmp_path) == ["f"]


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failing_disk_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "f"
    write_durably(path, b"old")
    monkeypatch.setattr(durable.os, call, full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_durably(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]


def test_a_full_disk_leaves_the_old_content(tmp_path: Path) -> None:
    """A real write error: the process may not write files above 64 KiB."""
    path = tmp_path / "f"
    write_durably(path, b"old")
    script = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from fedmf.records.durable import write_durably\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))\n"
        "try:\n"
        "    write_durably(Path(sys.argv[1]), bytes(200_000))\n"
        "except OSError:\n"
        "    print('refused')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "refused\n"
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]


def test_a_writer_killed_half_way_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a killed process left beside the file is neither read nor in the way of the next write."""

    def die(*_: object) -> None:
        raise SystemExit

    path = tmp_path / "c.npz"
    digest = save_checkpoint(path, PARAMETERS, STATE, NOISE)
    with monkeypatch.context() as patched:
        patched.setattr(durable.os, "replace", die)
        with pytest.raises(SystemExit):
            save_checkpoint(path, PARAMETERS + 1, STATE, NOISE)
    assert len(os.listdir(tmp_path)) == 2
    assert torch.equal(load_checkpoint(path, digest)[0], PARAMETERS)
    digest = save_checkpoint(path, PARAMETERS + 2, STATE, NOISE)
    assert torch.equal(load_checkpoint(path, digest)[0], PARAMETERS + 2)
    assert os.listdir(tmp_path) == ["c.npz"]


def test_content_is_on_disk_before_the_name_and_the_name_before_returning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(descriptor: int) -> None:
        is_directory = os.path.isdir(f"/proc/self/fd/{descriptor}")
        size = os.fstat(descriptor).st_size
        events.append("directory" if is_directory else f"file of {size}")
        fsync(descriptor)

    def noted_replace(source: object, target: object) -> None:
        events.append("replace")
        replace(source, target)  # type: ignore[arg-type]

    monkeypatch.setattr(durable.os, "fsync", noted_fsync)
    monkeypatch.setattr(durable.os, "replace", noted_replace)
    write_durably(tmp_path / "f", b"12345")
    assert events == ["file of 5", "replace", "directory"]
