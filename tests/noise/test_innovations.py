"""k is the nearest integer: decided by float64, by pairs and by mpmath, all against 420 bits."""

from __future__ import annotations

import types
from collections.abc import Callable
from itertools import product

import mpmath
import numpy as np
import pytest
from support import noise_oracle

from fedmf.noise import innovations
from fedmf.noise import key as key_module
from fedmf.noise.innovations import Innovations
from fedmf.noise.key import Domain, NoiseKey

SECRET = bytes(range(32))
SCALES = [1.0, 2.0**10 * 1.1, 2.0**30 * 1.2345, 2.0**36, 2.0**40 * 1.2345, 2.0**46]
EPSILON = 2.0**-53
TOP = 2**64 - 1
SEAM = int(2**64 * 0.5**0.5)

RADIUS_WORDS = [
    *(0, 1, 2, 3, 1000, 2**20, 2**44, 2**52 - 1, 2**52, 2**52 + 1),
    *(SEAM >> 1, SEAM - 1, SEAM, SEAM + 1, 2**63 - 1, 2**63),
    *(
        TOP,
        TOP - 1,
        TOP - 1000,
        TOP - 2**20,
        TOP - 2**39,
        TOP - 2**39 + 1,
        TOP - 2**39 - 1,
        TOP - 2**45,
    ),
]
ANGLE_WORDS = [
    *(0, 1, 2, TOP, TOP - 1, 12345 * 2**48),
    *(q * 2**61 + offset for q in range(1, 8) for offset in (-1, 0, 1)),
    *(2**31, 2**62 - 2**20, 2**32 - 1, 3 * 2**60),
]


def extreme_words() -> np.ndarray:
    """Every radius word with every angle word, four pairs a block."""
    pairs = list(product(RADIUS_WORDS, ANGLE_WORDS))
    pairs += [(2**63, 2**61)] * (-len(pairs) % 4)
    table = np.array(pairs, np.uint64).reshape(-1, 4, 2)
    return np.ascontiguousarray(table.swapaxes(1, 2)).reshape(-1)


def keystream(t: int, count: int) -> np.ndarray:
    """Words of a row of training."""
    nonce = key_module.nonce(Domain.TRAINING, t)
    return np.frombuffer(
        NoiseKey(SECRET).keystream(nonce, 0).update(bytes(8 * count)), np.uint64
    ).copy()


def words_of(words: np.ndarray, place: int) -> tuple[int, int, bool]:
    """U's word, V's word and whether the element is the sine."""
    start = place - place % 8 + place % 4
    return int(words[start]), int(words[start + 4]), place % 8 > 3


def ambiguous(u: int, v: int, sine: bool, scale: float) -> bool:
    """Return True if 64 bits of U and V leave more than one integer."""
    corners = set()
    for a, b in product((0, TOP), repeat=2):
        corners.add(noise_oracle.nearest((u << 64) + a, (v << 64) + b, 128, sine, scale))
    # ρN is monotone in U, and in V but at the borders of quadrants, where all is far from a half.
    return len(corners) > 1


Rounding = Callable[..., int]


def decided(
    words: np.ndarray, scale: float, round_normals: Rounding = innovations.round_normals
) -> tuple[np.ndarray, set[int]]:
    """Return the integers of float64, and the places that it leaves open."""
    k = np.empty(words.size, np.int64)
    places = np.empty(words.size, np.int64)
    count = round_normals(words, scale, k, places)
    assert len(set(places[:count].tolist())) == count
    return k, set(places[:count].tolist())


def wrong_places(words: np.ndarray, scale: float, k: np.ndarray, leave: set[int]) -> list[int]:
    """Decided elements that are not the nearest integer."""
    wrong = []
    for place in range(words.size):
        u, v, sine = words_of(words, place)
        if place not in leave and int(k[place]) != noise_oracle.nearest(u, v, 64, sine, scale):
            wrong.append(place)
    return wrong


