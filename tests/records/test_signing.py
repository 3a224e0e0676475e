"""The operator's key: a file for its owner, never written over, whose signatures are of statements alone."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from support.command_line import one_line

from fedmf.cli.app import run as command
from fedmf.errors import ConfigError
from fedmf.records import SigningKey, read_public_key, signed_by


def test_a_signing_key_is_a_file_for_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "key"
    before = os.umask(0)
    try:
        key = SigningKey.create(path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "key.pub").stat().st_mode & 0o777 == 0o644
    assert read_public_key(tmp_path / "key.pub") == SigningKey.load(path).public_key == key.public_key
    for secret in (repr(key), str(key)):
        assert path.read_text().splitlines()[1][:20] not in secret
    with pytest.raises(TypeError):
        pickle.dumps(key)
    with pytest.raises(ConfigError, match="exists already"):
        SigningKey.create(path)
    (tmp_path / "other.pub").touch()
    with pytest.raises(ConfigError, match="exists already"):
        SigningKey.create(tmp_path / "other")
    assert not (tmp_path / "other").exists()
    path.chmod(0o640)
    with pytest.raises(ConfigError, match=r"must be 0600; got 0640"):
        SigningKey.load(path)
    pem = X25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for content in (b"", b"nonsense", pem):
        (tmp_path / "bad").write_bytes(content)
        (tmp_path / "bad").chmod(0o600)
        with pytest.raises(ConfigError, match="must hold an Ed25519"):
            SigningKey.load(tmp_path / "bad")
        with pytest.raises(ConfigError, match="must hold an Ed25519"):
            read_public_key(tmp_path / "bad")


def test_another_label_is_another_document(tmp_path: Path) -> None:
    """A signature of the bare bytes, which another program might have made, is none of a statement."""
    key = SigningKey.create(tmp_path / "key")
    bare = serialization.load_pem_private_key((tmp_path / "key").read_bytes(), None)
    document = b"{}\n"
    assert signed_by(key.public_key, key.sign(document), document)
    assert not signed_by(key.public_key, bare.sign(document).hex(), document)  # type: ignore[union-attr]
    assert not signed_by("00", key.sign(document), document)
    assert not signed_by(key.public_key, "zz", document)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("", "exists already"),
        ("key", "key exists already"),
        ("none/key", "No such file or directory"),
        ("x" * 300, "File name too long"),
    ],
    ids=["the folder itself", "a key", "no folder", "too long a name"],
)
def test_a_key_is_made_at_a_free_place_or_not_at_all(
    place: str,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "key").write_text("mine")
    assert command(["keygen", place]) == 2
    assert message in one_line(capsys)
    assert {entry.name: entry.read_text() for entry in tmp_path.iterdir()} == {"key": "mine"}
