"""Kept vectors: the same bits however they come about, and no less noise than stated in narrower types."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from scipy import stats

from fedmf.factorization import (
    BufferedToeplitz,
    InverseToeplitz,
    Toeplitz,
    build,
    kary_tree,
    normalized,
    tree,
)
from fedmf.factorization.rounded_storage import rounding_loss
from fedmf.noise import CorrelatedNoise, GaussianSource, NoiseKey
from fedmf.noise import rows as rows_module
from fedmf.noise.storage import measured_costs
from fedmf.participation import Participation

ROUNDS, DIMENSION = 16, 300
UNIT = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}

FORMS = {
    "bands": Toeplitz([1.0, 0.5, 0.375], ROUNDS),
    "normalised bands": normalized(Toeplitz([2.0, 1.0, 0.75], ROUNDS)),
    "general bands": build("banded", Participation(ROUNDS, 2, 8), bands=4).factorization,
    "blt": BufferedToeplitz([0.95, 0.6], [0.2, 0.3], ROUNDS),
}


def stream(C, d=DIMENSION, seed=5, **options):
    return CorrelatedNoise(GaussianSource(NoiseKey.from_seed(seed), d), C.recurrence(), C.rounds, **options)


def rows(noise: CorrelatedNoise, count: int, dtype=torch.float64) -> torch.Tensor:
    made = torch.zeros(count, noise.stop - noise.start, dtype=dtype)
    for row in made:
        noise.add_(row, 1.0)
    return made


@pytest.mark.parametrize("q", [2, 3, 9, ROUNDS])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_past_z_kept_or_drawn_again_give_the_same_bits(q, dtype):
    C = normalized(InverseToeplitz((-0.7) ** np.arange(q), ROUNDS))
    kept, drawn = stream(C, storage="buffer"), stream(C, storage="regenerate")
    assert (kept.memory_vectors, drawn.memory_vectors) == (q - 1, 0)
    assert kept.digest == drawn.digest
    assert torch.equal(rows(kept, ROUNDS, dtype), rows(drawn, ROUNDS, dtype))
    for t in (5, 3, 0, 11):
        kept.seek(t)
        drawn.seek(t)
        assert torch.equal(rows(kept, 2), rows(drawn, 2))


@pytest.mark.parametrize("tile", [1, 16, 37, 299])
def test_rows_do_not_depend_on_the_tiles_they_are_formed_in(tile, monkeypatch):
    C = InverseToeplitz([1.0, -0.5, 0.25], ROUNDS)
    expected = rows(stream(C), 4)
    monkeypatch.setattr(rows_module, "TILE", tile)
    assert torch.equal(rows(stream(C), 4), expected)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", UNIT)
@pytest.mark.parametrize("t", [0, 1, 7])
def test_narrow_buffers_are_replayed_exactly(form, dtype, t):
    expected = rows(stream(FORMS[form], buffer_dtype=dtype), ROUNDS)
    noise = stream(FORMS[form], buffer_dtype=dtype)
    noise.seek(t)
    assert torch.equal(rows(noise, 2), expected[t : t + 2])
    noise.skip()
    assert torch.equal(rows(noise, ROUNDS - t - 3), expected[t + 3 :])
    assert noise.memory_bytes == noise.memory_vectors * DIMENSION * dtype.itemsize


@pytest.mark.parametrize("form", [*FORMS, "tree", "inverse"])
@pytest.mark.parametrize("whole", [True, False])
def test_kept_vectors_move_to_another_layout_without_replay(form, whole, monkeypatch):
    others = {"tree": tree(ROUNDS), "inverse": InverseToeplitz([1.0, -0.5, 0.25], ROUNDS)}
    C, storage = {**FORMS, **others}[form], "buffer"
    shard = {} if whole else {"start": 40, "stop": 200}
    noise = stream(C, storage=storage, **shard)
    rows(noise, 7)
    state = noise.state_dict(kept_vectors=True)
    assert set(state) == {"t", "key", "domain", "dimension", "digest", "kept", "start", "stop"}
    json.dumps(noise.state_dict())
    expected = rows(stream(C), ROUNDS)[7:, 50:90]
    resumed = stream(C, storage=storage, start=50, stop=90)
    resumed.load_state(state)
    rule, replayed = type(resumed._rule), []
    real = rule.row_
    monkeypatch.setattr(rule, "row_", lambda self, *args: (replayed.append(args[-2]), real(self, *args))[1])
    assert torch.equal(rows(resumed, ROUNDS - 7), expected)
    assert replayed == list(range(7, ROUNDS)), "rounds before the saved one must not be made again"
    outside = stream(C, storage=storage, start=0, stop=90)
    outside.load_state(state)
    assert torch.equal(rows(outside, ROUNDS - 7)[:, 50:], expected)


def test_kept_vectors_of_another_shape_or_type_are_refused():
    noise = stream(FORMS["bands"])
    rows(noise, 3)
    state = noise.state_dict(kept_vectors=True)
    for kept in (state["kept"][:1], state["kept"].float(), state["kept"][:, 1:]):
        with pytest.raises(ValueError, match=r"^kept \(vectors of the saved noise\) must be torch.float64"):
            stream(FORMS["bands"]).load_state({**state, "kept": kept})


def test_noise_of_another_buffer_type_is_other_noise():
    state = stream(FORMS["bands"], buffer_dtype=torch.float32).state_dict()
    with pytest.raises(ValueError, match="digest"):
        stream(FORMS["bands"]).load_state(state)


def rounding_seen_as_noise(C, dtype, d=20_000):
    """z and e, shape (n, d), with C y = z + e for the y that a stream with this buffer type released."""
    noise = stream(C, d=d, buffer_dtype=dtype)
    released = rows(noise, C.rounds).numpy() / noise.inflation
    z = np.stack([noise.source.block(t, 0, d).numpy() for t in range(C.rounds)])
    return z, C.materialize() @ released - z


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", UNIT)
def test_the_error_is_within_the_proved_bound_in_every_direction(form, dtype):
    C = FORMS[form]
    z, e = rounding_seen_as_noise(C, dtype)
    largest = math.sqrt(np.linalg.eigvalsh(e @ e.T / e.shape[1])[-1])
    bound = rounding_loss(C.recurrence(), UNIT[dtype])
    assert 0 < largest <= bound
    assert bound < 20 * math.sqrt(C.rounds) * UNIT[dtype] * (10 if form == "blt" else 1)
    # Mean zero: rounding to nearest is odd and z is symmetric. Five standard errors for 16 rounds.
    assert np.abs(e.mean(axis=1)).max() < 6 * largest / math.sqrt(e.shape[1])
    assert np.abs(z).max() < 12


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", UNIT)
def test_the_measured_covariance_is_not_below_the_stated_one(form, dtype):
    """Whitened with C, what is released has covariance at least I: all eigenvalues reach what I's would.

    The smallest eigenvalue of a d-sample covariance of n independent normals exceeds (1 − √(n/d) − x)² but
    with probability exp(−d x²/2) (Davidson and Szarek 2001); x is set for 1e-6.
    """
    C, d, scale = FORMS[form], 50_001, 0.7
    noise = stream(C, d=d, seed=6, buffer_dtype=dtype)
    released = torch.zeros(C.rounds, d)
    for row in released:
        noise.add_(row, scale)
    whitened = C.materialize() @ released.double().numpy() / scale
    values = np.linalg.eigvalsh(whitened @ whitened.T / d)
    margin = math.sqrt(C.rounds / d) + math.sqrt(2 * math.log(1e6) / d)
    assert values[0] >= (1 - margin) ** 2
    assert values[-1] <= (noise.inflation * (1 + margin + rounding_loss(C.recurrence(), UNIT[dtype]))) ** 2
    assert np.linalg.eigvalsh(whitened @ whitened.T / d / 1.1**2)[0] < (1 - margin) ** 2, "σ·1.1 must show"


def test_inflation_is_one_in_float64_and_what_the_bound_says_otherwise():
    C = FORMS["bands"]
    assert stream(C).inflation == 1.0
    for dtype, unit in UNIT.items():
        assert stream(C, buffer_dtype=dtype).inflation == 1 / (1 - rounding_loss(C.recurrence(), unit))


def test_the_scale_is_inflated_in_what_is_released():
    """The first row has no past: it is z itself, rounded to the buffer's type, times inflation."""
    noise = stream(FORMS["bands"], buffer_dtype=torch.bfloat16)
    first = rows(noise, 1)[0]
    z = noise.source.block(0, 0, DIMENSION)
    assert noise.inflation > 1.01
    assert torch.equal(first, z.to(torch.bfloat16).double() * noise.inflation)


