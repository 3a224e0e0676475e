"""z(t, i): the keystream, its layout, random access, and that no block of it is used twice."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fedmf.noise.cpu import TILE
from fedmf.noise.reference import normals
from fedmf.noise.row_pass import MAX_DIMENSION, NORMALS_PER_BLOCK
from fedmf.noise.source import GaussianSource
from support import noise_oracle

from fedmf.noise import key as key_module
from fedmf.noise.key import Domain, NoiseKey

SECRET = bytes(range(32))

# log, sin, cos and r each correct to about an ulp, r up to 11.6 (ulp 1.8e-15).
ROUNDING = 4e-15


RFC_NONCE = bytes.fromhex("000000090000004a00000000")
RFC_BLOCK = bytes.fromhex(
    "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
    "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
)


def test_keystream_is_rfc_8439():
    """The test vector of RFC 8439 §2.3.2, which a device kernel must reproduce too."""
    assert NoiseKey(SECRET).keystream(RFC_NONCE, 1).update(bytes(64)) == RFC_BLOCK
    assert noise_oracle.chacha20_block(SECRET, 1, RFC_NONCE) == RFC_BLOCK


def test_layout_is_the_documented_one():
    for t in [0, 1, 2**32, 2**64 - 1]:
        for domain in list(Domain):
            source = GaussianSource(NoiseKey(SECRET), MAX_DIMENSION, domain)
            for start in (0, 1005, TILE - 7, 2**34 + 3, MAX_DIMENSION - 20):
                got = source.block(t, start, start + 20).tolist()
                expected = [noise_oracle.normal(SECRET, int(domain), t, i) for i in range(start, start + 20)]
                np.testing.assert_allclose(got, expected, rtol=0, atol=ROUNDING)
                reference = normals(NoiseKey(SECRET), domain, t, start, start + 20)
                np.testing.assert_allclose(reference, expected, rtol=0, atol=ROUNDING)


def coarse_words(t: int, blocks: int) -> list[tuple[int, int]]:
    """(block, pair) of TRAINING whose radius word is below 2¹⁶, from the keystream itself."""
    stream = NoiseKey(SECRET).keystream((1).to_bytes(4, "little") + t.to_bytes(8, "little"), 0)
    words = np.frombuffer(stream.update(bytes(64 * blocks)), "<u4").reshape(-1, 16)[:, :8]
    return [(int(c), int(k)) for c, k in np.argwhere(words < 2**16)]


def test_pairs_in_the_tail_use_their_own_words_of_the_refinement_stream():
    d = 1 << 20
    z = GaussianSource(NoiseKey(SECRET), d).block(9, 0, d).numpy()
    coarse = coarse_words(9, d // 16)
    assert 1 <= len(coarse) <= 40  # 8 expected
    for block, pair in coarse:
        for i in (16 * block + pair, 16 * block + 8 + pair):
            assert z[i] == pytest.approx(noise_oracle.normal(SECRET, 1, 9, i), rel=0, abs=ROUNDING)
        r = np.hypot(z[16 * block + pair], z[16 * block + 8 + pair])
        assert r >= np.sqrt(2 * 16 * np.log(2)) - 1e-12


@pytest.fixture(scope="module")
def whole():
    source = GaussianSource(NoiseKey.from_seed(5), 3 * TILE + 777)  # enough for several threads
    return source, source.block(4, 0, source.dimension)


def test_any_cut_of_the_vector_gives_the_same_bits(whole):
    source, expected = whole
    generator = np.random.default_rng(0)
    edges = [1, 7, 8, 9, 15, 16, 17, 63, 1023, 1024, 1025, TILE - 1, TILE, TILE + 1, 2 * TILE + 5]
    starts = [0, *edges, *generator.integers(0, source.dimension, 5).tolist()]
    for start in starts:
        lengths = [1, 2, 3, 13, *generator.integers(1, source.dimension - start + 1, 2).tolist()]
        for length in lengths:
            stop = min(start + length, source.dimension)
            assert torch.equal(source.block(4, start, stop), expected[start:stop]), (start, stop)


class CipherLog:
    """Stands in for `Cipher`: notes which keystream blocks are drawn, and draws them."""

    def __init__(self, real):
        self.real = real
        self.blocks: list[tuple[bytes, int]] = []

    def __call__(self, algorithm, mode):
        log, position, context = self, algorithm.nonce, self.real(algorithm, mode).encryptor()

        class Recorder:
            nonce, at = position[4:], int.from_bytes(position[:4], "little")

            def encryptor(self):
                return self

            def reset_nonce(self, position):
                self.nonce, self.at = position[4:], int.from_bytes(position[:4], "little")
                context.reset_nonce(position)

            def note(self, data):
                assert len(data) % 64 == 0, "a keystream must be read in whole blocks"
                log.blocks += [(self.nonce, self.at + b) for b in range(len(data) // 64)]
                self.at += len(data) // 64

            def update_into(self, data, buffer):
                self.note(data)
                return context.update_into(data, buffer)

            def update(self, data):
                self.note(data)
                return context.update(data)

        return Recorder()

    def take(self) -> list[tuple[bytes, int]]:
        taken, self.blocks = self.blocks, []
        return taken


@pytest.fixture
def cipher_log(monkeypatch):
    log = CipherLog(key_module.Cipher)
    monkeypatch.setattr(key_module, "Cipher", log)
    return log


REFINEMENT = 0x80  # bit 31 of the tag, in the nonce's fourth byte


def test_every_round_element_block_and_domain_has_its_own_keystream_block(cipher_log):
    """(domain, t, ⌊i/16⌋) ↦ (nonce, counter) is one to one, and a function; refinement never meets it."""
    owner: dict[tuple[bytes, int], tuple[int, int, int]] = {}
    refined: dict[tuple[bytes, int], tuple[int, int]] = {}
    rounds, spans = (0, 1, 256, 2**32, 2**63), ((5, 2 * TILE + 5), (TILE - 1, TILE + 1), (0, 3))
    for domain in Domain:
        source = GaussianSource(NoiseKey(SECRET), MAX_DIMENSION, domain)
        for t in rounds:
            for start, stop in (*spans, (2**34, 2**34 + 9), (MAX_DIMENSION - 3, MAX_DIMENSION)):
                source.block(t, start, stop)
                drawn = cipher_log.take()
                for block in (each for each in drawn if each[0][3] & REFINEMENT):
                    assert refined.setdefault(block, (domain, t)) == (domain, t)
                plain = [each for each in drawn if not each[0][3] & REFINEMENT]
                assert len(plain) == -(-stop // NORMALS_PER_BLOCK) - start // NORMALS_PER_BLOCK
                for offset, block in enumerate(plain):
                    name = (domain, t, start // NORMALS_PER_BLOCK + offset)
                    assert owner.setdefault(block, name) == name
    assert len(owner) == len(set(owner.values()))
    assert max(counter for _, counter in owner) == 2**32 - 1
    assert len(refined) >= 1
    assert not set(refined) & set(owner)


def test_arguments_out_of_range_are_refused():
    key = NoiseKey(SECRET)
    source = GaussianSource(key, 8)
    for message, use in (
        (r"^d \(dimension\) must be an integer with 1 <= d < 2\^36; got", lambda: GaussianSource(key, 0)),
        (r"^d \(dimension\) must be an integer", lambda: GaussianSource(key, 2**36)),
        (r"^domain .* TRAINING=1, FIRST_MOMENT=2, .*; got 7", lambda: GaussianSource(key, 8, 7)),
        (r"^t \(round\) must satisfy 0 <= t < 2\^64; got", lambda: source.block(-1, 0, 8)),
        (r"^t \(round\) must satisfy 0 <= t < 2\^64; got", lambda: source.block(2**64, 0, 8)),
        (r"^start, stop \(elements\) must satisfy", lambda: source.block(0, -1, 3)),
        (r"^start, stop \(elements\) must satisfy", lambda: source.block(0, 0, 9)),
        (r"^nonce and counter", lambda: key.keystream(bytes(11), 0)),
        (r"^nonce and counter", lambda: key.keystream(bytes(12), 2**32)),
    ):
        with pytest.raises(ValueError, match=message):
            use()
