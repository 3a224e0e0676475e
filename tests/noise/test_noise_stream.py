"""[C⁻¹z]_t against dense linear algebra; horizon, seek, shards, retries and refusals."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
import torch

from fedmf.errors import HorizonExceededError
from fedmf.mechanisms.streaming import Recurrence
from fedmf.noise.domain import Domain
from fedmf.noise.kernels.cpu import TILE
from fedmf.noise.key import NoiseKey
from fedmf.noise.rows import noise_stream as stream_module
from fedmf.noise.rows import row_rules
from fedmf.noise.rows.noise_stream import NoiseStream
from fedmf.noise.source import GaussianSource

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


def test_short_horizons(recurrence):
    for rounds in (1, 2, 3, 4):
        built = recurrence(rounds)
        got = rows(make(built, rounds=rounds), rounds)
        np.testing.assert_allclose(got, dense(built, rounds), rtol=0, atol=ROUNDING)


def test_a_horizon_below_the_row_scale_uses_its_first_rows(recurrence):
    built = recurrence(ROUNDS)
    got = rows(make(built, rounds=4), 4)
    np.testing.assert_allclose(got, dense(built)[:4], rtol=0, atol=ROUNDING)


def test_vectors_longer_than_a_tile(recurrence):
    built, d = recurrence(4), TILE + 11
    got = rows(make(built, d=d, rounds=4), 4)
    np.testing.assert_allclose(got, dense(built, 4, d), rtol=0, atol=ROUNDING)


def test_scale_multiplies_and_out_is_added_to(named_recurrence):
    built = named_recurrence("both", 2)
    noise, start = make(built, rounds=2), torch.linspace(-3, 3, DIMENSION, dtype=torch.float64)
    expected = dense(built, 2)
    for t, scale in enumerate((2.5, -0.125)):
        out = start.clone()
        noise.add_(out, scale)
        np.testing.assert_allclose(out, start.numpy() + scale * expected[t], rtol=0, atol=ROUNDING)


def test_float32_is_the_float64_sum_rounded_once(recurrence):
    built = recurrence(ROUNDS)
    exact, single = make(built), make(built)
    for _ in range(ROUNDS):
        wide, narrow = torch.ones(DIMENSION, dtype=torch.float64), torch.ones(DIMENSION)
        exact.add_(wide, 0.3)
        single.add_(narrow, 0.3)
        assert torch.equal(narrow, wide.to(torch.float32))


def test_parameters_that_require_gradients_can_be_noised(named_recurrence):
    out = torch.zeros(DIMENSION, requires_grad=True)
    make(named_recurrence("identity", 1), rounds=1).add_(out, 1.0)
    assert out.abs().sum() > 0
    assert out.grad_fn is None


def test_memory_is_the_order_of_the_feedback(recurrence):
    noise = make(recurrence(ROUNDS))
    assert noise.memory_vectors == recurrence(ROUNDS).feedback.shape[-1]
    rows(noise, 2)
    held = [value for value in vars(noise).values() if isinstance(value, torch.Tensor)]
    assert sum(tensor.numel() for tensor in held) == noise.memory_vectors * DIMENSION
    assert sum(tensor.nbytes for tensor in held) == noise.memory_bytes


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


def test_a_skipped_row_is_consumed(recurrence):
    built = recurrence(ROUNDS)
    expected, noise = rows(make(built), ROUNDS), make(built)
    for t in range(ROUNDS):
        if t % 3 == 1:
            noise.skip()
        else:
            assert torch.equal(rows(noise, 1)[0], expected[t])


def test_seek_is_as_if_streamed(recurrence):
    built = recurrence(ROUNDS)
    expected = rows(make(built), ROUNDS)
    for before, target in itertools.product((0, 3, ROUNDS), (0, 2, 3, 7)):
        noise = make(built)
        rows(noise, before)
        noise.seek(target)
        assert noise.t == target
        assert torch.equal(rows(noise, ROUNDS - target), expected[target:])


@pytest.mark.parametrize("t", [-1, 1.0, True, "0"])
def test_seek_to_no_round_is_refused(named_recurrence, t):
    with pytest.raises(ValueError, match=r"^t \(round\) must be an integer of at least 0; got"):
        make(named_recurrence("identity", 3), rounds=3).seek(t)


def test_shards_are_slices_of_the_whole(recurrence):
    d, rounds = 2 * TILE + 333, 4
    built = recurrence(rounds)
    whole = make(built, d=d, rounds=rounds)
    edges = [0, 1, 1021, TILE - 3, TILE, TILE + 1029, d]
    shards = [make(built, d=d, rounds=rounds, start=a, stop=b) for a, b in itertools.pairwise(edges)]
    for _ in range(rounds):
        assert torch.equal(torch.cat([rows(shard, 1)[0] for shard in shards]), rows(whole, 1)[0])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_thread_count_does_not_matter(named_recurrence, threads):
    built, d = named_recurrence("both", 4), 2 * TILE + 333
    expected = rows(make(built, d=d, rounds=4), 4)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        assert torch.equal(rows(make(built, d=d, rounds=4), 4), expected)
    finally:
        torch.set_num_threads(before)


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


@pytest.mark.parametrize("least_draws", [-math.inf, math.inf], ids=["past z kept", "drawn again"])
def test_an_interrupted_row_is_the_same_when_tried_again(recurrence, least_draws, monkeypatch):
    """Interrupt every row in its first pass, then in its second where it has one."""
    monkeypatch.setattr(row_rules, "_WORTH_DRAWS", least_draws)
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


def test_state_resumes_bit_for_bit_in_any_sharding(recurrence):
    built = recurrence(ROUNDS)
    first = make(built)
    rows(first, 5)
    state = json.loads(json.dumps(first.state_dict()))
    expected = rows(first, ROUNDS - 5)
    resumed, shard = make(built), make(built, start=7, stop=31)
    resumed.load_state(state)
    shard.load_state(state)
    assert resumed.t == shard.t == 5
    assert torch.equal(rows(resumed, ROUNDS - 5), expected)
    assert torch.equal(rows(shard, ROUNDS - 5), expected[:, 7:31])


def test_state_holds_no_noise_and_no_key(named_recurrence):
    secret = bytes(range(50, 82))
    source = GaussianSource(NoiseKey(secret), DIMENSION)
    state = NoiseStream(source, named_recurrence("both", ROUNDS), ROUNDS).state_dict()
    assert set(state) == {"t", "key", "domain", "dimension", "digest", "eras"}
    assert state["key"] == NoiseKey(secret).fingerprint
    assert secret.hex() not in json.dumps(state)


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
            ValueError, match=rf"^{name} \(of the saved noise\) must be .* void the guarantee"
        ):
            noise.load_state(state)
        assert noise.t == 0
    with pytest.raises(ValueError, match="digest"):
        make(built, rounds=ROUNDS - 1).load_state(state)
    for name in state:
        with pytest.raises(ValueError, match=rf"must have the entry '{name}'"):
            make(built).load_state({key: value for key, value in state.items() if key != name})


def test_the_digest_tells_recurrences_apart():
    def digest(feedforward, feedback, row_scale, rounds=2):
        parts = Recurrence(
            feedforward=np.array(feedforward), feedback=np.array(feedback), row_scale=np.array(row_scale)
        )
        return make(parts, rounds=rounds).digest

    digests = {
        digest([1.0], [], [1.0, 1.0]),
        digest([1.0], [1.0], [1.0, 1.0]),
        digest([1.0, 1.0], [], [1.0, 1.0]),
        digest([1.0], [], [1.0, 1.0, 1.0]),
        digest([1.0], [], [1.0, 1.0, 1.0], rounds=3),
        digest([1.0], [0.0], [1.0, 1.0]),
        digest([[1.0], [1.0]], [], [1.0, 1.0]),
        digest([[1.0], [2.0]], [], [1.0, 1.0]),
        digest([[1.0, 2.0], [1.0, 2.0]], [], [1.0, 1.0]),
        digest([[1.0, 1.0], [2.0, 2.0]], [], [1.0, 1.0]),
        digest([1.0], [[0.0], [0.0]], [1.0, 1.0]),
    }
    assert len(digests) == 11


def test_equal_rows_stream_the_same_bits_as_a_vector():
    vector = Recurrence(
        feedforward=np.array([0.8, -0.3]), feedback=np.array([0.5, 0.1]), row_scale=np.ones(ROUNDS)
    )
    matrix = Recurrence(
        feedforward=np.tile(vector.feedforward, (ROUNDS, 1)),
        feedback=np.tile(vector.feedback, (ROUNDS, 1)),
        row_scale=vector.row_scale,
    )
    assert torch.equal(rows(make(vector), ROUNDS), rows(make(matrix), ROUNDS))


@pytest.mark.parametrize(
    "out",
    [
        torch.zeros(DIMENSION + 1),
        torch.zeros(DIMENSION, 1),
        torch.zeros(()),
        torch.zeros(2 * DIMENSION)[::2],
        torch.zeros(DIMENSION, dtype=torch.float16),
        torch.zeros(DIMENSION, dtype=torch.int64),
        torch.zeros(DIMENSION, device="meta"),
    ],
    ids=["long", "matrix", "scalar", "strided", "float16", "int64", "device"],
)
def test_an_unfit_vector_is_refused_before_anything_happens(named_recurrence, out):
    noise = make(named_recurrence("both", ROUNDS))
    with pytest.raises(ValueError, match=r"^(out \(vector\) must |device \(of the noise\) must be ).*; got"):
        noise.add_(out, 1.0)
    assert noise.t == 0
    noise.add_(torch.zeros(DIMENSION), 1.0)


@pytest.mark.parametrize("scale", [math.inf, -math.inf, math.nan])
def test_a_scale_that_is_not_finite_is_refused(named_recurrence, scale):
    noise, out = make(named_recurrence("both", ROUNDS)), torch.zeros(DIMENSION)
    with pytest.raises(ValueError, match=r"^scale .* must be finite; got"):
        noise.add_(out, scale)
    assert noise.t == 0
    assert not out.any()


@pytest.mark.parametrize("rounds", [0, -1, ROUNDS + 1, 2.0, True])
def test_a_horizon_the_factorization_does_not_have_is_refused(named_recurrence, rounds):
    with pytest.raises(ValueError, match=r"^n \(rounds\) must be an integer with 1 <= n <= 9"):
        make(named_recurrence("scaled-rows", ROUNDS), rounds=rounds)


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (0, DIMENSION + 1), (4, 4), (5, 4)])
def test_a_shard_outside_the_vector_is_refused(named_recurrence, start, stop):
    with pytest.raises(ValueError, match=r"^start, stop \(shard\) must satisfy"):
        make(named_recurrence("identity", 2), rounds=2, start=start, stop=stop)


def test_the_horizon_error_is_a_runtime_error_with_a_public_name():
    assert issubclass(HorizonExceededError, RuntimeError)
    assert stream_module.HorizonExceededError is HorizonExceededError
