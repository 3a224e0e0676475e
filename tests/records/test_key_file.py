"""The key file: for its owner only, durable, never written over, and refused when it is not what it was."""

from __future__ import annotations

import os
import stat

import pytest
from support.leaks import SECRET, chain_text, shows_secret

from fedmf.errors import ConfigError
from fedmf.noise import NoiseKey
from fedmf.records.key_file import load_key, save_key

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


@pytest.mark.parametrize("umask", [0o000, 0o277])
def test_the_file_is_for_its_owner_only_whatever_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        save_key(tmp_path / "key", KEY)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_a_key_is_never_overwritten(key_file, tmp_path):
    with pytest.raises(FileExistsError):
        save_key(key_file, NoiseKey.from_os())
    assert load_key(key_file) == KEY
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        save_key(tmp_path / "link", KEY)
    assert not (tmp_path / "elsewhere").exists()


def refused(path, message) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
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
    refused(key_file, r"^file \(key\) must hold an intact 'fedmf noise key, version 1'; got something else")
