"""The bound on what rounding kept vectors adds to the difference of two neighbours' noise.

Everything is computed here from the recurrences themselves: the noise y of one data set and y' = y + Δ of its
neighbour for the same release, the z and z' that give them, and w = z' − z − CΔ.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedmf.factorization.matrices.buffered import BufferedToeplitz
from fedmf.factorization.matrices.stamped import Stamped
from fedmf.factorization.matrices.toeplitz import InverseToeplitz, Toeplitz, normalized
from fedmf.factorization.matrices.trees import tree
from fedmf.factorization.mechanisms.catalogue import build
from fedmf.factorization.streaming.rounded_storage import rounding_inflation, rounding_shift
from fedmf.factorization.streaming.state_space import StateSpace
from fedmf.participation import Participation

ROUNDS, DIMENSION, SIGMA = 24, 4000, 2.0
U = 2.0**-24
FORMS = {
    "bands": Toeplitz([1.0, 0.5, 0.375], ROUNDS),
    "normalised bands": normalized(Toeplitz([2.0, 1.0, 0.75], ROUNDS)),
    "rows of their own": build("banded", Participation(ROUNDS, 3, 8), bands=4).factorization,
    "all lags": Toeplitz(1.0 / np.sqrt(np.arange(1, ROUNDS + 1)), ROUNDS),
    "blt": BufferedToeplitz([0.95, 0.6], [0.2, 0.3], ROUNDS),
    "stamped blt": Stamped(BufferedToeplitz([0.9, 0.5], [0.3, 0.2], 8), ROUNDS),
}
CONTRACTS = [Participation(ROUNDS, 1, 1), Participation(ROUNDS, 3, 8), Participation(ROUNDS, 4, 1)]


def exactly(y: np.ndarray, other: np.ndarray):
    return y, other


def float32(y: np.ndarray, other: np.ndarray):
    return y.astype(np.float32).astype(np.float64), other.astype(np.float32).astype(np.float64)


def worst(y: np.ndarray, other: np.ndarray):
    """As far off as |e(y)| ≤ u|y| allows, in opposite directions where the two data sets differ."""
    return y - U * np.abs(y), other + np.where(other == y, -U, U) * np.abs(other)


def fed_back(inverse, past: list[np.ndarray], sums: np.ndarray, t: int):
    """What is subtracted from f·z_t, given what was kept of earlier outputs."""
    if isinstance(inverse, StateSpace):
        return np.tensordot(inverse.output_weights, sums, 1)
    g = inverse.feedback[t] if inverse.feedback.ndim == 2 else inverse.feedback
    return sum((g[j] * past[t - 1 - j] for j in range(min(t, g.size))), np.zeros(sums.shape[1]))


def neighbours_z(C, z: np.ndarray, shift: np.ndarray, keep) -> np.ndarray:
    """The z' whose noise is y + shift, y being that of z, with past outputs kept as `keep` rounds them."""
    inverse = C.recurrence()
    decays = inverse.decays[:, None] if isinstance(inverse, StateSpace) else np.zeros((1, 1))
    gains = [1.0] if isinstance(inverse, StateSpace) else inverse.feedforward.reshape(-1)
    sums, past = np.zeros((2, len(decays), z.shape[1])), ([], [])
    other = np.empty_like(z)
    for t in range(len(z)):
        if isinstance(inverse, StateSpace) and inverse.restarts(t):
            sums[:] = 0.0
        gain = gains[t % len(gains)]
        own, theirs = (fed_back(inverse, past[i], sums[i], t) for i in range(2))
        y = gain * z[t] - own
        other[t] = (y + shift[t] + theirs) / gain
        for kept, part in zip(past, keep(y, y + shift[t]), strict=True):
            kept.append(part)
        sums[:] = keep(decays * sums[0] + y, decays * sums[1] + y + shift[t])
    return other


def moved(C, keep, rounds) -> float:
    """‖w‖ for a user who takes part in these rounds, as far as its sensitivity allows."""
    rng = np.random.default_rng(1)
    z, scale = rng.standard_normal((ROUNDS, DIMENSION)), C.recurrence().row_scale
    # z' − z = M·Δ with M = C·diag(s); normed so that without rounding the shift is μ.
    shift = np.zeros_like(z)
    shift[rounds] = rng.standard_normal((len(rounds), DIMENSION))
    exact = C.materialize() @ (scale[:, None] * shift)
    shift /= SIGMA * np.linalg.norm(exact)
    exact = C.materialize() @ (scale[:, None] * shift)
    return float(np.linalg.norm(neighbours_z(C, z, shift, keep) - z - exact))


