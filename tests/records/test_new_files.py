"""Files made where a caller asks: whole or not there, whatever fails; a kill leaves nothing."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from fedmf.errors import ConfigError
from fedmf.records import new_file

REAL_FSYNC, REAL_UNLINK = os.fsync, os.unlink


def without_nameless_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "O_TMPFILE", raising=False)


def failing_for_folders(handle: int) -> None:
    if stat.S_ISDIR(os.fstat(handle).st_mode):
        raise OSError(5, "Input/output error")
    REAL_FSYNC(handle)


def failing(*_: object, **__: object) -> None:
    raise OSError(5, "Input/output error")


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="Linux has files without names")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_kill_leaves_nothing_of_a_key(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)  # the key is written by now
        with new_file(tmp_path / "k") as file:
            file.write(b"secret")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("prepare", [lambda _: None, without_nameless_files])
def test_a_file_is_whole_with_its_mode(
    tmp_path: Path, prepare: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(monkeypatch)
    with new_file(tmp_path / "one", 0o644) as file:
        file.write(b"content")
        assert not (tmp_path / "one").exists()
    assert (tmp_path / "one").read_bytes() == b"content"
    assert stat.S_IMODE((tmp_path / "one").stat().st_mode) == 0o644
    with pytest.raises(RuntimeError, match="mine"), new_file(tmp_path / "two") as file:
        raise RuntimeError("mine")
    with pytest.raises(ConfigError, match="three exists already"), new_file(tmp_path / "three") as file:
        (tmp_path / "three").symlink_to("nowhere")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "three"]


def test_what_cannot_be_written_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", failing_for_folders)
    with (
        pytest.raises(ConfigError, match=r"cannot write .*: Input/output error"),
        new_file(tmp_path / "k") as file,
    ):
        file.write(b"secret")
    assert list(tmp_path.iterdir()) == []


def test_what_is_whole_is_not_said_to_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", failing_for_folders)
    monkeypatch.setattr(os, "unlink", failing)
    monkeypatch.setattr(Path, "unlink", failing)
    with pytest.raises(ConfigError, match="is whole, but its disk"), new_file(tmp_path / "one") as file:
        file.write(b"content")
    assert (tmp_path / "one").read_bytes() == b"content"
