"""How many innovations float64 leaves open, what they cost, and k against mpmath.

python simulations/noise/settling.py [--elements 200000] [--size 10000000]
"""

from __future__ import annotations

import argparse
import time
from typing import Final

import numpy as np
from mpmath import mp, mpf

from fedmf.noise.innovations import WORDS, Innovations, round_normals, settle_in_pairs
from fedmf.noise.key import Domain, NoiseKey, nonce

SCALES: Final = (1.0, 2.0**20, 2.0**30, 2.0**33, 2.0**36, 2.0**40, 2.0**46)
ROUND: Final = 3
KEY: Final = NoiseKey.from_seed(5)
PRECISION: Final = 160


def words_of(start: int, count: int) -> np.ndarray:
    """Keystream of the row, from an element on."""
    stream = KEY.keystream(nonce(Domain.TRAINING, ROUND), start // 8)
    return np.frombuffer(bytearray(stream.update(bytes(8 * count))), np.uint64)


def nearest(u: int, v: int, sine: bool, scale: float) -> tuple[int, float]:
    """The integer nearest ρN by the first 64 bits of U and V, and its distance from the next
    one.
    """
    with mp.workprec(PRECISION):
        unit = mpf(2) ** -64
        radius = mp.sqrt(-2 * mp.log((u + mpf(1) / 2) * unit))
        turns = 2 * (v + mpf(1) / 2) * unit
        x = scale * radius * (mp.sinpi(turns) if sine else mp.cospi(turns))
        k = mp.nint(x)
        return int(k), float(mpf(1) / 2 - abs(x - k))


def compare(scale: float, elements: int) -> str:
    """Whole rows against 160 bits."""
    row = Innovations(KEY, Domain.TRAINING).row(ROUND, scale, elements)
    words = words_of(0, -(-elements // 8) * 8).tolist()
    wrong = 0
    undetermined = 0
    for i in range(elements):
        block = i - i % 8
        k, distance = nearest(words[block + i % 4], words[block + 4 + i % 4], i % 8 > 3, scale)
        if distance < scale * 2.0**-58:  # further bits decide
            undetermined += 1
        elif k != row[i]:
            wrong += 1
    return (
        f"{elements} against {PRECISION} bits: {wrong} wrong, {undetermined} not determined by 64"
        " bits"
    )


def count(scale: float, size: int) -> str:
    """Open elements a million, and processor seconds of what settles them."""
    k = np.empty(WORDS, np.int64)
    places = np.empty(WORDS, np.int64)
    innovations = Innovations(KEY, Domain.TRAINING)
    opened = 0
    left = 0
    pairs = 0.0
    last = 0.0
    for start in range(0, size, WORDS):
        words = words_of(start, WORDS)
        found = round_normals(words, scale, k, places)
        opened += found
        begun = time.process_time()
        found = settle_in_pairs(words, scale, k, places, found)
        pairs += time.process_time() - begun
        left += found
        begun = time.process_time()
        for place in places[:found].tolist():
            first = place - place % 8 + place % 4
            known = int(words[first]), int(words[first + 4])
            counter = 4 * ((start + place) // 8) + place % 4
            innovations._settle(0, ROUND, counter, known, place % 8 > 3, scale)
        last += time.process_time() - begun
    million = size / 1e6
    return (
        f"open {opened / million:.1f} in a million, after pairs {left / million:.2f}; "
        f"{pairs:.3f} + {last:.3f} s of {size} elements"
    )


def main() -> None:
    """Print two lines for each ρ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--elements", type=int, default=200_000, help="compared with mpmath, for each ρ"
    )
    parser.add_argument(
        "--size", type=int, default=10**7, help="of the rows whose open elements are counted"
    )
    options = parser.parse_args()
    for scale in SCALES:
        print(f"ρ = {scale:g} (2^{np.log2(scale):g}): {count(scale, options.size)}", flush=True)
        print(f"    {compare(scale, options.elements)}", flush=True)


if __name__ == "__main__":
    main()
