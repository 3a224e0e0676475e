"""Kept vectors in float32: what is released does not show their grid, has the stated covariance, and moves no
neighbour's noise by more than the noise multiplier says."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from fedmf.factorization.matrices.buffered import BufferedToeplitz
from fedmf.factorization.matrices.toeplitz import Toeplitz, normalized
from fedmf.factorization.mechanisms.catalogue import build
from fedmf.factorization.sensitivity.stated import stated_sensitivity
from fedmf.factorization.streaming.state_space import StateSpace
from fedmf.noise.key import NoiseKey
from fedmf.noise.rows.noise_stream import NoiseStream
from fedmf.noise.rows.storage import NoiseStorage
from fedmf.noise.source import GaussianSource
from fedmf.participation import Participation

ROUNDS, FALSE_ALARM = 16, 1e-6
CONTRACT = Participation(ROUNDS, 2, 8)
FORMS = {
    "bands": Toeplitz([1.0, 0.5, 0.375], ROUNDS),
    "normalised bands": normalized(Toeplitz([2.0, 1.0, 0.75], ROUNDS)),
    "general bands": build("banded", CONTRACT, bands=4).factorization,
    "blt": BufferedToeplitz([0.95, 0.6], [0.2, 0.3], ROUNDS),
}


class RoundedRelease:
    """Kernels that add to `out` what they keep: the defect that the attack finds."""

    def __init__(self, kernels) -> None:
        self._kernels = kernels

    def add_(self, row, out, start, stored=None):
        unseen = torch.zeros(out.numel(), dtype=torch.float64)
        self._kernels.add_(row, unseen, start, stored)
        out += row.scale * stored[row.writes[0]].double() if row.writes else unseen


class RoundedSource(GaussianSource):
    def kernels(self, device):
        return RoundedRelease(super().kernels(device))


def stream(C, d, source=GaussianSource, inflation=1.0):
    return NoiseStream(
        source(NoiseKey.from_seed(3), d),
        C.recurrence(),
        ROUNDS,
        storage=NoiseStorage(dtype="float32"),
        inflation=inflation,
    )


def shown(y: torch.Tensor) -> tuple[int, int]:
    """How many elements lie on float32's grid, up to the arithmetic on the way, and of how many."""
    y = y[y.abs() > 2.0**-4]
    return int(((y - y.float().double()).abs() < 1e-13).sum()), y.numel()


def attack(C, source) -> tuple[tuple[int, int], tuple[int, int]]:
    """`shown` for the right guess, that the user takes part, and for the wrong one, over all rounds."""
    d, scale, gen = 4000, 0.7, torch.Generator().manual_seed(1)
    noise, counts = stream(C, d, source), np.zeros((2, 2), np.int64)
    row_scale = C.recurrence().row_scale
    for t in range(ROUNDS):
        others, user = torch.randn(2, d, generator=gen, dtype=torch.float64)
        user /= user.norm()
        released = others + user
        noise.add_(released, scale)
        for guess, rest in enumerate((others + user, others)):
            counts[guess] += shown((released - rest) / (scale * row_scale[t]))
    return tuple(counts[0].tolist()), tuple(counts[1].tolist())


# Numbers above 2⁻⁴ lie 2⁻²⁷ apart at least.
BY_CHANCE = 2 * 1e-13 / 2.0**-27


@pytest.mark.parametrize("form", FORMS)
def test_the_grid_of_kept_vectors_does_not_show_who_took_part(form):
    """Somebody knows all updates but one and asks whether the remainder is a number that the buffer holds."""
    for hits, count in attack(FORMS[form], GaussianSource):
        assert count > 40_000
        assert hits <= stats.binom.isf(FALSE_ALARM / 2, count, BY_CHANCE)


@pytest.mark.parametrize("form", ["bands", "normalised bands", "general bands"])
def test_the_attack_finds_released_numbers_that_were_rounded(form):
    right, wrong = attack(FORMS[form], RoundedSource)
    assert right[0] > 0.99 * right[1]
    assert wrong[0] <= stats.binom.isf(FALSE_ALARM, wrong[1], BY_CHANCE)


