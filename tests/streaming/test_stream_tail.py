"""The newest commits of a stream beside its database: one flush each, whole or not there, moved in order."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from support.streams import sample

from fedmf import PrivateStream
from fedmf.streaming.session import account_stream
from fedmf.streaming.state import StateError
from fedmf.streaming.state import tail as tail_module

X = 0.2 * sample(12, 2)


def opened(path: Path, rounds: int = 12, seed: int = 3) -> PrivateStream:
    return PrivateStream(
        path, epsilon=8, delta=1e-5, norm_bound=1, dimension=2, rounds=rounds, seed=seed, bands=2
    )


def push(stream: PrivateStream, first: int, last: int) -> list[dict[str, Any]]:
    """Rows by number, pushed with their keys."""
    return [stream.push(X[i], user=f"u{i}", key=f"row {i}").to_dict() for i in range(first, last)]


def tails(path: Path) -> list[Path]:
    return sorted(path.glob("state.sqlite-tail-*"))


@pytest.fixture
def begun(tmp_path: Path) -> tuple[Path, list[dict[str, Any]]]:
    """A copy of a stream as a killed process leaves it after five rows, and their releases."""
    with opened(tmp_path / "made") as stream:
        told = push(stream, 0, 5)
        shutil.copytree(tmp_path / "made", tmp_path / "killed")
    assert tails(tmp_path / "killed")
    assert not tails(tmp_path / "made")
    return tmp_path / "killed", told


def test_a_push_is_one_flush_and_one_that_is_long_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "a") as stream:
        push(stream, 0, 1)  # an opening and a file are made
        flushed: list[str] = []
        for name in ("fsync", "fdatasync"):
            call = getattr(os, name)
            monkeypatch.setattr(os, name, lambda fd, name=name, call=call: (flushed.append(name), call(fd)))
        push(stream, 1, 4)
        assert flushed == ["fdatasync"] * 3
        monkeypatch.setattr("fedmf.streaming.state.state._MOST_IN_FRAME", 8)
        push(stream, 4, 5)
        assert flushed[3:] == ["fsync", "fdatasync"]
        monkeypatch.setattr(sqlite3, "connect", None)  # the database has no part in it
        push(stream, 5, 6)


@pytest.mark.parametrize("lost", ["nothing", "releases.bin", "pushes.bin"])
def test_what_a_power_loss_takes_of_files_that_are_not_flushed_is_in_the_frames(
    begun: tuple[Path, list[dict[str, Any]]], lost: str
) -> None:
    path, told = begun
    if lost != "nothing":
        os.truncate(path / lost, 0)
    with opened(path) as stream:
        assert not tails(path)  # the database has them
        assert (stream.t, push(stream, 0, 5)) == (5, told)
        with pytest.raises(ValueError, match="must be new for a new row"):
            stream.push(X[0], user="another", key="row 1")
        push(stream, 5, 12)


def test_commits_are_gone_on_with_wherever_the_process_died(
    begun: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    """Cut at every sector: each frame that is whole counts, and nothing of one that is not."""
    path, told = begun
    (file,) = tails(path)
    found = []
    for size in range(0, file.stat().st_size + 1, 512):
        shutil.copytree(path, tmp_path / f"cut {size}")
        os.truncate(tmp_path / f"cut {size}" / file.name, size)
        with opened(tmp_path / f"cut {size}") as stream:
            found.append(stream.t)
            assert push(stream, 0, stream.t) == told[: found[-1]]
    assert sorted(found) == found
    assert set(found) == {0, 1, 2, 3, 4, 5}


def test_a_flipped_bit_is_refused(begun: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    path, _ = begun
    (file,) = tails(path)
    content = file.read_bytes()
    for at in range(3, len(content), 229):
        (path / file.name).write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        with pytest.raises(StateError, match="damaged"):
            opened(path)
    file.write_bytes(content)
    assert account_stream(path)["records"]


def test_frames_of_another_stream_or_place_are_refused_and_old_ones_passed_over(
    begun: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    path, told = begun
    (file,) = tails(path)
    with opened(tmp_path / "other", seed=4) as other:
        push(other, 0, 2)
        shutil.copytree(tmp_path / "other", tmp_path / "mixed")
    shutil.copy(file, tmp_path / "mixed" / file.name)
    with pytest.raises(StateError, match="a commit of the tail: it does not follow"):
        opened(tmp_path / "mixed", seed=4)
    kept = file.read_bytes()
    with opened(path) as stream:
        push(stream, 5, 6)
    file.write_bytes(kept)  # it could not be removed
    with opened(path) as stream:
        assert (stream.t, push(stream, 0, 5)) == (6, told)
    assert not tails(path)


def test_a_full_file_is_moved_into_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_module, "_FRAMES", 3)
    with opened(tmp_path / "a") as stream:
        told, steps = [], []
        for i in range(8):
            told += push(stream, i, i + 1)
            with sqlite3.connect(tmp_path / "a/state.sqlite") as reader:
                steps.append(reader.execute("SELECT COUNT(*) FROM blocks").fetchone()[0])
            reader.close()
            assert len(tails(tmp_path / "a")) == 1
            assert push(stream, 0, i + 1) == told  # from both
        assert steps == [0, 0, 0, 3, 3, 3, 6, 6]
