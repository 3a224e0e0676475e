"""Every row has the key of the opening that released it first, whatever the form of C⁻¹ and the
kernel.
"""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from support.covariance import covariance_fits
from support.openings import fresh, schedule_of

from fedmf.mechanisms.registry import build
from fedmf.noise.innovations import Innovations
from fedmf.noise.key import Domain, NoiseKey
from fedmf.noise.noise_stream import NoiseStream
from fedmf.noise.schedule import KeySchedule
from fedmf.participation import Participation

ROOT = NoiseKey(bytes(range(32)))
PUBLIC = NoiseKey.from_seed(3)
ROUNDS = 12
DIMENSION = 20_001
STD = 1.3 * 2.0**33
#: Stopped after 3, after 4 (opened twice there: the first time nothing was released) and after 9
#: rounds.
OPENINGS = [
    (0, fresh("a")),
    (3, fresh("b")),
    (4, fresh("unused")),
    (4, fresh("c")),
    (9, fresh("d")),
]
FORKED = 5


def key_at(t: int, openings=OPENINGS) -> NoiseKey:
    """Return the key of row t, by the rule in words."""
    last_salt = b""
    for first, salt in openings:
        if first <= t:
            last_salt = salt
    return NoiseKey(ROOT.subkey("opening " + last_salt.hex()))


def interrupted(inverse, openings, dimension=DIMENSION, forgetful=False, rounds=ROUNDS):
    """Return releases of zeros by a run that stops before every opening, and continues.

    A forgetful one makes all rows with the key of the last opening, past ones too.
    """
    released = torch.zeros(rounds, dimension, dtype=torch.int64)
    state = None
    edges = [*(first for first, _ in openings[1:]), rounds]
    for count, stop in enumerate(edges, start=1):
        keys = schedule_of(ROOT, openings[:count])
        if forgetful:
            keys = KeySchedule.constant(keys.key_of(2**40))
            keys.digest = lambda t: ""  # type: ignore[method-assign]
            keys.root = ROOT
        noise = NoiseStream(keys, Domain.TRAINING, inverse, rounds, dimension, STD)
        if state is not None:
            noise.load_state(state)
        while noise.t < stop:
            noise.release(released[noise.t])
        state = noise.state_dict()
    return released.numpy()


def test_a_row_has_the_key_of_the_last_opening_up_to_it() -> None:
    schedule = schedule_of(ROOT, OPENINGS)
    for t in (0, 2, 3, 4, 8, 9, 10, 2**40):
        assert schedule.key_of(t) == key_at(t)
        assert schedule.key_of(t) != ROOT
    assert schedule.opening_indices([9, 8, 4, 3, 2]) == [4, 3, 3, 1, 0]
    assert {schedule.key_of(t).public for t in range(10)} == {False}
    assert len({schedule.key_of(t) for t in range(12)}) == 4


def test_rows_that_were_not_released_have_no_key_before_an_opening() -> None:
    for root in (ROOT, PUBLIC):
        schedule = KeySchedule(root, OPENINGS[:2], released=4)
        source = Innovations(schedule, Domain.TRAINING)
        assert not schedule.opened
        assert schedule.opening_indices([3, 0]) == ([1, 0] if root is ROOT else [0, 0])
        with pytest.raises(RuntimeError, match="must be below 4, the rounds released"):
            source.row(4, STD, 5)
        before = source.row(3, STD, 5)
        schedule.open(*OPENINGS[3])
        assert np.array_equal(source.row(3, STD, 5), before)
        assert np.abs(source.row(4, STD, 5)).min() > 0


@pytest.mark.parametrize(
    ("openings", "released", "message"),
    [
        ([(1, bytes(32))], 4, "must be 0 for the first"),
        ([(0, bytes(32)), (3, bytes(32)), (2, bytes(32))], 4, "must be at least 3"),
        ([(0, bytes(32)), (5, bytes(32))], 4, "must be at most 4, the rounds released"),
        ([(0, bytes(16))], 4, "must be 32 bytes"),
        ([], 4, "openings must be recorded where 4 rounds were released"),
    ],
)
def test_openings_that_no_run_records_are_refused(openings, released, message) -> None:
    with pytest.raises(ValueError, match=message):
        KeySchedule(ROOT, openings, released)


def test_an_opening_elsewhere_or_again_is_refused_and_keys_stay_hidden() -> None:
    schedule = KeySchedule(ROOT, OPENINGS[:2], released=4)
    with pytest.raises(ValueError, match="opened at 4; got an opening at 5"):
        schedule.open(5, bytes(32))
    schedule.open(4, bytes(32))
    with pytest.raises(ValueError, match="opened once; got an opening at 4"):
        schedule.open(4, bytes(32))
    assert repr(schedule) == f"KeySchedule({ROOT!r}, openings=3, opened=True)"
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(schedule)


