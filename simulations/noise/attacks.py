"""Attacks on the last bits of released sums, against what (ε, δ) allows.

    python simulations/noise/attacks.py [--trials 700] [--releases 100000] [--json]

Everything is released by `NoiseStream`. The first three attacks know all but one bit: whether a sum
is x or 0. The fourth asks whether a pair of released integers is impossible in the other world. The
fifth looks at parities, which show G where the whole form of a row is rounded at once. A rate is
allowed if it is at most Φ(μ/2), the largest for any attack on a mechanism with that μ; its interval
is Clopper and Pearson's, 99.9 %.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import torch
from mpmath import mp, mpf
from scipy.stats import beta, norm

from fedmf.accounting.gaussian import gaussian_mu, gaussian_sigma
from fedmf.matrices.banded import Banded
from fedmf.matrices.factorization import Factorization
from fedmf.mechanisms.closed_forms import identity
from fedmf.noise.innovations import nearest_integer
from fedmf.noise.key import Domain, NoiseKey
from fedmf.noise.noise_stream import NoiseStream
from fedmf.noise.units import Part, calibrated

EPSILON: Final = 1.0
DELTA: Final = 1e-6
SIGMA: Final = gaussian_sigma(EPSILON, DELTA)
SIZE: Final = 16
#: The user's two values, at the two elements that one pair of normals covers.
VALUES: Final = (0.6, 0.7)
PLACES: Final = [0, 4]
#: Bits of U and V in the pairs of normals that are looked for.
BITS: Final = 320
HALVES: Final = Banded([[1.0, 0.5], [1.0, 0.0]])


def interval(right: int, trials: int) -> tuple[float, float]:
    """Of a rate, 99.9 %."""
    low = beta.ppf(0.0005, right, trials - right + 1) if right else 0.0
    high = beta.isf(0.0005, right + 1, trials - right) if right < trials else 1.0
    return float(low), float(high)


def told(name: str, right: int, trials: int) -> dict[str, Any]:
    """A row of the table."""
    low, high = interval(right, trials)
    allowed = float(norm.cdf(gaussian_mu(SIGMA) / 2))
    return {
        "name": name,
        "right": right,
        "trials": trials,
        "rate": right / trials,
        "interval": [low, high],
        "allowed": allowed,
        "within": low <= allowed,
    }


def releases(C: Factorization, totals: torch.Tensor) -> tuple[np.ndarray, int, float]:
    """Release sums with a key of its own; returns o, B and τ in units."""
    std, rounding = calibrated([Part(C, totals.shape[1], 1)], sensitivity=1.0, multiplier=SIGMA)
    del std
    noise = rounding.parts[0]
    stream = NoiseStream(
        NoiseKey.from_os(),
        Domain.TRAINING,
        C.streaming_inverse(),
        len(totals),
        totals.shape[1],
        noise.std,
    )
    stream.release_rows(totals)
    return totals.numpy(), noise.bits, noise.std


def pair_of_bits(first: Any, second: Any, size: int) -> tuple[Any, Any]:
    """U·2^size and V·2^size of the pair of normals (first, second)."""
    square = mpf(first) ** 2 + mpf(second) ** 2
    turn = mp.atan2(second, first) / (2 * mp.pi) % 1
    return mp.exp(-square / 2) * mpf(2) ** size, turn * mpf(2) ** size


def off_lattice(first: Any, second: Any, size: int) -> float:
    """How far a pair is from the lattice of words of so many bits."""
    u, v = pair_of_bits(first, second, size)
    far = 0.0
    for value in (u, v):
        word = value - mpf(1) / 2
        far = max(far, float(abs(word - mp.nint(word))))
    return far


def guesses(trials: int) -> dict[str, int]:
    """How often each attack says rightly whether the sum was x or 0."""
    rng = np.random.default_rng(0)
    right = dict.fromkeys(("lattice of 32 bits", "lattice of 64 bits", "likelihood ratio"), 0)
    for _ in range(trials):
        truth = int(rng.integers(2))
        total = torch.zeros(1, SIZE, dtype=torch.int64)
        bits = integer_bits()
        x = [math.trunc(value * 2**bits) for value in VALUES]
        if truth:
            total[0, PLACES] = torch.tensor(x)
        o, _, std = releases(identity(1), total)
        pair = [int(value) for value in o[0, PLACES]]
        with mp.workprec(256):
            zero = mpf(pair[0]) / mpf(std), mpf(pair[1]) / mpf(std)
            other = mpf(pair[0] - x[0]) / mpf(std), mpf(pair[1] - x[1]) / mpf(std)
            for size in (32, 64):
                says = off_lattice(other[0], other[1], size) < off_lattice(zero[0], zero[1], size)
                right[f"lattice of {size} bits"] += int(says == truth)
        score = sum(value * each for value, each in zip(pair, x, strict=True))
        says = 2 * score > sum(each * each for each in x)
        right["likelihood ratio"] += int(says == truth)
    return right


def integer_bits() -> int:
    """B of these releases."""
    _, rounding = calibrated([Part(identity(1), SIZE, 1)], sensitivity=1.0, multiplier=SIGMA)
    return rounding.parts[0].bits


def impossible(count: int) -> int:
    """How many of so many released pairs cannot come from the other world.

    For each pair the bits of U and V are computed that give it in the other world, and given to the
    package's own rounding.
    """
    bits = integer_bits()
    totals = torch.zeros(1, 8 * -(-count // 4), dtype=torch.int64)
    o, _, std = releases(identity(1), totals)
    blocks = o[0].reshape(-1, 2, 4)
    x = [math.trunc(value * 2**bits) for value in VALUES]
    found = 0
    with mp.workprec(BITS + 64):
        for first, second in zip(
            blocks[:, 0].ravel()[:count], blocks[:, 1].ravel()[:count], strict=True
        ):
            wanted = int(first) - x[0], int(second) - x[1]
            scale = std * (1 + 2.0**-50)
            u, v = pair_of_bits(mpf(wanted[0]) / mpf(scale), mpf(wanted[1]) / mpf(scale), BITS)
            made = tuple(
                nearest_integer(int(u), int(v), BITS, sine, scale) for sine in (False, True)
            )
            found += made != wanted
    return found


def parity(count: int, whole: bool) -> tuple[int, int]:
    """How often the parity of the second release tells G, and of how many where the first is odd.

    Args:
        count: independent pairs of rounds.
        whole: round the whole form at once, as the package must never do.
    """
    rng = np.random.default_rng(1)
    truth = rng.integers(0, 2, count)
    totals = torch.zeros(2, count, dtype=torch.int64)
    totals[1] = torch.from_numpy(truth)
    o, _, std = releases(HALVES, totals)
    if whole:
        k = np.rint(rng.standard_normal((2, count)) * std)
        o = np.stack([k[0], truth + np.rint(k[1] - 0.5 * k[0])]).astype(np.int64)
    odd = o[0] % 2 == 1
    says = o[1] % 2
    return int((says == truth)[odd].sum()), int(odd.sum())


def rows(trials: int, count: int) -> Iterator[dict[str, Any]]:
    """All attacks."""
    for name, right in guesses(trials).items():
        yield told(name, right, trials)
    yield {"name": "impossible in the other world", "right": impossible(count), "trials": count}
    yield told("parity", *parity(count, whole=False))
    yield told("parity, whole form rounded (not the package)", *parity(count, whole=True))


def main() -> None:
    """Print a line an attack."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=700)
    parser.add_argument("--releases", type=int, default=100_000)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args()
    for row in rows(options.trials, options.releases):
        if options.json:
            print(json.dumps(row), flush=True)
            continue
        line = f"{row['name']:45s} {row['right']:6d} of {row['trials']}"
        if "rate" in row:
            low, high = row["interval"]
            verdict = "within" if row["within"] else "MORE THAN ALLOWED"
            line += (
                f"  {row['rate']:.3f} [{low:.3f}, {high:.3f}], allowed {row['allowed']:.3f}:"
                f" {verdict}"
            )
        print(line, flush=True)


if __name__ == "__main__":
    main()
