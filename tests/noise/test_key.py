"""The key: where it comes from, what it gives, and that it shows itself nowhere."""

from __future__ import annotations

import hashlib
import hmac
import pickle

import numpy as np
import pytest
import torch
from support.leaks import SECRET, chain_text, shows_secret

from fedmf.mechanisms.closed_forms import bsr
from fedmf.noise.innovations import Innovations
from fedmf.noise.key import Domain, NoiseKey, nonce
from fedmf.noise.noise_stream import NoiseStream
from fedmf.noise.schedule import KeySchedule


def test_keys_from_the_operating_system_are_distinct_and_private():
    fingerprints = set()
    for _ in range(50):
        key = NoiseKey.from_os()
        assert not key.public
        fingerprints.add(key.fingerprint)
    assert len(fingerprints) == 50


def test_a_seed_gives_one_public_key():
    assert NoiseKey.from_seed(3) == NoiseKey.from_seed(3)
    assert NoiseKey.from_seed(3) != NoiseKey.from_seed(4)
    assert NoiseKey.from_seed(3).public
    derived = hashlib.sha256(b"fedmf noise key from seed, version 1\x003").digest()
    assert NoiseKey.from_seed(3) == NoiseKey(derived, public=True)


@pytest.mark.parametrize("secret", [SECRET[:31], SECRET + b"x", SECRET.hex(), bytearray(SECRET)])
def test_wrong_length_or_type_is_refused_without_showing_it(secret):
    with pytest.raises(ValueError, match=r"^key \(noise key\) must be 32 bytes; got") as caught:
        NoiseKey(secret)
    assert not shows_secret(str(caught.value))


def stream_of(key: NoiseKey) -> NoiseStream:
    return NoiseStream(key, Domain.TRAINING, bsr(2, 3).streaming_inverse(), 3, 10, 1e6)


def test_text_forms_do_not_show_the_key():
    key = NoiseKey(SECRET)
    stream = stream_of(key)
    for thing in (key, KeySchedule.of(key), stream, [key], {"key": key}):
        for text in (
            repr(thing),
            str(thing),
            f"{thing}",
            f"{thing!r}",
            "%s" % (thing,),  # noqa: UP031
            ascii(thing),
        ):
            assert not shows_secret(text)
            assert key.fingerprint in text
    assert not shows_secret(str(vars(stream)))
    assert not shows_secret(str(stream.state_dict(with_vectors=True)))
    assert not shows_secret(str(dir(key)))
    with pytest.raises(TypeError):
        vars(key)
    with pytest.raises(TypeError):
        format(key, "s")


def test_pickling_is_refused():
    key = NoiseKey(SECRET)
    for thing in (key, Innovations(key, Domain.TRAINING), stream_of(key)):
        with pytest.raises(TypeError, match=r"pickle"):
            pickle.dumps(thing)
    with pytest.raises(TypeError, match=r"pickle"):
        key.__getstate__()
    with pytest.raises(TypeError, match=r"pickle"):
        key.__reduce__()


def test_tracebacks_with_local_variables_do_not_show_the_key():
    key = NoiseKey(SECRET)
    noise = stream_of(key)
    innovations = Innovations(key, Domain.TRAINING)
    failures = (
        lambda: key.keystream(b"short", 0),
        lambda: key.keystream(bytes(12), 2**32),
        lambda: key.keystream(bytes(12), 2**32 - 1).update(bytes(65)),
        lambda: innovations.row(-1, 1.0, 8),
        lambda: innovations.draw([0], np.ones(1), 0, np.empty((1, 8))),
        lambda: noise.release(torch.zeros(10)),
        lambda: noise.load_state({}),
        lambda: pickle.dumps(key),
    )
    for fail in failures:
        with pytest.raises(Exception) as caught:  # noqa: PT011
            fail()
        assert not shows_secret(chain_text(caught.value))


def test_the_secret_text_is_that_of_version_1_and_read_back_with_the_standing():
    for key in (NoiseKey(SECRET), NoiseKey.from_seed(1)):
        again = NoiseKey.from_secret_text(key.secret_text())
        assert (again, again.public) == (key, key.public)
    assert NoiseKey(SECRET).secret_text() == (
        b"fedmf noise key, version 1\nkind: private\n"
        + f"fingerprint: {NoiseKey(SECRET).fingerprint}\nkey: {SECRET.hex()}\n".encode()
    )


PURPOSES = (
    "records",
    "record",
    "publication",
    "opening 00",
    "opening 01",
    "TRAINING",
    "COHORTS",
    "4",
)


def test_a_subkey_is_hkdf_of_the_key_and_a_labeled_purpose():
    """RFC 5869 by hand: no salt is 32 zero bytes, and 32 bytes are one block."""
    extracted = hmac.digest(bytes(32), SECRET, "sha256")
    for purpose in PURPOSES:
        info = b"fedmf sub-key, version 1\x00" + purpose.encode()
        assert NoiseKey(SECRET).subkey(purpose) == hmac.digest(extracted, info + b"\x01", "sha256")


def test_the_cohort_seed_of_seed_1_is_the_recorded_one():
    """Recorded before the derivation moved here: cohorts of old runs must not change."""
    recorded = 9324398002133234878532013815474796107100471518548741466475338487704873135982
    assert NoiseKey.from_seed(1).cohort_seed() == recorded
    stream = NoiseKey(SECRET).keystream(nonce(Domain.COHORTS, 0), 0).update(bytes(32))
    assert NoiseKey(SECRET).cohort_seed() == int.from_bytes(stream, "little")
