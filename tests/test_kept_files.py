"""A kept file is what was written, or it is not there: no error, nobody else's content, no waiting."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedmf.kept_files import KeptFiles

CONTENT = b"what was written"


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    yield
    os.umask(before)


def kept(root: Path) -> KeptFiles:
    files = KeptFiles(root, "tests", largest=1000, most=5000)
    files.write("one", CONTENT)
    return files


def modes(folder: Path) -> list[int]:
    return [stat.S_IMODE(path.lstat().st_mode) for path in (folder, *sorted(folder.iterdir()))]


@pytest.mark.parametrize("mask", [0, 0o022, 0o777])
def test_folder_and_files_are_the_users_own_under_any_mask(tmp_path: Path, mask: int) -> None:
    with umask(mask):
        files = kept(tmp_path)
    assert files.read("one") == CONTENT
    assert modes(files.folder) == [0o700, 0o600]
    with umask(0):
        deep = kept(tmp_path / "made" / "too")
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o700
    assert deep.read("one") == CONTENT


def test_a_name_is_part_of_what_is_checked(tmp_path: Path) -> None:
    files = kept(tmp_path)
    files.write("two", b"other")
    (files.folder / "one").rename(files.folder / "two")
    assert files.read("two") is None


def test_every_flipped_bit_and_every_cut_is_a_miss(tmp_path: Path) -> None:
    files = kept(tmp_path)
    path = files.folder / "one"
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
    assert path.read_bytes() == whole


def test_what_others_could_have_written_is_removed(tmp_path: Path) -> None:
    files = kept(tmp_path)
    files.folder.chmod(0o777)
    assert files.read("one") is None
    files.write("two", CONTENT)
    assert (files.read("one"), files.read("two")) == (None, CONTENT)
    assert modes(files.folder) == [0o700, 0o600]
    (files.folder / "two").chmod(0o602)
    assert files.read("two") is None


@pytest.mark.parametrize("what", ["one", ""])
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_belongs_to_somebody_else_is_not_read(tmp_path: Path, what: str) -> None:
    files = kept(tmp_path)
    os.chown(files.folder / what, 65534, 65534)
    assert files.read("one") is None
    files.write("one", b"new")
    assert files.read("one") == (b"new" if what else None)


PLACES: dict[str, Callable[[Path], object]] = {
    "folder": lambda path: (path / "inside").mkdir(parents=True),
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "link": lambda path: path.symlink_to("/nowhere/at/all"),
}


@pytest.mark.parametrize("what", PLACES)
@pytest.mark.parametrize("name", ["one", "partial"])
def test_anything_else_in_its_place_is_replaced(tmp_path: Path, what: str, name: str) -> None:
    files = kept(tmp_path)
    (files.folder / name).unlink(missing_ok=True)
    PLACES[what](files.folder / name)
    assert files.read("one") == (None if name == "one" else CONTENT)
    files.write("one", CONTENT)
    assert files.read("one") == CONTENT
    assert [path.name for path in files.folder.iterdir()] == ["one"]


def test_errors_of_the_operating_system_keep_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = kept(tmp_path)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    for call in ("fsync", "replace"):
        with monkeypatch.context() as patched:
            patched.setattr(os, call, full)
            files.write("two", CONTENT)
        assert sorted(path.name for path in files.folder.iterdir()) in (["one"], ["one", "two"])
        assert files.read("one") == CONTENT
