"""The key: where it comes from, where it is kept, and that it shows itself nowhere."""

from __future__ import annotations

import copy
import hashlib
import os
import pickle
import stat
import traceback
from pathlib import Path

import pytest
import torch

import fedmf.noise
from fedmf.noise.key import NoiseKey
from fedmf.noise.rows.noise_stream import NoiseStream
from fedmf.noise.source import GaussianSource

SECRET = bytes(range(100, 132))


def shows_secret(text: str) -> bool:
    forms = (
        SECRET.hex(),
        SECRET.hex().upper(),
        repr(SECRET)[2:-1],
        str(list(SECRET))[1:-1],
        SECRET.decode("latin-1"),
    )
    return any(form in text for form in forms)


def chain_text(error: BaseException) -> str:
    return "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "noise.key"
    NoiseKey(SECRET).save(path)
    return path


def test_the_detector_of_leaks_detects():
    assert shows_secret(f"key={SECRET!r}")
    assert shows_secret(SECRET.hex())

    def fail(secret: bytes) -> None:
        raise RuntimeError("with the secret in a local variable")

    with pytest.raises(RuntimeError) as caught:
        fail(SECRET)
    assert shows_secret(chain_text(caught.value))


def test_keys_from_the_operating_system_are_distinct_and_private():
    keys = [NoiseKey.from_os() for _ in range(50)]
    assert len({key.fingerprint for key in keys}) == 50
    assert not any(key.public for key in keys)


def test_the_operating_system_is_asked_for_32_bytes(monkeypatch):
    monkeypatch.setattr("fedmf.noise.key.secrets.token_bytes", lambda count: SECRET[:count])
    assert NoiseKey.from_os() == NoiseKey(SECRET)


def test_a_seed_gives_one_public_key():
    assert NoiseKey.from_seed(3) == NoiseKey.from_seed(3)
    assert NoiseKey.from_seed(3) != NoiseKey.from_seed(4)
    assert NoiseKey.from_seed(3).public
    derived = hashlib.sha256(b"fedmf noise key from seed, version 1\x003").digest()
    assert NoiseKey.from_seed(3) == NoiseKey(derived, public=True)


@pytest.mark.parametrize("seed", [-1, 1.0, True, "1", None])
def test_a_bad_seed_is_refused(seed):
    with pytest.raises(ValueError, match=r"^seed .* must be a non-negative integer; got"):
        NoiseKey.from_seed(seed)


def test_standing_is_part_of_identity():
    assert NoiseKey(SECRET) != NoiseKey(SECRET, public=True)
    assert NoiseKey(SECRET) == NoiseKey(SECRET)
    assert hash(NoiseKey(SECRET)) == hash(NoiseKey(SECRET))
    assert NoiseKey(SECRET) != SECRET


def test_the_fingerprint_is_a_labelled_hash():
    key = NoiseKey(SECRET)
    assert (
        key.fingerprint
        == hashlib.sha256(b"fedmf noise key fingerprint, version 1\x00" + SECRET).hexdigest()[:16]
    )
    assert key.fingerprint not in hashlib.sha256(SECRET).hexdigest()


@pytest.mark.parametrize("secret", [b"", SECRET[:31], SECRET + b"x", SECRET.hex(), bytearray(SECRET), None])
def test_wrong_length_or_type_is_refused_without_showing_it(secret):
    with pytest.raises(ValueError, match=r"^key \(noise key\) must be 32 bytes; got") as caught:
        NoiseKey(secret)
    assert not shows_secret(str(caught.value))


def test_text_forms_do_not_show_the_key():
    key = NoiseKey(SECRET)
    source = GaussianSource(key, dimension=10)
    for thing in (key, source, [key], {"key": key}):
        for text in (repr(thing), str(thing), f"{thing}", f"{thing!r}", "%s" % (thing,), ascii(thing)):  # noqa: UP031
            assert not shows_secret(text)
            assert key.fingerprint in text
    assert not shows_secret(str(vars(source)))
    assert not shows_secret(str(dir(key)))
    with pytest.raises(TypeError):
        vars(key)
    with pytest.raises(TypeError):
        format(key, "s")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickling_is_refused(protocol):
    key = NoiseKey(SECRET)
    for thing in (key, GaussianSource(key, dimension=10)):
        with pytest.raises(TypeError, match=r"pickle"):
            pickle.dumps(thing, protocol)
    with pytest.raises(TypeError, match=r"pickle"):
        key.__getstate__()
    with pytest.raises(TypeError, match=r"pickle"):
        key.__reduce__()


def test_copies_are_the_same_object():
    key = NoiseKey(SECRET)
    assert copy.copy(key) is key
    assert copy.deepcopy({"key": key})["key"] is key


def test_tracebacks_with_local_variables_do_not_show_the_key(named_recurrence):
    key = NoiseKey(SECRET)
    source = GaussianSource(key, dimension=10)
    noise = NoiseStream(source, named_recurrence("both", 2), rounds=2)
    failures = (
        lambda: key.keystream(b"short", 0),
        lambda: key.keystream(bytes(12), 2**32),
        lambda: key.keystream(bytes(12), 2**32 - 1).update(bytes(65)),
        lambda: source.block(-1, 0, 1),
        lambda: noise.add_([], 1.0),
        lambda: noise.load_state({}),
        lambda: pickle.dumps(key),
    )
    for fail in failures:
        with pytest.raises(Exception) as caught:  # noqa: PT011
            fail()
        assert not shows_secret(chain_text(caught.value))


