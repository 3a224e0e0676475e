"""z(t, i): the keystream, its layout, random access, and that no block of it is used twice."""

from __future__ import annotations

import math
import struct
import threading

import numpy as np
import pytest
import torch

from fedmf.noise import MAX_DIMENSION, CorrelatedNoise, Domain, GaussianSource, NoiseKey
from fedmf.noise import key as key_module
from fedmf.noise import source as source_module

SECRET = bytes(range(32))
TILE, GROUP = source_module.TILE, source_module.GROUP

# log, cos and sin are correct to about an ulp; r up to 9.5 and a few roundings multiply that.
ROUNDING = 1e-14


def chacha20_block(key: bytes, counter: int, nonce: bytes) -> bytes:
    """RFC 8439 §2.3 in plain Python."""
    initial = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key), counter]
    initial += struct.unpack("<3I", nonce)
    state = list(initial)

    def rotate(value: int, count: int) -> int:
        return ((value << count) | (value >> (32 - count))) & 0xFFFFFFFF

    def quarter(a: int, b: int, c: int, d: int) -> None:
        for x, y, z, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            state[x] = (state[x] + state[y]) & 0xFFFFFFFF
            state[z] = rotate(state[z] ^ state[x], turn)

    for _ in range(10):
        for i in range(4):
            quarter(i, i + 4, i + 8, i + 12)
        for i in range(4):
            quarter(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
    return struct.pack("<16I", *((a + b) & 0xFFFFFFFF for a, b in zip(state, initial, strict=True)))


def box_muller(even: int, odd: int) -> tuple[float, float]:
    """One pair of variables from two unsigned 64-bit words, in Python floats."""
    u = ((even % 2**63) + 0.5) * 2.0**-63
    signed = odd - 2**64 if odd >= 2**63 else odd
    angle, radius = math.pi * signed * 2.0**-63, math.sqrt(-2.0 * math.log(u))
    return radius * math.cos(angle), radius * math.sin(angle)


def oracle(key: bytes, domain: int, t: int, i: int) -> float:
    """z(t, i) written independently of the package."""
    block = chacha20_block(key, i // 8, struct.pack("<IQ", domain, t))
    words = struct.unpack("<8Q", block)
    pair = i % 8 // 2
    return box_muller(words[2 * pair], words[2 * pair + 1])[i % 2]


RFC_NONCE = bytes.fromhex("000000090000004a00000000")
RFC_BLOCK = bytes.fromhex(
    "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
    "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
)


def test_keystream_is_rfc_8439():
    """The test vector of RFC 8439 §2.3.2, which a device kernel must reproduce too."""
    assert NoiseKey(SECRET).keystream(RFC_NONCE, 1).update(bytes(64)) == RFC_BLOCK
    assert chacha20_block(SECRET, 1, RFC_NONCE) == RFC_BLOCK


@pytest.mark.parametrize("domain", list(Domain))
@pytest.mark.parametrize("t", [0, 1, 2**32, 2**64 - 1])
def test_layout_is_the_documented_one(domain, t):
    source = GaussianSource(NoiseKey(SECRET), MAX_DIMENSION, domain)
    for start in (0, 1005, TILE - 7, 2**33 + 3, MAX_DIMENSION - 20):
        got = source.block(t, start, start + 20).tolist()
        expected = [oracle(SECRET, int(domain), t, i) for i in range(start, start + 20)]
        np.testing.assert_allclose(got, expected, rtol=0, atol=ROUNDING)


def test_extreme_words_reach_far_into_the_tail_and_stay_finite():
    words = [0, 1, 2**63, 2**63 - 1, 2**64 - 1, 2**62, 12345678901234567890]
    pairs = [(even, odd) for even in words for odd in words]
    tensor = torch.tensor(np.array(pairs, dtype=np.uint64).reshape(-1).view(np.int64))
    got = source_module._box_muller(tensor, source_module._Scratch(GROUP)).reshape(-1, 2).numpy()
    np.testing.assert_allclose(got, [box_muller(*pair) for pair in pairs], rtol=0, atol=ROUNDING)
    assert np.isfinite(got).all()
    assert abs(got).max() == pytest.approx(math.sqrt(128 * math.log(2)), rel=1e-12)


@pytest.fixture(scope="module")
def whole():
    source = GaussianSource(NoiseKey.from_seed(5), 3 * TILE + 777)
    return source, source.block(4, 0, source.dimension)


def test_blocks_are_new_float64_vectors(whole):
    source, expected = whole
    first, second = source.block(4, 0, 10), source.block(5, 0, 10)
    assert first.dtype == torch.float64
    assert first.shape == (10,)
    assert torch.equal(first, expected[:10])
    assert not torch.equal(first, second)
    assert source.block(4, 10, 10).shape == (0,)


def test_any_cut_of_the_vector_gives_the_same_bits(whole):
    source, expected = whole
    generator = np.random.default_rng(0)
    edges = [1, 7, 8, 9, 63, GROUP - 1, GROUP, GROUP + 1, TILE - 1, TILE, TILE + 1, 2 * TILE + 5]
    starts = [0, *edges, *generator.integers(0, source.dimension, 40).tolist()]
    for start in starts:
        lengths = [1, 2, 3, 13, *generator.integers(1, source.dimension - start + 1, 2).tolist()]
        for length in lengths:
            stop = min(start + length, source.dimension)
            assert torch.equal(source.block(4, start, stop), expected[start:stop]), (start, stop)


def test_dimension_and_order_of_requests_do_not_matter(whole):
    expected = whole[1]
    for dimension in (1, 2, 9, GROUP + 1, TILE + 3):
        smaller = GaussianSource(NoiseKey.from_seed(5), dimension)
        smaller.block(9, 0, dimension)
        assert torch.equal(smaller.block(4, 0, dimension), expected[:dimension])


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_thread_count_does_not_matter(whole, threads):
    source, expected = whole
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        assert torch.equal(source.block(4, 0, source.dimension), expected)
    finally:
        torch.set_num_threads(before)


def test_requests_from_several_threads_do_not_disturb_each_other(whole):
    source, expected = whole
    wrong: list[int] = []

    def work(offset: int) -> None:
        right = expected[offset : offset + TILE]
        wrong.extend(
            offset for _ in range(10) if not torch.equal(source.block(4, offset, offset + TILE), right)
        )

    workers = [threading.Thread(target=work, args=(offset,)) for offset in (0, 1000, TILE)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


class CipherLog:
    """Stands in for `Cipher`: notes which keystream blocks are drawn, and draws them."""

    def __init__(self, real):
        self.real = real
        self.blocks: list[tuple[bytes, int]] = []

    def __call__(self, algorithm, mode):
        log, position, context = self, algorithm.nonce, self.real(algorithm, mode).encryptor()

        class Recorder:
            def encryptor(self):
                return self

            def update_into(self, data, buffer):
                first = int.from_bytes(position[:4], "little")
                log.blocks += [(position[4:], first + b) for b in range(-(-len(data) // 64))]
                return context.update_into(data, buffer)

        return Recorder()

    def take(self) -> list[tuple[bytes, int]]:
        taken, self.blocks = self.blocks, []
        return taken


@pytest.fixture
def cipher_log(monkeypatch):
    log = CipherLog(key_module.Cipher)
    monkeypatch.setattr(key_module, "Cipher", log)
    return log


def test_every_round_element_block_and_domain_has_its_own_keystream_block(cipher_log):
    """(domain, t, ⌊i/8⌋) ↦ (nonce, counter) is one to one, and a function."""
    owner: dict[tuple[bytes, int], tuple[int, int, int]] = {}
    rounds = (0, 1, 256, 2**32, 2**63)
    for domain in Domain:
        source = GaussianSource(NoiseKey(SECRET), MAX_DIMENSION, domain)
        for t in rounds:
            for start, stop in ((5, 2 * TILE + 5), (TILE - 1, TILE + 1), (0, 3), (2**34, 2**34 + 9)):
                source.block(t, start, stop)
                first = start // GROUP * GROUP // 8
                for offset, drawn in enumerate(cipher_log.take()):
                    assert owner.setdefault(drawn, (domain, t, first + offset)) == (domain, t, first + offset)
    groups = 2 * TILE // GROUP + 2
    wanted = len(Domain) * len(rounds) * groups * GROUP // 8
    assert len(owner) == len(set(owner.values())) == wanted


def test_a_run_with_shards_retries_and_domains_reuses_no_keystream_block(cipher_log, named_recurrence):
    """Every attempt at row t of a domain draws row t's own blocks again and no other row's."""
    rounds, d = 5, 2 * GROUP
    rows: dict[tuple[Domain, int], set[tuple[bytes, int]]] = {}
    for domain in Domain:
        source = GaussianSource(NoiseKey(SECRET), d, domain)
        for start, stop in ((0, 700), (700, d), (0, d)):
            noise = CorrelatedNoise(source, named_recurrence("banded-3", rounds), rounds, start, stop)
            for t in range(rounds):
                for _ in range(2):  # the second time is a retry after a failure
                    noise.seek(t)
                    cipher_log.take()
                    noise.add_(torch.zeros(stop - start), 1.0)
                    rows.setdefault((domain, t), set()).update(cipher_log.take())
    assert all(len(blocks) == d // 8 for blocks in rows.values())
    assert len(set().union(*rows.values())) == len(Domain) * rounds * d // 8


def test_no_value_ever_repeats():
    """Distinct variables are distinct numbers: 3 domains × 20 rounds × 10,001 elements."""
    parts = [
        GaussianSource(NoiseKey.from_seed(2), 10_001, domain).block(t, 0, 10_001)
        for domain in Domain
        for t in range(20)
    ]
    values = torch.cat(parts)
    assert values.unique().numel() == values.numel()


def test_the_last_element_of_the_largest_vector_exists_and_differs_from_the_first():
    source = GaussianSource(NoiseKey(SECRET), MAX_DIMENSION)
    tail = source.block(0, MAX_DIMENSION - 16, MAX_DIMENSION)
    assert not set(tail.tolist()) & set(source.block(0, 0, 64).tolist())


@pytest.mark.parametrize("dimension", [0, -1, 2**35, 10.0, True])
def test_a_bad_dimension_is_refused(dimension):
    with pytest.raises(ValueError, match=r"^d \(dimension\) must be an integer with 1 <= d < 2\^35; got"):
        GaussianSource(NoiseKey(SECRET), dimension)


@pytest.mark.parametrize("domain", [0, 4, "TRAINING", None])
def test_an_unknown_domain_is_refused(domain):
    with pytest.raises(ValueError, match=r"^domain .* TRAINING=1, FIRST_MOMENT=2, SECOND_MOMENT=3; got"):
        GaussianSource(NoiseKey(SECRET), 8, domain)


@pytest.mark.parametrize("t", [-1, 2**64])
def test_a_round_without_a_nonce_is_refused(t):
    with pytest.raises(ValueError, match=r"^t \(round\) must satisfy 0 <= t < 2\^64; got"):
        GaussianSource(NoiseKey(SECRET), 8).block(t, 0, 8)


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (0, 9), (5, 4)])
def test_a_block_outside_the_vector_is_refused(start, stop):
    with pytest.raises(ValueError, match=r"^start, stop \(elements\) must satisfy"):
        GaussianSource(NoiseKey(SECRET), 8).block(0, start, stop)


@pytest.mark.parametrize(
    ("nonce", "counter"), [(bytes(11), 0), (bytes(16), 0), (bytes(12), -1), (bytes(12), 2**32)]
)
def test_a_position_outside_the_keystream_is_refused(nonce, counter):
    with pytest.raises(ValueError, match=r"^nonce and counter"):
        NoiseKey(SECRET).keystream(nonce, counter)
