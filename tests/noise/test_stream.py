"""[C⁻¹z]_t against dense linear algebra; horizon, seek, shards, retries and refusals."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from fedmf.noise.cpu import TILE
from fedmf.noise.source import GaussianSource
from support.covariance import covariance_fits

from fedmf.errors import HorizonExceededError
from fedmf.mechanisms.blt import BufferedToeplitz
from fedmf.mechanisms.matrix import Stamped
from fedmf.mechanisms.registry import build
from fedmf.mechanisms.streaming import Recurrence
from fedmf.noise.key import Domain, NoiseKey
from fedmf.noise.stream import NoiseStream
from fedmf.participation import Participation

ROUNDS = 9
DIMENSION = 50

# Coefficients are at most 1 in size and a row sums at most n terms of size below 10.
ROUNDING = 1e-12


def make(recurrence, d=DIMENSION, rounds=ROUNDS, seed=1, **shard):
    return NoiseStream(GaussianSource(NoiseKey.from_seed(seed), d), recurrence, rounds, **shard)


def rows(noise: NoiseStream, count: int) -> torch.Tensor:
    """The next rows as a (count, stop − start) matrix."""
    out = torch.zeros(count, noise.stop - noise.start, dtype=torch.float64)
    for row in out:
        noise.add_(row, 1.0)
    return out


def dense(recurrence, rounds=ROUNDS, d=DIMENSION, seed=1) -> np.ndarray:
    source = GaussianSource(NoiseKey.from_seed(seed), d)
    return recurrence.inverse @ np.stack([source.block(t, 0, d).numpy() for t in range(rounds)])


def test_rows_are_those_of_the_dense_product(recurrence):
    built = recurrence(ROUNDS)
    np.testing.assert_allclose(rows(make(built), ROUNDS), dense(built), rtol=0, atol=ROUNDING)


def test_the_horizon_is_final(recurrence):
    noise, out = make(recurrence(ROUNDS)), torch.zeros(DIMENSION)
    for t in range(ROUNDS):
        assert noise.t == t
        noise.skip()
    for use in (lambda: noise.add_(out, 1.0), noise.skip, lambda: noise.seek(ROUNDS + 1)):
        with pytest.raises(HorizonExceededError, match=rf"n \(horizon\) = {ROUNDS}; got"):
            use()
    assert not out.any()
    assert noise.t == ROUNDS
    noise.seek(ROUNDS)
    with pytest.raises(HorizonExceededError):
        noise.add_(out, 1.0)


def test_seek_is_as_if_streamed(recurrence):
    built = recurrence(ROUNDS)
    expected = rows(make(built), ROUNDS)
    for before, target in itertools.product((0, 5), (2, 7)):
        noise = make(built)
        rows(noise, before)
        noise.seek(target)
        assert noise.t == target
        assert torch.equal(rows(noise, ROUNDS - target), expected[target:])


def test_shards_are_slices_of_the_whole(recurrence):
    d, rounds = 2 * TILE + 333, 4
    built = recurrence(rounds)
    whole = make(built, d=d, rounds=rounds)
    edges = [0, 1, 1021, TILE - 3, TILE, TILE + 1029, d]
    shards = [make(built, d=d, rounds=rounds, start=a, stop=b) for a, b in itertools.pairwise(edges)]
    for _ in range(rounds):
        assert torch.equal(torch.cat([rows(shard, 1)[0] for shard in shards]), rows(whole, 1)[0])


class Interrupting:
    """Kernels that do a pass and then fail, `after` passes from now: kept vectors are already overwritten."""

    def __init__(self, kernels, after):
        self.kernels, self.left = kernels, after

    def __getattr__(self, name):
        real = getattr(self.kernels, name)

        def interrupted(*args):
            real(*args)
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt

        return interrupted


def test_an_interrupted_row_is_the_same_when_tried_again(recurrence, monkeypatch):
    """Interrupt every row in its first pass, then in its second where it has one."""
    built, rounds = recurrence(5), 5
    expected = rows(make(built, rounds=rounds), rounds)
    noise = make(built, rounds=rounds)
    real = GaussianSource.kernels
    for t in range(rounds):
        for after in (0, 1):
            with monkeypatch.context() as patch:
                patch.setattr(
                    GaussianSource, "kernels", lambda self, at, n=after: Interrupting(real(self, at), n)
                )
                try:
                    noise.add_(torch.zeros(DIMENSION), 1.0)
                except KeyboardInterrupt:
                    assert noise.t == t, "an interrupted call must not advance"
                else:
                    assert after == 1, "every row takes at least one pass"
                    noise.seek(t)
        assert torch.equal(rows(noise, 1)[0], expected[t])


def test_state_of_other_noise_is_refused(named_recurrence):
    built = named_recurrence("both", ROUNDS)
    state = make(built).state_dict()
    other_domain = GaussianSource(NoiseKey.from_seed(1), DIMENSION, Domain.FIRST_MOMENT)
    nudged = Recurrence(
        feedforward=built.feedforward, feedback=built.feedback * (1 + 1e-15), row_scale=built.row_scale
    )
    others = {
        "key": make(built, seed=2),
        "domain": NoiseStream(other_domain, built, ROUNDS),
        "dimension": make(built, d=DIMENSION + 1),
        "digest": make(nudged),
    }
    for name, noise in others.items():
        with pytest.raises(
            ValueError, match=rf"^{name} \(keys of the saved noise\) must be .* void the guarantee"
        ):
            noise.load_state(state)
        assert noise.t == 0
    with pytest.raises(ValueError, match="digest"):
        make(built, rounds=ROUNDS - 1).load_state(state)
    for name in state:
        with pytest.raises(ValueError, match=rf"^{name} \(.*\) must be .*; got None"):
            make(built).load_state({key: value for key, value in state.items() if key != name})


def test_unfit_arguments_are_refused_before_anything_happens(named_recurrence):
    built = named_recurrence("both", ROUNDS)
    noise = make(built)
    for out in (
        torch.zeros(DIMENSION + 1),
        torch.zeros(DIMENSION, 1),
        torch.zeros(2 * DIMENSION)[::2],
        torch.zeros(DIMENSION, dtype=torch.float16),
        torch.zeros(DIMENSION, device="meta"),
    ):
        with pytest.raises(ValueError, match=r"^(out \(vector\)|device \(of the noise\)) must .*; got"):
            noise.add_(out, 1.0)
    for message, use in (
        (r"^scale .* must be finite; got", lambda: noise.add_(torch.zeros(DIMENSION), math.nan)),
        (r"^t \(round\) must be an integer of at least 0; got", lambda: noise.seek(-1)),
        (r"^n \(rounds\) must be an integer with 1 <= n <= 9", lambda: make(built, rounds=ROUNDS + 1)),
        (r"^n \(rounds\) must be an integer with 1 <= n <= 9", lambda: make(built, rounds=0)),
        (r"^start, stop \(shard\) must satisfy", lambda: make(built, start=0, stop=DIMENSION + 1)),
        (r"^start, stop \(shard\) must satisfy", lambda: make(built, start=4, stop=4)),
    ):
        with pytest.raises(ValueError, match=message):
            use()
    assert noise.t == 0


MECHANISMS = {
    "identity": {},
    "bisr": {"bands": 4},
    "banded-toeplitz": {"bands": 5},
    "banded": {"bands": 4},
    "normalized-cgd": {"params": {"lambda": 0.9}},
    "normalized-blt": {},
    "tree": {},
    "kary-tree": {},
    "dense": {},
}


@pytest.fixture(params=[*MECHANISMS, "stamped blt"])
def mechanism(request: pytest.FixtureRequest):
    """A mechanism of each form in which noise is streamed."""
    if request.param == "stamped blt":
        return Stamped(BufferedToeplitz([0.9, 0.5], [0.3, 0.2], 5), 12)
    return build(request.param, Participation(12, 3, 4), **MECHANISMS[request.param]).factorization


def covariance_run(inverse) -> np.ndarray:
    """What a run adds, round by round, to float32 sums of zeros, in two shards."""
    d = 50_001
    parts = [make(inverse, d=d, rounds=12, seed=21, start=a, stop=b) for a, b in ((0, 777), (777, d))]
    added = torch.zeros(12, d)
    for out in added:
        for part in parts:
            part.add_(out[part.start : part.stop], 0.7)
    return added.double().numpy()


def test_every_mechanism_has_its_covariance(mechanism):
    """scale²·C⁻¹C⁻ᵀ over rounds; the stream never uses `materialize`."""
    C, noise = mechanism.materialize(), covariance_run(mechanism.recurrence())
    assert covariance_fits(noise, C, 0.7)
    assert not covariance_fits(noise * 1.1, C, 0.7), "a wrong sigma must be rejected"
    assert not covariance_fits(noise / 1.1, C, 0.7), "a wrong sigma must be rejected"


def test_a_repeated_or_missing_row_and_a_lag_of_five_percent_are_rejected(named_recurrence):
    built = named_recurrence("both", 12)
    strategy, noise = np.linalg.inv(built.inverse), covariance_run(built)
    for t in (0, 5, 10):
        repeated, silent = noise.copy(), noise.copy()
        repeated[t + 1], silent[t] = noise[t], 0
        assert not covariance_fits(repeated, strategy, 0.7)
        assert not covariance_fits(silent, strategy, 0.7)
    noise[1:] += 0.05 * noise[:-1]
    assert not covariance_fits(noise, strategy, 0.7)


@pytest.mark.parametrize(("start", "length"), [(3, 50), (16380, 8200)])
def test_many_rows_at_once_are_those_of_single_steps(mechanism, start, length):
    shard = {"d": start + length + 2, "rounds": 12, "start": start, "stop": start + length}
    x = torch.randn(12, length, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    single, together, again = (make(mechanism.recurrence(), **shard) for _ in range(3))
    expected, got = x.clone(), x.clone()
    for row in expected:
        single.add_(row, 0.7)
    assert not torch.equal(expected, x)
    for low, high in ((0, 0), (0, 1), (1, 7)):
        together.add_rows_(got[low:high], 0.7)
    together.add_(got[7], 0.7)  # stored vectors are as single steps leave them
    again.load_state(together.state_dict(kept_vectors=True))
    again.add_rows_(got[8:], 0.7)
    assert torch.equal(got, expected)