@pytest.mark.parametrize(
    ("C", "dtype", "message"),
    [
        (Toeplitz([1.0, 0.9], 5000), torch.bfloat16, "must keep the loss of noise below 0.5"),
        (BufferedToeplitz([0.9999, 0.999], [0.4, 0.4], 5000), torch.bfloat16, "loss of noise"),
    ],
)
def test_a_type_too_narrow_for_the_horizon_is_refused(C, dtype, message):
    with pytest.raises(ValueError, match=rf"^buffer_dtype .*{message}"):
        stream(C, buffer_dtype=dtype)


def test_float32_is_nearly_free_over_long_runs():
    assert stream(Toeplitz(np.linspace(1, 0.1, 20), 20_000), buffer_dtype=torch.float32).inflation < 1 + 5e-5


@pytest.mark.parametrize("C", [tree(ROUNDS), kary_tree(2, ROUNDS), InverseToeplitz([1.0, -0.5], ROUNDS)])
def test_what_is_not_an_output_is_never_narrowed(C):
    noise = stream(C, buffer_dtype=torch.bfloat16, storage="auto")
    assert noise.inflation == 1.0
    assert torch.equal(rows(noise, ROUNDS), rows(stream(C), ROUNDS))


@pytest.mark.parametrize("dtype", [torch.float16, torch.int32])
def test_other_buffer_types_are_refused(dtype):
    with pytest.raises(ValueError, match=r"^buffer_dtype must be float64, float32 or bfloat16; got"):
        stream(FORMS["bands"], buffer_dtype=dtype)


def test_costs_are_measured_once_and_positive():
    costs = measured_costs("cpu")
    assert costs is measured_costs("cpu")
    assert costs.draw > 0
    assert costs.read >= 0


def test_the_bound_covers_every_rounding_within_half_an_ulp():
    """Worst ρ by construction: all errors of relative size u with the signs that hurt one direction most."""
    C, u, n = FORMS["bands"], 2.0**-8, ROUNDS
    M, rng = C.materialize(), np.random.default_rng(0)
    z = rng.normal(size=(n, 20_000))
    direction = rng.normal(size=n)
    direction /= np.linalg.norm(direction)
    stored = np.zeros_like(z)
    for t in range(n):
        y = (z[t] - M[t, :t] @ stored[:t]) / M[t, t]
        # Against the noise in this direction, as much as rounding may: always |y| u.
        stored[t] = y - u * np.abs(y) * np.sign(direction[t] * (direction @ z))
    effective = direction @ (M @ stored)
    assert effective.std() < 0.999
    assert effective.std() >= (1 - rounding_loss(C.recurrence(), u)) * 0.98  # 4 standard errors of 20 000
    assert stats.norm.cdf(-4) < 1e-4