def undue_places(words: np.ndarray, scale: float, open_places: set[int]) -> list[int]:
    """Return elements that should have been left open, or decided, by the documented bound.

    They are decided within three quarters of it, or open far outside of it.
    """
    undue = []
    for place in range(words.size):
        u, v, sine = words_of(words, place)
        distance, radius, uniform = noise_oracle.distance_to_half(u, v, 64, sine, scale)
        bound = scale * EPSILON * (6 + 9 * radius)
        if uniform < 2.0**-12:
            bound += scale / (max(u, 0.5) * radius)
        if distance < 0.75 * bound or 1 - uniform < 2.0**-26:
            if place not in open_places:
                undue.append(place)
        elif distance > 1.5 * bound + 2.0**-50 and 1 - uniform > 2.0**-24 and place in open_places:
            undue.append(place)
    return undue


@pytest.mark.parametrize("scale", SCALES)
def test_what_float64_decides_is_the_nearest_integer(scale: float) -> None:
    words = np.concatenate([extreme_words(), keystream(0, 400)])
    k, open_places = decided(words, scale)
    assert wrong_places(words, scale, k, open_places) == []
    assert len(open_places) < words.size


@pytest.mark.parametrize("scale", [2.0**30, 2.0**40, 2.0**46])
def test_the_bound_of_float64_is_the_documented_one(scale: float) -> None:
    words = np.concatenate([extreme_words(), keystream(1, 2000)])
    _, open_places = decided(words, scale)
    assert undue_places(words, scale, open_places) == []


def rounding_with(epsilon: float) -> Rounding:
    """The kernel with another constant in its bound, not compiled."""
    original = innovations.round_normals.py_func
    names = {
        **original.__globals__,
        "_EPSILON": epsilon,
        "_integer": lambda x: np.float64(x).view(np.int64),
    }
    return types.FunctionType(original.__code__, names)


def coefficients(letter: str, count: int) -> list[mpmath.mpf]:
    """The coefficients of a polynomial of the float64 path, the highest first."""
    return [mpmath.mpf(getattr(innovations, f"_{letter}{i}")) for i in reversed(range(count))]


def test_the_polynomials_have_the_documented_errors() -> None:
    """0.6·2⁻⁵³ for cosine and sine, and 0.1·2⁻⁵³ relative for the logarithm, at 1,000 points."""
    with mpmath.workdps(50):
        unit = mpmath.mpf(2) ** -53
        half_pi = mpmath.mpf(innovations._HALF_PI) + mpmath.mpf(innovations._HALF_PI_LOW)
        for k in range(1, 1001):
            x = mpmath.mpf(k) / 2000
            cosine = 1 + x**2 * mpmath.polyval(coefficients("C", 6), x**2)
            sine = x * (half_pi + x**2 * mpmath.polyval(coefficients("S", 6), x**2))
            assert abs(cosine - mpmath.cos(mpmath.pi * x / 2)) <= 0.6 * unit
            assert abs(sine - mpmath.sin(mpmath.pi * x / 2)) <= 0.6 * unit
            s = x * (mpmath.sqrt(2) - 1) ** 2 * 2  # (m − 1)/(m + 1) for m ≤ √2
            true = -2 * mpmath.log((1 + s) / (1 - s))
            logarithm = s * (s**2 * mpmath.polyval(coefficients("L", 7), s**2) - 4)
            assert abs(logarithm - true) <= 0.1 * unit * abs(true)


def test_a_bound_that_is_too_small_is_seen() -> None:
    """Half the bound contradicts the argument; a hundredth also gives wrong integers."""
    words = keystream(2, 4000)
    scale = 2.0**46
    k, open_places = decided(words, scale)
    as_compiled, same_places = decided(words, scale, rounding_with(EPSILON))
    assert np.array_equal(k, as_compiled)
    assert open_places == same_places
    _, open_places = decided(words, scale, rounding_with(EPSILON / 2))
    assert undue_places(words, scale, open_places) != []
    k, open_places = decided(words, scale, rounding_with(EPSILON / 100))
    assert wrong_places(words, scale, k, open_places) != []


