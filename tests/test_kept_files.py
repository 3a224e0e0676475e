"""A kept file is what was written, or it is not there: no error, nobody else's content."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fedmf.kept_files import KeptFiles

CONTENT = b"what was written"


def kept(root: Path) -> KeptFiles:
    files = KeptFiles(root, "tests", largest=1000, most=5000)
    files.write("one", CONTENT)
    return files


def test_every_flipped_bit_every_cut_and_another_name_is_a_miss(tmp_path: Path) -> None:
    files = kept(tmp_path)
    path = files.folder / "one"
    assert files.read("one") == CONTENT
    assert [stat.S_IMODE(one.lstat().st_mode) for one in (files.folder, path)] == [0o700, 0o600]
    whole = path.read_bytes()
    for i in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[i // 8] ^= 1 << i % 8
        path.write_bytes(damaged)
        assert files.read("one") is None
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert files.read("one") is None
    files.write("one", CONTENT)
    path.rename(files.folder / "two")
    assert files.read("two") is None


def test_a_folder_that_others_can_enter_is_not_believed(tmp_path: Path) -> None:
    files = kept(tmp_path)
    files.folder.chmod(0o777)
    assert files.read("one") is None
    files.write("two", CONTENT)
    assert [path.name for path in files.folder.iterdir()] == ["one"]


def test_errors_of_the_operating_system_keep_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = kept(tmp_path)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        files.write("two", CONTENT)
    assert [path.name for path in files.folder.iterdir()] == ["one"]
    (tmp_path / "file").touch()
    elsewhere = KeptFiles(tmp_path / "file", "tests", 1000, 5000)
    elsewhere.write("one", CONTENT)
    assert elsewhere.read("one") is None


def test_the_oldest_make_room(tmp_path: Path) -> None:
    files = kept(tmp_path)
    for i in range(8):
        files.write(f"large {i}", bytes(900))
        os.utime(files.folder / f"large {i}", (i, i))
    assert files.read("large 7") == bytes(900)
    assert sum(path.stat().st_size for path in files.folder.iterdir()) <= 5000
