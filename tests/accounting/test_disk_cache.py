"""A kept file is what was written, or it is not there: no error, nobody else's content."""

from __future__ import annotations

import stat
from pathlib import Path

from fedmf.accounting.disk_cache import DiskCache

CONTENT = b"what was written"


def kept(root: Path) -> DiskCache:
    files = DiskCache(root, "tests", largest=1000, most=5000)
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
