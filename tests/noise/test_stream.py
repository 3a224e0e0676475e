"""Releases: o = G + X in int64; horizon, seek, states, failures and covariance."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from support.covariance import covariance_fits

from fedmf.errors import HorizonExceededError
from fedmf.matrices.blt import BufferedToeplitz
from fedmf.matrices.factorization import Factorization, Stamped
from fedmf.matrices.streaming_inverse import Recurrence, StreamingInverse
from fedmf.mechanisms.closed_forms import bsr, identity, square_root
from fedmf.mechanisms.registry import build
from fedmf.noise.key import Domain, NoiseKey
from fedmf.noise.noise_stream import NoiseStream, released
from fedmf.participation import Participation

ROUNDS = 9
DIMENSION = 50
STD = 1.7 * 2.0**33

INVERSES: dict[str, StreamingInverse] = {
    "inverse-banded": Recurrence([1.0, -0.5, 0.125], [], np.ones(ROUNDS)),
    "scaled bands": Recurrence([0.8], [0.5, 0.375], np.linspace(2.0, 0.5, ROUNDS)),
    "sums": BufferedToeplitz([0.9, 0.5], [0.3, 0.2], ROUNDS).streaming_inverse(),
}


@pytest.fixture(params=INVERSES)
def inverse(request: pytest.FixtureRequest) -> StreamingInverse:
    """A form that stores nothing, rows, or sums."""
    return INVERSES[request.param]


def make(
    inverse: StreamingInverse,
    d: int = DIMENSION,
    rounds: int = ROUNDS,
    seed: int = 1,
    domain: Domain = Domain.TRAINING,
    std: float = STD,
) -> NoiseStream:
    return NoiseStream(NoiseKey.from_seed(seed), domain, inverse, rounds, d, std)


def rows(noise: NoiseStream, count: int) -> torch.Tensor:
    """X of the next rounds."""
    x = torch.zeros(count, noise.dimension, dtype=torch.int64)
    for row in x:
        noise.release(row)
    return x


def test_a_release_is_the_sum_of_two_integer_vectors(inverse: StreamingInverse) -> None:
    """Also where float64 could not hold it."""
    generator = np.random.default_rng(0)
    large = torch.from_numpy(generator.integers(-(2**61), 2**61, (ROUNDS, DIMENSION)))
    expected = large + rows(make(inverse), ROUNDS)
    together = large.clone()
    make(inverse).release_rows(together)
    assert torch.equal(together, expected)
    noise = make(inverse)
    for t in range(ROUNDS):
        noise.release(large[t])
    assert torch.equal(large, expected)


def test_long_rows_together_are_those_made_one_by_one() -> None:
    """A 20th of a tile is no whole number of blocks of keystream, and has to be cut to one."""
    inverse = square_root(20).streaming_inverse()
    dimension = 40_000
    together = torch.zeros(20, dimension, dtype=torch.int64)
    noise = make(inverse, dimension, 20)
    noise.release_rows(together[:13])
    noise.release_rows(together[13:])
    assert torch.equal(together, rows(make(inverse, dimension, 20), 20))


def test_only_int64_becomes_a_release() -> None:
    x = np.ones(4, np.int64)
    for total in (np.ones(4), np.ones(4, np.int32), np.ones(4, np.uint64)):
        with pytest.raises(TypeError, match="sum and row must be int64; got"):
            released(total, x)
        with pytest.raises(TypeError, match="sum and row must be int64; got"):
            released(x, total)
    assert (x == 1).all()


def test_without_noise_a_release_is_the_sum(inverse: StreamingInverse) -> None:
    noise = make(inverse, std=0.0)
    total = torch.arange(DIMENSION)
    noise.release(total)
    assert torch.equal(total, torch.arange(DIMENSION))
    assert noise.t == 1


def test_the_horizon_is_final(inverse: StreamingInverse) -> None:
    noise = make(inverse)
    out = torch.zeros(DIMENSION, dtype=torch.int64)
    with pytest.raises(HorizonExceededError, match=rf"n \(horizon\) = {ROUNDS}; got"):
        noise.release_rows(torch.zeros(ROUNDS + 1, DIMENSION, dtype=torch.int64))
    for t in range(ROUNDS):
        assert noise.t == t
        noise.seek(noise.t + 1)
    for use in (lambda: noise.release(out), lambda: noise.seek(ROUNDS + 1)):
        with pytest.raises(HorizonExceededError, match=rf"n \(horizon\) = {ROUNDS}; got"):
            use()
    assert not out.any()
    assert noise.t == ROUNDS
    noise.seek(ROUNDS)
    with pytest.raises(HorizonExceededError):
        noise.release(out)


def test_a_skipped_round_still_forms_its_row(inverse: StreamingInverse) -> None:
    expected = rows(make(inverse), ROUNDS)
    noise = make(inverse)
    first = rows(noise, 2)
    noise.seek(noise.t + 2)
    assert torch.equal(first, expected[:2])
    assert torch.equal(rows(noise, ROUNDS - 4), expected[4:])


def test_a_saved_state_continues_with_the_same_rows(inverse: StreamingInverse) -> None:
    """With its stored vectors, without, and with those of an earlier round."""
    expected = rows(make(inverse), ROUNDS)
    noise = make(inverse)
    rows(noise, 3)
    earlier = noise.state_dict(with_vectors=True)
    rows(noise, 2)
    for state in (noise.state_dict(), noise.state_dict(with_vectors=True)):
        again = make(inverse)
        again.load_state(state)
        assert again.t == 5
        assert torch.equal(rows(again, ROUNDS - 5), expected[5:])
    assert "stored" not in noise.state_dict()
    if noise.memory_vectors:
        late = {**noise.state_dict(), "stored": earlier["stored"], "stored_t": 3}
        again = make(inverse)
        again.load_state({**late, "stored_openings": earlier["opening_indices"]})
        assert torch.equal(rows(again, ROUNDS - 5), expected[5:])
        with pytest.raises(
            ValueError, match=r"stored \(vectors of the saved noise\) must be float64 of"
        ):
            make(inverse).load_state({**late, "stored": earlier["stored"].float()})


def test_states_of_other_noise_are_rejected() -> None:
    built = Recurrence([1.0], [0.5, 0.2], np.ones(ROUNDS))
    state = make(built).state_dict()
    nudged = Recurrence([1.0], [0.5 * (1 + 1e-15), 0.2], np.ones(ROUNDS))
    others = {
        "key": make(built, seed=2),
        "domain": make(built, domain=Domain.FIRST_MOMENT),
        "dimension": make(built, d=DIMENSION + 1),
        "digest": make(nudged),
    }
    for name, noise in others.items():
        message = rf"^{name} \(of the saved noise\) must be .* void the guarantee"
        with pytest.raises(ValueError, match=message):
            noise.load_state(state)
        assert noise.t == 0
    for other in (make(built, rounds=ROUNDS - 1), make(built, std=STD * (1 + 1e-15))):
        with pytest.raises(ValueError, match="digest"):
            other.load_state(state)
    for name in state:
        with pytest.raises(ValueError, match=rf"^{name} \(.*\) must be .*; got None"):
            make(built).load_state({key: value for key, value in state.items() if key != name})


def test_unfit_arguments_are_rejected_before_anything_happens() -> None:
    built = INVERSES["scaled bands"]
    noise = make(built)
    for total in (
        torch.zeros(DIMENSION + 1, dtype=torch.int64),
        torch.zeros(DIMENSION, 1, dtype=torch.int64),
        torch.zeros(DIMENSION),
        torch.zeros(DIMENSION, dtype=torch.float64),
        torch.zeros(DIMENSION, dtype=torch.int32),
    ):
        with pytest.raises(
            ValueError, match=r"^sums? must (have shape|be int64 of shape) .* No noise was add"
        ):
            noise.release(total)
        assert not total.any()
    with pytest.raises(ValueError, match=r"^sums must be int64 of shape \(rows, 50\)"):
        noise.release_rows(torch.zeros(DIMENSION, dtype=torch.int64))
    for message, use in (
        (r"^t \(round\) must be an integer of at least 0; got", lambda: noise.seek(-1)),
        (r"^t \(round\) must be an integer of at least 0; got", lambda: noise.seek(True)),
        (
            r"^n \(rounds\) must be an integer with 1 <= n <= 9",
            lambda: make(built, rounds=ROUNDS + 1),
        ),
        (r"^n \(rounds\) must be an integer with 1 <= n <= 9", lambda: make(built, rounds=0)),
        (r"^d \(dimension\) must be an integer; got", lambda: make(built, d=2.0)),
        (r"^d \(dimension\) must be between 1 and 2\^33", lambda: make(built, d=0)),
        (r"^d \(dimension\) must be between 1 and 2\^33", lambda: make(built, d=2**33 + 1)),
        (r"^tau .* must be finite and >= 0; got", lambda: make(built, std=math.nan)),
        (r"^tau .* must be finite and >= 0; got", lambda: make(built, std=-1.0)),
        (r"^rho .* must lie in \[0, 2\^46\]; got", lambda: make(built, std=2.0**47)),
        (r"^7 is not a valid Domain", lambda: make(built, domain=7)),
    ):
        with pytest.raises(ValueError, match=message):
            use()
    assert noise.t == 0


def test_rows_of_a_strided_block_are_released_in_place() -> None:
    built = INVERSES["sums"]
    wide = torch.zeros(ROUNDS, 2 * DIMENSION, dtype=torch.int64)
    make(built).release_rows(wide[:, DIMENSION:])
    assert torch.equal(wide[:, DIMENSION:], rows(make(built), ROUNDS))
    assert not wide[:, :DIMENSION].any()


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
def mechanism(request: pytest.FixtureRequest) -> Factorization:
    """A mechanism of each form in which noise is streamed."""
    if request.param == "stamped blt":
        return Stamped(BufferedToeplitz([0.9, 0.5], [0.3, 0.2], 5), 12)
    return build(request.param, Participation(12, 3, 4), **MECHANISMS[request.param]).factorization


def covariance_run(inverse: StreamingInverse) -> np.ndarray:
    """X of twelve rounds, one after the other."""
    return rows(make(inverse, d=50_001, rounds=12, seed=21), 12).numpy().astype(np.float64)


def test_every_mechanism_has_its_covariance(mechanism: Factorization) -> None:
    """τ²·C⁻¹C⁻ᵀ over rounds; the stream never uses `materialize`."""
    C = mechanism.materialize()
    noise = covariance_run(mechanism.streaming_inverse())
    assert covariance_fits(noise, C, STD)
    assert not covariance_fits(noise * 1.1, C, STD), "a wrong sigma must be rejected"
    assert not covariance_fits(noise * 0.9, C, STD), "a wrong sigma must be rejected"


def test_a_repeated_or_missing_row_and_a_lag_of_five_percent_are_rejected() -> None:
    C = bsr(3, 12)
    strategy = C.materialize()
    noise = covariance_run(C.streaming_inverse())
    for t in (0, 5, 10):
        repeated = noise.copy()
        silent = noise.copy()
        repeated[t + 1] = noise[t]
        silent[t] = 0
        assert not covariance_fits(repeated, strategy, STD)
        assert not covariance_fits(silent, strategy, STD)
    noise[1:] += 0.05 * noise[:-1]
    assert not covariance_fits(noise, strategy, STD)


PROBE = """
import hashlib, numpy as np, torch
from fedmf.mechanisms.registry import build
from fedmf.noise.key import Domain, NoiseKey
from fedmf.noise.noise_stream import NoiseStream
from fedmf.participation import Participation
torch.set_num_threads(1)
digest = hashlib.sha256()
for name in ("normalized-cgd", "banded-toeplitz", "normalized-blt", "tree"):
    C = build(name, Participation(12, 3, 4)).factorization
    inverse = C.streaming_inverse()
    noise = NoiseStream(NoiseKey.from_seed(4), Domain.TRAINING, inverse, 12, 20_000, 2.0**40)
    x = torch.zeros(12, 20_000, dtype=torch.int64)
    noise.release_rows(x)
    digest.update(x.numpy().tobytes())
print(digest.hexdigest())
"""


def probed(**environment: str) -> str:
    command = [sys.executable, "-c", PROBE]
    answer = subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    return answer.stdout.strip()


def test_rows_are_the_same_with_another_instruction_set() -> None:
    """Compiled for any processor, without vectors of AVX and without fused multiply-add."""
    assert probed(NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="") == probed()


def test_keys_are_imported_without_torch_and_compiler() -> None:
    probe = "import sys, fedmf.noise; sys.exit(bool({'numba', 'torch', 'triton'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", probe], timeout=600, check=False).returncode == 0


def test_independent_noise_is_the_innovations_themselves() -> None:
    from fedmf.noise.innovations import Innovations

    noise = make(identity(ROUNDS).streaming_inverse())
    innovations = Innovations(NoiseKey.from_seed(1), Domain.TRAINING)
    for t, row in enumerate(rows(noise, ROUNDS)):
        assert np.array_equal(row, innovations.row(t, STD * (1 + 2.0**-50), DIMENSION))