@pytest.mark.parametrize("scale", [2.0**30 * 1.1, 2.0**36, 2.0**46])
def test_what_pairs_decide_is_the_nearest_integer(scale: float) -> None:
    """All elements go through the pairs; what they leave is not determined by 64 bits, or nearly
    so.
    """
    extreme = extreme_words()
    words = np.concatenate([extreme, keystream(3, 800)])
    k = np.full(words.size, -1, np.int64)
    places = np.arange(words.size)
    left = innovations.settle_in_pairs(words, scale, k, places, words.size)
    leave = set(places[:left].tolist())
    assert wrong_places(words, scale, k, leave) == []
    assert sum(place >= extreme.size for place in leave) <= 3
    for place in range(words.size):
        if ambiguous(*words_of(words, place), scale):
            assert place in leave


@pytest.mark.parametrize("scale", [1.0, 2.0**36, 2.0**46])
def test_mpmath_decides_only_what_the_bits_determine(scale: float) -> None:
    words = np.concatenate([extreme_words()[::7], keystream(4, 100)])
    none = 0
    for place in range(words.size // 8 * 8):
        u, v, sine = words_of(words, place)
        nearest = innovations.nearest_integer(u, v, 64, sine, scale)
        if nearest is None:
            none += 1
        else:
            assert nearest == noise_oracle.nearest(u, v, 64, sine, scale)
            assert not ambiguous(u, v, sine, scale)
    assert 0 < none < words.size


def exact(t: int, places: range | list[int], scale: float, domain: int = 1) -> list[int]:
    return [noise_oracle.innovation(SECRET, domain, t, i, scale) for i in places]


@pytest.mark.parametrize("scale", [1.0, 2.0**36 * 1.01, 2.0**46])
def test_a_row_is_the_correct_rounding_of_the_documented_normals(scale: float) -> None:
    row = Innovations(NoiseKey(SECRET), Domain.TRAINING).row(7, scale, 603)
    assert row.tolist() == exact(7, range(603), scale)


def test_all_undecided_elements_of_a_long_row_are_right() -> None:
    scale = 2.0**36
    size = 1 << 18
    open_places: list[int] = []
    for start in range(0, size, innovations.WORDS):
        part = keystream(9, size)[start : start + innovations.WORDS]
        open_places += [start + place for place in decided(part, scale)[1]]
    assert 40 <= len(open_places) <= 150  # 86 expected
    row = Innovations(NoiseKey(SECRET), Domain.TRAINING).row(9, scale, size)
    assert row[open_places].tolist() == exact(9, open_places, scale)


class Forced(Innovations):
    """Finds words of its own in place of the first bits, so that further ones are needed."""

    def __init__(self, words: np.ndarray) -> None:
        super().__init__(NoiseKey(SECRET), Domain.TRAINING)
        self._given = words

    def _draw_words(self, opening: int, t: int, block: int, begin: int, count: int) -> None:
        self._words[begin : begin + count] = self._given[8 * block : 8 * block + count]


@pytest.mark.parametrize("scale", [2.0**36, 2.0**46])
def test_further_bits_are_those_of_their_own_nonce(scale: float) -> None:
    words = extreme_words()
    row = Forced(words).row(5, scale, words.size)
    needed = 0
    for place in range(words.size):
        u, v, sine = words_of(words, place)
        more = noise_oracle.block(
            SECRET, 1 | noise_oracle.MORE_BITS, 5, 4 * (place // 8) + place % 4
        )
        for step in range(4):
            u = u << 64 | more[step]
            v = v << 64 | more[4 + step]
        assert int(row[place]) == noise_oracle.nearest(u, v, 320, sine, scale)
        needed += ambiguous(*words_of(words, place), scale)
    assert needed > 10


RFC_NONCE = bytes.fromhex("000000090000004a00000000")
RFC_BLOCK = bytes.fromhex(
    "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
    "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
)


def test_keystream_is_rfc_8439() -> None:
    """The test vector of RFC 8439 §2.3.2."""
    assert NoiseKey(SECRET).keystream(RFC_NONCE, 1).update(bytes(64)) == RFC_BLOCK


def test_layout_is_the_documented_one_for_every_domain_and_far_rounds() -> None:
    scale = 1000.0
    for domain in (*Domain, Domain.of_statistic("norms")):
        for t in (0, 2**32, 2**64 - 1):
            row = Innovations(NoiseKey(SECRET), domain).row(t, scale, 11)
            assert row.tolist() == exact(t, range(11), scale, int(domain))
    last = innovations.MAX_DIMENSION // innovations.BLOCK - 2
    k = np.empty((1, 16), np.int64)
    Innovations(NoiseKey(SECRET), Domain.TRAINING).draw([3], np.array([scale]), last, k)
    assert k[0].tolist() == exact(3, range(8 * last, 8 * last + 16), scale)


class CipherLog:
    """Stands in for `Cipher`: notes which keystream blocks are drawn, and draws them."""

    def __init__(self, real):
        self.real = real
        self.blocks: list[tuple[bytes, int]] = []

    def __call__(self, algorithm, mode):
        log = self
        position = algorithm.nonce
        context = self.real(algorithm, mode).encryptor()

        class Recorder:
            nonce = position[4:]
            at = int.from_bytes(position[:4], "little")

            def encryptor(self):
                return self

            def reset_nonce(self, position):
                self.nonce = position[4:]
                self.at = int.from_bytes(position[:4], "little")
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
        taken = self.blocks
        self.blocks = []
        return taken


@pytest.fixture
def cipher_log(monkeypatch: pytest.MonkeyPatch) -> CipherLog:
    log = CipherLog(key_module.Cipher)
    monkeypatch.setattr(key_module, "Cipher", log)
    return log


def test_every_domain_round_and_block_has_its_own_keystream(cipher_log: CipherLog) -> None:
    """(domain, t, ⌊i/8⌋) ↦ (nonce, counter) is one to one; further bits meet neither these nor each
    other.
    """
    owner: dict[tuple[bytes, int], tuple[int, int, int]] = {}
    further: dict[tuple[bytes, int], tuple[int, int, int]] = {}
    last = innovations.MAX_DIMENSION // innovations.BLOCK
    for domain in (*Domain, Domain.of_statistic("norms")):
        source = Innovations(NoiseKey(SECRET), domain)
        for t in (0, 1, 256, 2**32, 2**63):
            for first, blocks in ((0, 3), (2, 2), (8191, 2), (last - 2, 2)):
                source.draw([t], np.array([9.0]), first, np.empty((1, 8 * blocks), np.int64))
                plain = cipher_log.take()
                for j in range(4):
                    source._settle(0, t, 4 * first + j, (2**63, 0), False, 9.0)
                more = [block for block in cipher_log.take() if block[0][3] & 0x80]
                assert len(plain) == blocks
                for offset, block in enumerate(plain):
                    name = (domain, t, first + offset)
                    assert owner.setdefault(block, name) == name
                    assert not block[0][3] & 0x80
                for j, block in enumerate(more):
                    name = (domain, t, 4 * first + j)
                    assert further.setdefault(block, name) == name
    assert len(owner) == len(set(owner.values()))
    assert len(further) == len(set(further.values()))
    assert max(counter for _, counter in further) < 2**32
    assert not set(further) & set(owner)


def test_rounds_and_keystream_positions_out_of_range_are_rejected() -> None:
    key = NoiseKey(SECRET)
    source = Innovations(key, Domain.TRAINING)
    for message, use in (
        (r"^t \(round\) must satisfy 0 <= t < 2\^64; got", lambda: source.row(-1, 1.0, 8)),
        (r"^t \(round\) must satisfy 0 <= t < 2\^64; got", lambda: source.row(2**64, 1.0, 8)),
        (r"^nonce and counter", lambda: key.keystream(bytes(11), 0)),
        (r"^nonce and counter", lambda: key.keystream(bytes(12), 2**32)),
    ):
        with pytest.raises(ValueError, match=message):
            use()
