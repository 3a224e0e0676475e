"""Directories and files that are made whole or not at all, and never over another."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from fedmf.errors import ConfigError, LedgerError
from fedmf.records.new_places import create_directory, new_file


def content(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def fill(folder: Path) -> None:
    (folder / "file").write_text("whole")


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), LedgerError("no"), KeyError("x")])
def test_a_failure_leaves_nothing(tmp_path: Path, error: Exception) -> None:
    def fail(folder: Path) -> None:
        (folder / "file").touch()
        raise error

    expected = ConfigError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected) as caught:
        create_directory(tmp_path / "deep" / "run", "output directory", fail)
    if isinstance(error, OSError):
        assert str(caught.value) == (
            f"output directory {tmp_path}/deep/run cannot be created: No space left on device."
        )
    assert content(tmp_path / "deep") == []


def test_a_place_that_is_taken_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    create_directory(tmp_path / "empty", "output directory", fill)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("empty", "file", "link"):
        with pytest.raises(LedgerError, match="must be new or empty; it holds something else") as caught:
            create_directory(tmp_path / name, "state directory", fill, error=LedgerError)
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be created: File exists"):
        create_directory(tmp_path / "file" / "run", "output directory", fill)
    assert content(tmp_path) == ["empty", "file", "link"]


def test_a_file_is_whole_with_its_mode(tmp_path: Path) -> None:
    with new_file(tmp_path / "one", 0o644) as file:
        file.write(b"content")
        assert not (tmp_path / "one").exists()
    assert (tmp_path / "one").read_bytes() == b"content"
    assert stat.S_IMODE((tmp_path / "one").stat().st_mode) == 0o644
    with pytest.raises(RuntimeError, match="mine"), new_file(tmp_path / "two") as file:
        raise RuntimeError("mine")
    with pytest.raises(ConfigError, match="three exists already"), new_file(tmp_path / "three") as file:
        (tmp_path / "three").symlink_to("nowhere")
    assert content(tmp_path) == ["one", "three"]
