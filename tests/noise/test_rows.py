"""Rows of integers of every mechanism against rational arithmetic, and the same however they are
made.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
import pytest
import torch
from support.exact_forms import exact_form
from support.oracles import scalar_sensitivity

from fedmf.matrices.blt import BufferedToeplitz
from fedmf.matrices.factorization import Factorization, Stamped, normalized
from fedmf.matrices.sensitivity import sensitivity_of
from fedmf.matrices.streaming_inverse import Recurrence, Stream, StreamingInverse
from fedmf.matrices.toeplitz import Toeplitz
from fedmf.mechanisms.registry import build, names
from fedmf.mechanisms.tree_families import kary_tree, tree
from fedmf.noise import noise_stream as noise_stream
from fedmf.noise import rows as noise_rows
from fedmf.noise.innovations import Innovations
from fedmf.noise.key import Domain, NoiseKey
from fedmf.noise.noise_stream import NoiseStream
from fedmf.noise.rows import rule_of
from fedmf.participation import Participation

ROUNDS = 13
TAKEN = 3
APART = 4
KEY = NoiseKey.from_seed(8)
STD = 1.1 * 2.0**34
#: Standard deviations within which everything lies.
FARTHEST = 20.0

# Matrices of this size with condition below 1e4, and sums of at most 13 terms.
ROUNDING = 1e-11

OTHERS = {
    "online tree": tree(ROUNDS, full=False),
    "normalized online tree": normalized(tree(ROUNDS, full=False)),
    "normalized full tree": normalized(tree(ROUNDS)),
    "ternary tree": kary_tree(3, ROUNDS),
    "normalized ternary tree": normalized(kary_tree(3, ROUNDS)),
    "stamped tree": Stamped(tree(4), ROUNDS),
    "stamped online tree": Stamped(tree(5, full=False), ROUNDS),
    "stamped ternary tree": Stamped(kary_tree(3, 5), ROUNDS),
    "stamped blt": Stamped(BufferedToeplitz([0.9, 0.5], [0.3, 0.2], 5), ROUNDS),
    "stamped bands": Stamped(Toeplitz([1.0, 0.5, 0.25], 5), ROUNDS),
    "crowded blt": BufferedToeplitz([1 - 1e-6, 1 - 2e-6, 1 - 3e-6, 1 - 4e-6], [0.2] * 4, ROUNDS),
}


def mechanism(name: str) -> Factorization:
    if name in OTHERS:
        return OTHERS[name]
    return build(name, Participation(ROUNDS, TAKEN, APART)).factorization


def made_rows(inverse: StreamingInverse, std: float, d: int) -> tuple[np.ndarray, np.ndarray]:
    """k and X of all rounds; k by itself."""
    n = inverse.rounds
    noise = NoiseStream(KEY, Domain.TRAINING, inverse, n, d, std)
    x = torch.zeros(n, d, dtype=torch.int64)
    noise.release_rows(x)
    scales = std * inverse.diagonal() * (1 + 2.0**-50)
    innovations = Innovations(KEY, Domain.TRAINING)
    k = np.stack([innovations.row(t, float(scales[t]), d) for t in range(n)])
    return k, x.numpy()


def check_rows(C: Factorization, k: np.ndarray, x: np.ndarray, std: float) -> None:
    """|e| ≤ ½ + η, and D·k = C·X − B·e with no error at all."""
    inverse = C.streaming_inverse()
    rule = rule_of(inverse)
    form = exact_form(inverse)
    errors = form.errors(k, x)
    eta = rule.rounding_bound(FARTHEST * std, float(np.sqrt(C.noise_row_variances().max())))
    assert eta < 0.02
    assert max(abs(e) for row in errors for e in row) <= Fraction(1, 2) + Fraction(eta)
    assert rule.spread_by_strategy == form.of_innovations
    balance = form.balance(k, x, errors, rule.spread_by_strategy)
    assert not any(value for row in balance for value in row)


@pytest.mark.parametrize("name", [*names(), *OTHERS])
def test_rows_keep_the_relation_of_the_theorem(name: str) -> None:
    """And the worst pattern of the matrix that they belong to has the stated sensitivity."""
    C = mechanism(name)
    k, x = made_rows(C.streaming_inverse(), STD, 7)
    check_rows(C, k, x, STD)
    streamed = np.array(exact_form(C.streaming_inverse()).strategy, float)
    dense = C.materialize()
    np.testing.assert_allclose(streamed, dense, rtol=0, atol=ROUNDING * np.abs(dense).max())
    stated = sensitivity_of(C, Participation(ROUNDS, TAKEN, APART))
    worst = scalar_sensitivity(streamed, TAKEN, APART)
    assert worst <= stated.value * (1 + ROUNDING)
    if stated.kind == "exact":
        assert worst == pytest.approx(stated.value, rel=1e-9)


def test_no_innovation_has_less_noise_than_is_due() -> None:
    """ρ_t·C_tt ≥ τ in exact arithmetic."""
    for name in (
        "normalized-cgd",
        "normalized-banded-toeplitz",
        "normalized-blt",
        "tree",
        "kary-tree",
    ):
        C = mechanism(name)
        noise = NoiseStream(KEY, Domain.TRAINING, C.streaming_inverse(), ROUNDS, 1, STD)
        strategy = exact_form(C.streaming_inverse()).strategy
        for t, scale in enumerate(noise._scales):
            assert Fraction(float(scale)) * strategy[t][t] >= Fraction(STD)


Faulty = Callable[[np.ndarray, np.ndarray], np.ndarray]
FAULTS: dict[str, Faulty] = {
    "one unit": lambda k, x: x + (np.arange(x.size) == 40).reshape(x.shape),
    "rounded down": lambda k, x: x - ((k - x) % 2),
    "a round late": lambda k, x: np.roll(x, 1, axis=0),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", ["cgd", "banded-toeplitz", "blt", "tree"])
def test_wrong_rows_are_seen(name: str, fault: str) -> None:
    C = mechanism(name)
    k, x = made_rows(C.streaming_inverse(), STD, 7)
    with pytest.raises(AssertionError):
        check_rows(C, k, FAULTS[fault](k, x), STD)


def test_sums_of_a_long_blt_stay_within_the_bound() -> None:
    """2,000 rounds in fixed point with 200 binary places, at a scale where float64 adds whole
    units.
    """
    n = 2000
    d = 2
    places = 200
    C = BufferedToeplitz([0.9995, 0.98, 0.7], [0.01, 0.05, 0.2], n)
    std = 0.99 * 2.0**46
    row_std = float(np.sqrt(C.noise_row_variances().max()))
    eta = rule_of(C.streaming_inverse()).rounding_bound(FARTHEST * std, row_std)
    k, x = made_rows(C.streaming_inverse(), std, d)
    decays = [int(Fraction(float(v)) * 2**places) for v in C.decays]
    weights = [int(Fraction(float(v)) * 2**places) for v in C.weights]
    sums = [[0] * d for _ in decays]
    worst = Fraction(0)
    for t in range(n):
        for i in range(d):
            form = sum(w * s[i] for w, s in zip(weights, sums, strict=True)) >> places
            worst = max(worst, Fraction(abs((int(k[t, i] - x[t, i]) << places) - form), 2**places))
        for decay, s in zip(decays, sums, strict=True):
            for i in range(d):
                s[i] = (decay * s[i] >> places) + (int(x[t, i]) << places)
    seen = float(worst) - 0.5
    assert 2e-5 * eta < seen <= eta, "a bound without need, or none"


FORMS = [
    *(
        "bisr",
        "banded-toeplitz",
        "banded",
        "normalized-banded-toeplitz",
        "normalized-blt",
        "tree",
        "kary-tree",
    ),
    *("dense", "stamped blt", "stamped bands"),
]
WIDE = 3001


def stream(name: str, d: int = WIDE) -> NoiseStream:
    return NoiseStream(KEY, Domain.TRAINING, mechanism(name).streaming_inverse(), ROUNDS, d, STD)


def single_rows(noise: NoiseStream, count: int) -> torch.Tensor:
    """The next rows, one after the other."""
    x = torch.zeros(count, noise.dimension, dtype=torch.int64)
    for row in x:
        noise.release(row)
    return x


@pytest.fixture
def torch_threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", FORMS)
def test_rows_are_the_same_in_any_cut(
    name: str, monkeypatch: pytest.MonkeyPatch, torch_threads: Callable[[int], None]
) -> None:
    """One at a time, many at once, from anywhere, in other tiles, on three threads."""
    expected = single_rows(stream(name), ROUNDS)
    together = torch.zeros_like(expected)
    noise = stream(name)
    for low, high in itertools.pairwise((0, 0, 1, 6, ROUNDS)):
        noise.release_rows(together[low:high])
    assert torch.equal(together, expected)
    for before, target in ((0, 2), (0, 7), (5, 2), (5, 7), (7, 5)):
        noise = stream(name)
        single_rows(noise, before)
        noise.seek(target)
        assert torch.equal(single_rows(noise, ROUNDS - target), expected[target:])
    narrow = single_rows(stream(name, 21), ROUNDS)
    assert torch.equal(narrow, expected[:, :21])
    monkeypatch.setattr(noise_rows, "_MOST_COLUMNS", 104)
    monkeypatch.setattr(noise_rows, "_FEWEST_COLUMNS", 104)
    assert torch.equal(single_rows(stream(name), ROUNDS), expected)
    monkeypatch.setattr(noise_stream, "_FEWEST_PER_THREAD", 100)
    monkeypatch.setattr(noise_stream, "_BLOCK_OF_ROWS", 2 * WIDE)
    torch_threads(3)
    assert torch.equal(single_rows(stream(name), ROUNDS), expected)
    together.zero_()
    stream(name).release_rows(together)
    assert torch.equal(together, expected)


@pytest.mark.parametrize("name", ["banded-toeplitz", "blt"])
def test_a_failure_in_a_thread_is_raised_and_the_row_is_made_again(
    name: str, monkeypatch: pytest.MonkeyPatch, torch_threads: Callable[[int], None]
) -> None:
    """An interrupted round does not advance, and does not leave half of a row in what is stored."""
    expected = single_rows(stream(name), ROUNDS)
    torch_threads(3)
    monkeypatch.setattr(noise_stream, "_FEWEST_PER_THREAD", 100)
    noise = stream(name)
    single_rows(noise, 4)
    rule = type(noise._rule)
    right = rule.rows

    def interrupted(self, tables, k, stored, column, x):
        right(self, tables, k, stored, column, x)
        if column > 0:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rule, "rows", interrupted)
        with pytest.raises(KeyboardInterrupt):
            noise.release(torch.zeros(WIDE, dtype=torch.int64))
    assert noise.t == 4
    assert torch.equal(single_rows(noise, ROUNDS - 4), expected[4:])


class Unknown(StreamingInverse):
    """A form that no rule makes integers of."""

    row_scale = np.ones(3)
    memory_vectors = 0

    def diagonal(self) -> np.ndarray:
        return np.ones(3)

    def stream(self) -> Stream:
        raise NotImplementedError

    def stamped(self, rounds: int) -> StreamingInverse:
        raise NotImplementedError


def test_forms_without_a_rule_are_rejected() -> None:
    both = Recurrence([1.0, -0.5], [0.2], np.ones(3))
    with pytest.raises(TypeError, match="must have feedforward or feedback coefficients, not both"):
        rule_of(both)
    with pytest.raises(TypeError, match=r"must be a Recurrence, SparseRows, .*; got Unknown"):
        rule_of(Unknown())
