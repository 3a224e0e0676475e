"""Replaced files: what is flushed has all of the content, and a failure leaves the old one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedmf.records.durable import write_durably


def test_content_is_written_before_it_is_flushed_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, fsync, replace, seen = tmp_path / "file", os.fsync, os.replace, list[object]()

    def flushed(descriptor: int) -> None:
        seen.append(os.fstat(descriptor).st_size if not os.path.isdir(f"/dev/fd/{descriptor}") else "folder")
        fsync(descriptor)

    def named(source: Path, target: Path) -> None:
        seen.append("named")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "replace", named)
    write_durably(path, b"x" * 100)
    assert seen == [100, "named", "folder"]
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"x" * 100, 0o600)


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_durably(path, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_durably(path, b"new")
    assert (path.read_bytes(), os.listdir(tmp_path)) == (b"old", ["file"])