def test_a_key_file_round_trips(tmp_path):
    for name, key in (("private", NoiseKey(SECRET)), ("public", NoiseKey.from_seed(1))):
        key.save(tmp_path / name)
        assert NoiseKey.load(tmp_path / name) == key
        assert NoiseKey.load(str(tmp_path / name)).public is key.public


def test_create_draws_a_private_key_and_stores_it(tmp_path):
    first, second = NoiseKey.create(tmp_path / "a"), NoiseKey.create(tmp_path / "b")
    assert first != second
    assert not first.public
    assert NoiseKey.load(tmp_path / "a") == first


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277])
def test_the_file_is_for_its_owner_only_whatever_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        NoiseKey.create(tmp_path / "key")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_a_key_is_never_overwritten(key_file, tmp_path):
    with pytest.raises(FileExistsError):
        NoiseKey.create(key_file)
    assert NoiseKey.load(key_file) == NoiseKey(SECRET)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        NoiseKey.create(tmp_path / "link")
    assert not (tmp_path / "elsewhere").exists()


def test_file_and_directory_are_flushed_before_the_key_is_returned(tmp_path, monkeypatch):
    flushed, real = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (flushed.append(stat.S_IFMT(os.fstat(fd).st_mode)), real(fd)))
    NoiseKey.create(tmp_path / "key")
    assert flushed == [stat.S_IFREG, stat.S_IFDIR]


def test_a_failed_save_leaves_nothing_and_shows_nothing(tmp_path, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space") as caught:
        NoiseKey(SECRET).save(tmp_path / "key")
    assert not (tmp_path / "key").exists()
    assert not shows_secret(chain_text(caught.value))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o620, 0o602, 0o644, 0o601, 0o777])
def test_a_file_open_to_others_is_refused(key_file, mode):
    key_file.chmod(mode)
    with pytest.raises(PermissionError, match=rf"must be 0600; got {mode:04o}") as caught:
        NoiseKey.load(key_file)
    assert not shows_secret(chain_text(caught.value))


def test_a_file_its_owner_may_only_read_is_accepted(key_file):
    key_file.chmod(0o400)
    assert NoiseKey.load(key_file) == NoiseKey(SECRET)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: b"",
        lambda text: text[:-2],
        lambda text: text + b"\n",
        lambda text: text.replace(b"version 1", b"version 2"),
        lambda text: text.replace(b"key: 6", b"key: 7"),
        lambda text: text.replace(b"kind: private", b"kind: secret"),
        lambda text: text.replace(b"key: ", b"key: 00"),
        lambda text: SECRET,
        lambda text: SECRET.hex().encode(),
        lambda text: text * 1000,
    ],
    ids=["empty", "cut", "longer", "version", "digit", "kind", "too-long", "raw", "bare-hex", "huge"],
)
def test_a_damaged_file_is_refused_without_showing_it(key_file, damage):
    key_file.write_bytes(damage(key_file.read_bytes()))
    with pytest.raises(ValueError, match=r"^file \(key\) must hold an intact") as caught:
        NoiseKey.load(key_file)
    assert not shows_secret(chain_text(caught.value))


def test_a_missing_file_is_an_operating_system_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        NoiseKey.load(tmp_path / "absent")


def test_words_for_kernels_are_the_key_and_hide_it():
    words = NoiseKey(SECRET).secret_words()
    assert words.tobytes() == SECRET
    assert not any(shows_secret(text) for text in (repr(words), str(words), f"{words}", f"{words!r:>40}"))
    assert str(int(words[0])) not in repr(words[:3])
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(words)


def test_kernels_and_their_errors_hide_the_key():
    source = GaussianSource(NoiseKey(SECRET), 100)
    kernels = source.kernels("cpu")
    assert not shows_secret(repr(kernels))
    with pytest.raises(ValueError, match="No noise was added") as caught:
        kernels.accumulate_(torch.zeros(4, 4), 0, [0], [1.0])
    assert not shows_secret(chain_text(caught.value))
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(kernels)


def test_a_failure_in_the_middle_of_a_tile_hides_the_key(monkeypatch):
    def fail(*arguments):
        raise RuntimeError("injected")

    monkeypatch.setattr("fedmf.noise.kernels.cpu.find_coarse", fail)
    with pytest.raises(RuntimeError, match="injected") as caught:
        GaussianSource(NoiseKey(SECRET), 100).block(0, 0, 100)
    assert not shows_secret(chain_text(caught.value))


def test_machine_code_kept_on_disk_does_not_hold_the_key():
    GaussianSource(NoiseKey(SECRET), 100).block(0, 0, 100)
    folder = Path(fedmf.noise.__file__).parent / "__pycache__"
    kept = [path.read_bytes() for path in folder.glob("*.nb[ic]")]
    assert not any(SECRET in content or SECRET.hex().encode() in content for content in kept)
