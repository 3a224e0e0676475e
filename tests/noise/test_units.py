"""The unit of a release by public numbers, and what it costs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from fedmf.matrices.blt import BufferedToeplitz
from fedmf.matrices.factorization import Dense, Factorization, Stamped, normalized
from fedmf.mechanisms.closed_forms import bisr, bsr, cgd, identity
from fedmf.mechanisms.tree_families import kary_tree, tree
from fedmf.noise.units import (
    COARSEST,
    FINEST,
    NOTHING,
    Part,
    calibrated,
    integer_noise,
    rounding_of,
    strategy_norm_bound,
)

MATRICES: dict[str, Factorization] = {
    "identity": identity(40),
    "cgd": cgd(0.9, 40),
    "bisr": bisr(6, 40),
    "normalized bisr": normalized(bisr(6, 40)),
    "bsr": bsr(5, 40),
    "normalized bsr": normalized(bsr(5, 40)),
    "blt": BufferedToeplitz([0.99, 0.7], [0.05, 0.2], 40),
    "tree": tree(40),
    "online tree": tree(40, full=False),
    "kary tree": kary_tree(3, 40),
    "normalized kary tree": normalized(kary_tree(3, 40)),
    "dense": Dense(np.tril(np.random.default_rng(0).uniform(-0.2, 0.2, (40, 40)), -1) + np.eye(40)),
    "stamped": Stamped(bsr(5, 10), 40),
}


@pytest.mark.parametrize("name", MATRICES)
def test_the_norm_of_c_is_bounded(name: str) -> None:
    C = MATRICES[name]
    exact = np.linalg.norm(C.materialize(), 2)
    assert exact <= strategy_norm_bound(C) <= 3 * exact


@pytest.mark.parametrize("name", MATRICES)
def test_movement_is_the_formula_of_the_theorem(name: str) -> None:
    C = MATRICES[name]
    size = 1000
    noise = integer_noise(Part(C, size, users=100), 3.0, mu=1.0)
    matrix = C.materialize()
    forward = {
        "identity",
        "cgd",
        "bisr",
        "normalized bisr",
        "dense",
        "kary tree",
        "normalized kary tree",
    }
    largest = np.linalg.norm(matrix, 2) if name in forward else np.diag(matrix).max()
    least = largest * math.sqrt(size * C.rounds) * (1 + 2 * noise.eta) * 2.0**-noise.bits
    assert least <= noise.movement <= 3 * least
    if name not in forward:
        assert noise.movement == pytest.approx(least, rel=1e-9)
    assert noise.std == 3.0 * 2.0**noise.bits
    assert 0 < noise.eta <= 0.25
    assert noise.failure < 1e-78


def bits(
    std: float, rounds: int = 100, size: int = 10, users: int = 100, ratio: float = 1.0
) -> int:
    """B for independent noise."""
    return integer_noise(Part(identity(rounds), size, users, ratio), std, mu=1.0).bits


def test_the_unit_is_the_finest_that_noise_and_sum_allow() -> None:
    assert FINEST == 31
    assert bits(1.0) == bits(31.0) == 31  # ρ ≤ 2³⁶
    assert bits(32.0) == bits(63.0) == 30
    assert bits(2.0**20) == 15
    assert bits(1.0, ratio=2.0**20) == 15
    assert bits(1.0, users=2**30) == 31  # m·2ᴮ < 2⁶²
    assert bits(1.0, users=2**31) == 30
    assert bits(1.0, users=2**40) == 21
    assert bits(1.0, size=10**8, rounds=100_000) == 31


def test_rounding_errors_ask_for_a_coarser_unit() -> None:
    """η ≤ ¼: the sums of a long BLT are as long as its memory."""
    C = BufferedToeplitz([1 - 1e-5, 0.9], [0.001, 0.3], 100_000)
    fine = integer_noise(Part(C, 10, 100), 1.0, mu=1.0)
    coarse = integer_noise(Part(C, 10, 100), 20.0, mu=1.0)
    assert fine.bits > coarse.bits
    assert max(fine.eta, coarse.eta) <= 0.25


def test_noise_that_no_unit_suits_is_rejected() -> None:
    assert bits(2.0**27) == COARSEST
    with pytest.raises(
        ValueError, match=r"must have a standard deviation below 2\^28 bounds .* larger eps"
    ):
        bits(2.0**29)
    with pytest.raises(ValueError, match="No unit of integers suits it"):
        bits(1.0, users=2**55)


def test_movement_grows_with_size_rounds_and_unit() -> None:
    for name in ("cgd", "bsr", "blt", "tree"):
        C = MATRICES[name]
        base = integer_noise(Part(C, 100, 10), 1.0, 1.0)
        assert integer_noise(Part(C, 101, 10), 1.0, 1.0).movement > base.movement
        assert integer_noise(Part(C, 400, 10), 1.0, 1.0).movement == pytest.approx(
            2 * base.movement
        )
        if name != "tree":  # a leading block of a tree is streamed in another form
            assert integer_noise(Part(C.leading(39), 100, 10), 1.0, 1.0).movement < base.movement
        coarser = integer_noise(Part(C, 100, 10), 2.0**15, 1.0)
        assert coarser.bits < base.bits
        assert coarser.movement > 1.9 ** (base.bits - coarser.bits) * base.movement
        assert integer_noise(Part(C, 100, 10), 1.5, 1.0).movement >= base.movement


def test_what_is_lost_outside_of_the_bounds_is_less_than_stated() -> None:
    """(1 + e^ε)·P(|N| > 20 + μ) for every ε with δ ≥ e⁻²⁰⁰, each of (2 + vectors)·d·n variables."""
    C = MATRICES["blt"]
    for mu in (0.01, 1.0, 8.0):
        noise = integer_noise(Part(C, 50, 10), 1.0, mu)
        variables = (2 + 2) * 50 * C.rounds
        epsilon = mu**2 / 2 + 20 * mu
        log_tail = norm.logsf(20 + mu) + math.log(2)
        assert math.log(variables) + math.log1p(math.exp(epsilon)) + log_tail <= math.log(
            noise.failure
        )


def test_calibrated_noise_is_the_least_that_pays_for_its_own_rounding() -> None:
    for name, multiplier in (("cgd", 0.7), ("bsr", 4.0), ("blt", 30.0), ("tree", 1e5)):
        parts = [Part(MATRICES[name], 10**6, 100), Part(MATRICES["bsr"], 5, 100, ratio=0.3)]
        std, rounding = calibrated(parts, 2.5, multiplier)
        assert std >= multiplier * (2.5 + rounding.movement)
        assert std <= multiplier * (2.5 + rounding.movement) * (1 + 1e-9)
        assert rounding.movement > 0
        for part, noise in zip(parts, rounding.parts, strict=True):
            assert noise.std == part.ratio * std * 2.0**noise.bits


def test_parts_add_up_in_squares_of_what_they_move_by_their_noise() -> None:
    first = Part(MATRICES["cgd"], 1000, 100)
    second = Part(MATRICES["blt"], 50, 100, ratio=0.25)
    std = 2.0
    one = integer_noise(first, std, 0.5)
    other = integer_noise(second, std, 0.5)
    both = rounding_of([first, second], 1.0, std)
    exact = math.hypot(one.movement / std, other.movement / (0.25 * std))
    assert exact <= both.movement / std <= exact * (1 + 1e-9)
    assert both.failure == one.failure + other.failure


def test_vectors_that_are_rounded_to_integers_move_more() -> None:
    C = MATRICES["bsr"]
    whole = integer_noise(Part(C, 100, 10), 1.0, 1.0)
    cut = integer_noise(Part(C, 100, 10, cut=7.0), 1.0, 1.0)
    assert cut.bits == whole.bits
    assert cut.movement - whole.movement == pytest.approx(7.0 * 2.0**-whole.bits, rel=1e-6)


def test_no_noise_has_no_unit() -> None:
    assert calibrated([Part(MATRICES["cgd"], 10, 10)], 1.0, 0.0) == (0.0, NOTHING)