def solved(C, y: np.ndarray) -> np.ndarray:
    """The z of which noise y (rows before their scale) is made when earlier rows are kept in float32."""
    inverse = C.recurrence()
    z = np.empty_like(y)
    if isinstance(inverse, StateSpace):
        sums = np.zeros((inverse.decays.size, y.shape[1]))
        for t, row in enumerate(y):
            z[t] = row + inverse.output_weights @ sums
            sums = (inverse.decays[:, None] * sums + row).astype(np.float32).astype(np.float64)
        return z
    kept = y.astype(np.float32).astype(np.float64)
    f = np.broadcast_to(inverse.feedforward.reshape(-1), ROUNDS)
    g = np.broadcast_to(inverse.feedback, (ROUNDS, inverse.memory_vectors))
    for t in range(ROUNDS):
        z[t] = y[t] + sum(g[t, j] * kept[t - 1 - j] for j in range(min(t, g.shape[1])))
    return z / f[:, None]


def released(noise: NoiseStream, scale: float, dtype=torch.float64) -> np.ndarray:
    made = torch.zeros(ROUNDS, noise.stop, dtype=dtype)
    for row in made:
        noise.add_(row, scale)
    return made.double().numpy()


@pytest.mark.parametrize("form", FORMS)
def test_releases_determine_z_as_in_the_proof(form):
    C, d = FORMS[form], 500
    noise = stream(C, d)
    z = np.stack([noise.source.block(t, 0, d).numpy() for t in range(ROUNDS)])
    y = released(noise, 1.0) / C.recurrence().row_scale[:, None]
    # A kept number on the middle of two could go either way here, with probability 1e-8 an element.
    np.testing.assert_allclose(solved(C, y), z, rtol=0, atol=1e-13)
    assert np.abs(C.materialize() @ (y * C.recurrence().row_scale[:, None]) - z).max() > 1e-9


@pytest.mark.parametrize("form", FORMS)
def test_no_user_moves_the_noise_by_more_than_the_multiplier_says(form):
    """From what a stream released: z, and the z' of the data without the user whose updates are the worst.

    ‖z' − z‖ is the shift between neighbours in standard deviations; without rounding it would be 1/(σF).
    """
    C, d, sigma = FORMS[form], 20_000, 3.0
    inverse = C.recurrence()
    factor = NoiseStorage(dtype="float32").inflation(inverse, CONTRACT, d, sigma)
    sens = stated_sensitivity(C, CONTRACT)
    scale = sigma * sens.value
    noise = released(stream(C, d, inflation=factor), scale)
    direction = np.random.default_rng(0).standard_normal(d)
    direction /= np.linalg.norm(direction)
    shifts = []
    for first in range(CONTRACT.min_separation):
        user = np.zeros_like(noise)
        user[[first, first + CONTRACT.min_separation]] = direction
        y = np.stack([noise, noise + user]) / (scale * factor * inverse.row_scale[:, None])
        shifts.append(np.linalg.norm(solved(C, y[1]) - solved(C, y[0])))
    assert 1 < factor < 1.01
    assert max(shifts) <= 1 / sigma
    if sens.kind == "exact":
        assert max(shifts) > (1 / sigma) / factor**2


@pytest.mark.parametrize("form", FORMS)
def test_the_measured_covariance_is_the_stated_one(form):
    """As in test_noise_covariance, and a σ that is 1.1 times larger or smaller is seen."""
    C, d, scale = FORMS[form], 20_001, 0.7
    whitened = C.materialize() @ released(stream(C, d), scale, torch.float32) / scale
    alpha = FALSE_ALARM / (ROUNDS * (ROUNDS + 1))

    def fits(noise):
        scatter = noise @ noise.T
        squares, cross = np.diag(scatter), scatter[~np.eye(ROUNDS, dtype=bool)]
        diagonal = (stats.chi2.ppf(alpha, d) < squares) & (squares < stats.chi2.isf(alpha, d))
        return bool(diagonal.all() and np.abs(cross).max() < math.sqrt(d) * stats.norm.isf(alpha))

    assert fits(whitened)
    assert not fits(1.1 * whitened)
    assert not fits(whitened / 1.1)
