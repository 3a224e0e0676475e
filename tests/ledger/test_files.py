"""Files and directories that are made whole or not at all and never over another, and the file of a
key.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from support.leaks import SECRET, chain_text, shows_secret

from fedmf.errors import ConfigError, LedgerError
from fedmf.ledger.durable_files import create_directory, load_key, new_file, save_key, write_durably
from fedmf.noise.key import NoiseKey


def test_content_is_written_before_it_is_flushed_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    fsync = os.fsync
    replace = os.replace
    seen = list[object]()

    def flushed(descriptor: int) -> None:
        seen.append(
            os.fstat(descriptor).st_size if not os.path.isdir(f"/dev/fd/{descriptor}") else "folder"
        )
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


def content(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def fill(folder: Path) -> None:
    (folder / "file").write_text("whole")


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), LedgerError("no"), KeyError("x")]
)
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
            " Choose another place."
        )
    assert content(tmp_path / "deep") == []


def test_what_a_killed_process_left_is_removed_after_an_hour(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / f".fedmf-making-{name}").mkdir()
    os.utime(tmp_path / ".fedmf-making-old", (0, 0))
    create_directory(tmp_path / "run", "output directory", fill)
    assert content(tmp_path) == [".fedmf-making-new", "run"]


def test_a_place_that_is_taken_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    create_directory(tmp_path / "empty", "output directory", fill)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("empty", "file", "link"):
        found = "contains other files" if name == "empty" else "is no directory"
        with pytest.raises(ConfigError, match=f"must be new or empty; it {found}") as caught:
            create_directory(tmp_path / name, "state directory", fill)
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be created: Not a directory"):
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
    with (
        pytest.raises(ConfigError, match="three exists already"),
        new_file(tmp_path / "three") as file,
    ):
        (tmp_path / "three").symlink_to("nowhere")
    assert content(tmp_path) == ["one", "three"]


KEY = NoiseKey(SECRET)


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "noise.key"
    save_key(path, KEY)
    return path


def test_a_key_file_round_trips(tmp_path):
    for name, key in (("private", KEY), ("public", NoiseKey.from_seed(1))):
        save_key(tmp_path / name, key)
        assert load_key(tmp_path / name) == key
        assert load_key(tmp_path / name).public is key.public


def refused(path, message) -> None:
    with pytest.raises((ConfigError, LedgerError), match=message) as caught:
        load_key(path)
    assert "\n" not in str(caught.value)
    assert not shows_secret(chain_text(caught.value))


@pytest.mark.parametrize("mode", [0o640, 0o602])
def test_a_file_open_to_others_is_refused(key_file, mode):
    key_file.chmod(mode)
    refused(key_file, rf"^cannot use noise key .* must be 0600; got {mode:04o}")


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: b"",
        lambda text: text[:-2],
        lambda text: text.replace(b"key: 6", b"key: 7"),
        lambda text: SECRET,
        lambda text: text * 1000,
    ],
    ids=["empty", "cut", "digit", "raw", "huge"],
)
def test_a_damaged_file_is_refused_without_showing_it(key_file, damage):
    key_file.write_bytes(damage(key_file.read_bytes()))
    refused(
        key_file,
        r"^file \(key\) must hold an intact 'fedmf noise key, version 1'; got something else",
    )