def test_the_digest_is_that_of_the_rows_before() -> None:
    whole = schedule_of(ROOT, OPENINGS)
    other = schedule_of(ROOT, [*OPENINGS[:3], (4, fresh("other"))])
    stopped = KeySchedule(ROOT, OPENINGS[:3], released=4)
    for t in (0, 1, 3, 4):
        assert whole.digest(t) == other.digest(t) == stopped.digest(t)
    assert whole.digest(5) != other.digest(5)
    assert len({whole.digest(t) for t in (0, 1, 4, 5, 10)}) == 5
    assert whole.digest(5) == schedule_of(ROOT, [OPENINGS[0], OPENINGS[1], OPENINGS[3]]).digest(5)


def test_a_state_of_another_branch_is_refused() -> None:
    inverse = build("blt", Participation(ROUNDS, 3, 4)).factorization.streaming_inverse()

    def stream_of(name: str) -> NoiseStream:
        keys = schedule_of(ROOT, [*OPENINGS[:2], (4, fresh(name))])
        return NoiseStream(keys, Domain.TRAINING, inverse, ROUNDS, 7, STD)

    noise = stream_of("x")
    branch = stream_of("y")
    noise.seek(4)
    branch.load_state(noise.state_dict())  # nothing was released under the keys that differ
    noise.seek(5)
    with pytest.raises(
        ValueError, match=r"opening_indices .of the saved noise. must be .* from the same copy"
    ):
        branch.load_state(noise.state_dict())
    assert branch.t == 4


def own_rows(count: int, scales: np.ndarray) -> np.ndarray:
    """Return k of each round with the key of its own opening."""
    rows = np.empty((ROUNDS, count), np.int64)
    for t in range(ROUNDS):
        rows[t] = Innovations(key_at(t), Domain.TRAINING).row(t, float(scales[t]), count)
    return rows


def test_each_row_is_drawn_with_its_own_key() -> None:
    scales = np.linspace(0.5, 2.0, ROUNDS) * STD
    rounds = [11, 9, 8, 3, 2, 0]
    k = np.empty((len(rounds), 408), np.int64)
    Innovations(schedule_of(ROOT, OPENINGS), Domain.TRAINING).draw(rounds, scales[rounds], 0, k)
    assert np.array_equal(k, own_rows(408, scales)[rounds])


EACH_FORM = ["bisr", "banded-toeplitz", "normalized-blt", "tree", "kary-tree", "dense"]


@pytest.fixture(params=EACH_FORM)
def strategy(request: pytest.FixtureRequest):
    """A mechanism of each form in which noise is streamed."""
    return build(request.param, Participation(ROUNDS, 3, 4)).factorization


def test_an_interrupted_stream_adds_rows_of_their_own_keys(strategy) -> None:
    """D·k = C·X + errors of at most one unit each, with k of those keys."""
    rows = interrupted(strategy.streaming_inverse(), OPENINGS, 40)
    scales = STD * strategy.streaming_inverse().diagonal() * (1 + 2.0**-50)
    C = strategy.materialize()
    difference = np.diag(C)[:, None] * own_rows(40, scales) - C @ rows
    assert np.abs(difference).max() <= 0.6 * np.abs(C).sum(axis=1).max()
    whole = NoiseStream(
        schedule_of(ROOT, OPENINGS), Domain.TRAINING, strategy.streaming_inverse(), ROUNDS, 40, STD
    )
    block = torch.zeros(ROUNDS, 40, dtype=torch.int64)
    whole.release_rows(block[:7])
    whole.release_rows(block[7:])
    assert np.array_equal(rows, block)


FORMS = ["banded-inverse", "banded-toeplitz", "blt"]


@pytest.mark.parametrize("name", FORMS)
def test_the_covariance_over_interruptions_is_that_of_the_plan(name: str) -> None:
    factorization = build(name, Participation(ROUNDS, 3, 4)).factorization
    inverse = factorization.streaming_inverse()
    matrix = factorization.materialize()
    noise = interrupted(inverse, OPENINGS)
    assert covariance_fits(noise, matrix, STD)
    assert not covariance_fits(noise * 1.1, matrix, STD), "a wrong sigma must be rejected"
    forgetful = interrupted(inverse, OPENINGS, forgetful=True)
    assert not covariance_fits(forgetful, matrix, STD), "past rows drawn with the newest key"


def test_two_branches_release_through_the_stacked_matrix() -> None:
    """Common rows, then those of each copy: Y = M⁻¹z.

    M = [[C11, 0, 0], [C21, C22, 0], [C21, 0, C22]].
    """
    factorization = build("banded-toeplitz", Participation(ROUNDS, 3, 4)).factorization
    inverse = factorization.streaming_inverse()
    C = factorization.materialize()
    T = FORKED
    branches = [interrupted(inverse, [*OPENINGS[:2], (T, fresh(branch))]) for branch in "xy"]
    assert np.array_equal(branches[0][:T], branches[1][:T])
    zero = np.zeros((ROUNDS - T, ROUNDS - T))
    M = np.block(
        [
            [C[:T, :T], np.zeros((T, 2 * (ROUNDS - T)))],
            [C[T:, :T], C[T:, T:], zero],
            [C[T:, :T], zero, C[T:, T:]],
        ]
    )
    assert covariance_fits(np.vstack([branches[0], branches[1][T:]]), M, STD)
    assert not covariance_fits(np.vstack([branches[0], branches[0][T:]]), M, STD), (
        "the same noise twice"
    )
