"""Attacks on releases with all that is public: they read rows of float noise, and fail here.

Box–Muller pairs of float noise lie on a lattice, as −ln U and the angle come from whole words. An
attacker who guesses two entries of a row correctly finds their noise on it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from support.released_integers import captured
from support.streams import run_once, write_rows

from fedmf.accounting.gaussian import gaussian_mu, gaussian_sigma
from fedmf.matrices.factorization import Factorization
from fedmf.matrices.toeplitz import Toeplitz
from fedmf.mechanisms.closed_forms import cgd, identity
from fedmf.noise.key import Domain
from fedmf.streaming import PrivateStream, Settings

ROWS = 40
COLUMNS = 9
#: Entries of a row that share a pair of normals.
PAIR = [0, 4]
WORDS = 2.0**32


def distances(released: np.ndarray, guesses: np.ndarray, std: float) -> np.ndarray:
    """How far the noise under each guess is from the lattice of words of 32 bits, of at most ½.

    Args:
        released: the two numbers.
        guesses: shape (guesses, 2).
        std: of the noise.
    """
    noise = (released - guesses) / std
    radius_words = np.exp(-(noise**2).sum(axis=1) / 2) * WORDS - 0.5
    angle_words = np.arctan2(noise[:, 1], noise[:, 0]) % (2 * np.pi) / (2 * np.pi) * WORDS - 0.5
    apart = [np.abs(words - np.rint(words)) for words in (radius_words, angle_words)]
    return np.maximum(apart[0], apart[1])


def lattice_noise(rng: np.random.Generator, pairs: int) -> np.ndarray:
    """Normals as float64 noise has them, made of two words each pair."""
    words = rng.integers(0, 2**32, size=(pairs, 2)) + 0.5
    radius = np.sqrt(-2 * np.log(words[:, 0] / WORDS))
    angle = 2 * np.pi * words[:, 1] / WORDS
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)


def read(released: np.ndarray, truth: np.ndarray, std: float) -> int:
    """In how many rows the nearest of all guesses of two integers from 0 to 99 is the truth."""
    guesses = np.stack(np.meshgrid(np.arange(100), np.arange(100)), axis=-1).reshape(-1, 2)
    found = [guesses[np.argmin(distances(row, guesses, std))] for row in released]
    return int((np.array(found) == truth).all(axis=1).sum())


def test_integer_columns_are_not_read(tmp_path: Path) -> None:
    """ε = 1, independent noise, sums as they are written; by chance 40 rows in 10⁴ guesses, 3 in
    10⁶.
    """
    rng = np.random.default_rng(0)
    x = rng.integers(0, 100, size=(ROWS, COLUMNS)).astype(float)
    settings = Settings(
        1.0,
        1e-6,
        clip_norm=300.0,
        mechanisms=("identity",),
        workloads=("prefix",),
        rounds=ROWS,
        second_moment="trace",
    )
    source = write_rows(tmp_path / "rows.csv", x)
    statement = run_once(tmp_path, settings, source, "out.csv", raw=True)
    written = np.genfromtxt(tmp_path / "out.csv", delimiter=",", names=True, deletechars="")
    sums = np.stack([written[f"sum:x{i}"] for i in range(COLUMNS)], axis=1)
    released = np.diff(sums, axis=0, prepend=0.0)[:, PAIR]
    std = statement["noise_std"]
    assert np.std(released - x[:, PAIR]) == pytest.approx(std, rel=0.5)
    assert read(released, x[:, PAIR], std) < 3
    of_floats = x[:, PAIR] + std * lattice_noise(rng, ROWS)
    assert read(of_floats, x[:, PAIR], std) == ROWS


def test_whether_a_row_is_there_is_told_no_better_than_by_the_guarantee(tmp_path: Path) -> None:
    """x or the zero row, 300 times: by the lattice, and by the likelihood of what was released."""
    rng = np.random.default_rng(1)
    count = 300
    x = np.zeros(COLUMNS)
    x[PAIR] = 0.6, 0.7
    truth = rng.integers(0, 2, count)
    budget = {
        "epsilon": 1.0,
        "delta": 1e-6,
        "clip_norm": 1.0,
        "dimension": COLUMNS,
        "rounds": count,
    }
    with PrivateStream(
        tmp_path, **budget, mechanisms="identity", workloads="prefix", second_moment="trace"
    ) as stream:
        stream.push_many(np.outer(truth, x), [f"u{i}" for i in range(count)])
        std = stream.statement()["noise_std"]
        sums = np.stack([stream.release(t).sum for t in range(1, count + 1)])  # type: ignore[misc]
    released = np.diff(sums, axis=0, prepend=0.0)[:, PAIR]
    guesses = np.stack([0 * x[PAIR], x[PAIR]])
    by_lattice = [int(np.argmin(distances(row, guesses, std))) for row in released]
    by_likelihood = released @ x[PAIR] > x[PAIR] @ x[PAIR] / 2
    allowed = stats.norm.cdf(gaussian_mu(gaussian_sigma(1.0, 1e-6)) / 2)
    for guessed in (by_lattice, by_likelihood):
        assert np.equal(guessed, truth).sum() <= stats.binom.isf(1e-6, count, allowed)
    of_floats = np.outer(truth, x[PAIR]) + std * lattice_noise(rng, count)
    read_of_floats = [int(np.argmin(distances(row, guesses, std))) for row in of_floats]
    assert np.equal(read_of_floats, truth).sum() > stats.binom.isf(1e-6, count, allowed)


COUNT = 2000


@pytest.mark.parametrize(
    "made",
    [
        Toeplitz(np.array([1.0, 0.5]), COUNT),
        cgd(0.5, COUNT),
        identity(COUNT),
        "banded-toeplitz",
        "blt",
    ],
    ids=["feedback", "feedforward", "identity", "banded-toeplitz", "blt"],
)
def test_low_bits_of_what_leaves_are_uniform_in_every_world(
    made: str | Factorization, tmp_path: Path
) -> None:
    """One column, zeros or ones: no residue tells which, as the parity of rint(k − R) does for
    halves.

    χ² of o mod 8, false alarm 1e-6; of sums and differences of two releases too.
    """
    for value in (0.0, 1.0):
        folder = tmp_path / str(value)
        folder.mkdir()
        settings = Settings(
            1.0,
            1e-6,
            clip_norm=1.0,
            mechanisms=(made,),
            rounds=COUNT,
            second_moment="trace",
            bands=3 if made == "banded-toeplitz" else None,
        )
        source = write_rows(folder / "rows.csv", np.full((COUNT, 1), value))
        with captured() as integers:
            run_once(folder, settings, source)
        for domain in (Domain.FIRST_MOMENT, Domain.SECOND_MOMENT):
            o = np.stack(integers[domain])[:, 0]
            for numbers in (o, o[1::2] - o[::2], o[1::2] + o[::2]):
                assert stats.chisquare(np.bincount(numbers % 8, minlength=8)).pvalue > 1e-6