def patterns(contract: Participation):
    k, b = contract.max_participations, contract.min_separation
    yield from ([first + b * i for i in range(k)] for first in {0, (ROUNDS - (k - 1) * b - 1) // 2})


@pytest.mark.parametrize("contract", CONTRACTS, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_no_rounding_moves_noise_by_more_than_the_bound(form, contract):
    C = FORMS[form]
    bound = rounding_shift(C.recurrence(), contract, DIMENSION, SIGMA, failure=1e-9)
    assert 0 < bound < 1e-2
    seen = {keep: max(moved(C, keep, p) for p in patterns(contract)) for keep in (float32, worst)}
    assert 0 < seen[float32] < seen[worst] <= bound
    assert bound < 4 * seen[worst], "the bound is not to be far from what rounding can do at worst"


def test_without_rounding_nothing_is_moved():
    """So what the other tests measure is rounding: float64's own is 10⁸ times smaller."""
    C = FORMS["blt"]
    assert moved(C, exactly, [0, 8, 16]) < 1e-12


def test_norms_exceed_what_is_assumed_with_less_than_the_failure_probability():
    """‖N(0, I_d)‖ ≤ √d + √(2 ln(1/β)) but with probability β: against the exact chi distribution."""
    for d in (1, 2, 10, 1000, 10**6):
        for beta in (0.5, 1e-3, 1e-9, 1e-20):
            assert stats.chi.sf(math.sqrt(d) + math.sqrt(2 * math.log(1 / beta)), d) <= beta


def test_the_bound_grows_as_stated():
    C, contract = FORMS["bands"].recurrence(), CONTRACTS[1]
    sizes = [rounding_shift(C, contract, d, 1.0) for d in (10**4, 10**6, 10**8)]
    assert sizes[1] / sizes[0] == pytest.approx(10, rel=0.2)
    assert sizes[2] / sizes[1] == pytest.approx(10, rel=0.02)
    assert rounding_shift(C, contract, 10**6, 1.0, unit_roundoff=2.0**-8) > 1, "bfloat16"
    assert rounding_shift(C, contract, 10**6, 1.0, unit_roundoff=2.0**-53) < 1e-11, "float64"
    assert rounding_shift(C, contract, 10**6, 1.0, failure=1e-300) < 1.05 * sizes[1]


@pytest.mark.parametrize("form", FORMS)
def test_more_noise_by_the_inflation_makes_up_for_the_shift(form):
    """With σF instead of σ, 1/(σF) + W(σF) ≤ 1/σ."""
    C, contract = FORMS[form].recurrence(), CONTRACTS[1]
    for sigma in (0.5, 5.0):
        factor = rounding_inflation(C, contract, 10**6, sigma)
        after = 1 / (sigma * factor) + rounding_shift(C, contract, 10**6, sigma * factor)
        assert after <= 1 / sigma * (1 + 1e-12)
        assert 1 < factor < 1.1
        assert 1 / sigma + rounding_shift(C, contract, 10**6, sigma) > 1 / sigma * (1 + 1e-6)


@pytest.mark.parametrize(
    ("C", "arguments", "message"),
    [
        (tree(ROUNDS), {}, "^dtype .of stored vectors. must be float64 for this form .* BlockSums"),
        (
            InverseToeplitz([1.0, -0.5], ROUNDS),
            {},
            "^dtype .of stored vectors. must be float64 for this form .* Recurrence",
        ),
        (FORMS["bands"], {"dimension": 0}, r"^d \(dimension\) must be an integer of at least 1; got 0"),
        (FORMS["bands"], {"noise_multiplier": 0.0}, r"^sigma \(noise multiplier\) must be positive"),
        (FORMS["bands"], {"failure": 0.0}, r"^beta \(failure probability\) must satisfy 0 < beta < 1"),
        (FORMS["bands"], {"unit_roundoff": 1.0}, r"^u \(unit roundoff\) must satisfy"),
        (FORMS["bands"], {"participation": Participation(ROUNDS + 1, 1, 1)}, r"^n \(rounds of the part"),
        (
            FORMS["bands"],
            {"unit_roundoff": 2.0**-8},
            r"^W \(shift by rounding .* Keep the vectors in float64",
        ),
        (FORMS["blt"], {"unit_roundoff": 0.5}, r"^W \(shift by rounding .* got inf"),
        (FORMS["all lags"], {"unit_roundoff": 0.9}, r"^W \(shift by rounding .* got inf"),
    ],
)
def test_what_cannot_be_bounded_is_refused(C, arguments, message):
    given = {"participation": CONTRACTS[1], "dimension": 10**5, "noise_multiplier": 1.0, **arguments}
    with pytest.raises(ValueError, match=message):
        rounding_inflation(C.recurrence(), **given)
