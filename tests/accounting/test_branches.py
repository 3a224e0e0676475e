"""Continuations of one run accounted for together, against the covariance of what they release."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest
from support.continuations import covariance, furthest, released_rows
from support.oracles import patterns

from fedmf.accounting import PairRelease, SecondStream, SumRelease
from fedmf.accounting.continuations import Continuation, JointRecord
from fedmf.accounting.realised import realised_privacy
from fedmf.factorization import Dense, Factorization, Toeplitz, identity
from fedmf.factorization.matrices.toeplitz import InverseToeplitz
from fedmf.factorization.sensitivity.branches import Branches, BranchGram, Segment

DELTA = 1e-5
#: Relative; sums of some ten float64 Gram entries against the inverse of a covariance.
TOLERANCE = 1e-9
NON_NEGATIVE = {
    "toeplitz": lambda n: Toeplitz([1.0, 0.75, 0.5], n),
    "banded": lambda n: Toeplitz([1.0, 0.6], n),
    "dense": lambda n: Dense(np.tril(np.random.default_rng(5).uniform(0.1, 1.0, (n, n)))),
}
SIGNED = {
    "inverse": lambda n: InverseToeplitz([1.0, 0.7, -0.3], n),
    "signed dense": lambda n: Dense(np.tril(np.random.default_rng(7).normal(size=(n, n)), -1) + np.eye(n)),
}
#: Rounds of each continuation, as letters: equal letters from the beginning on are one release.
TREES = {
    "two branches": ["abcde", "abxyz"],
    "different lengths": ["abcde", "abx"],
    "copied before the first round": ["abc", "xy"],
    "an earlier state": ["abcde", "ab"],
    "three at one round": ["abcd", "abx", "abrs"],
    "copied twice": ["abcde", "abcx", "ays"],
}


@cache
def covariance_of(name: str, tree: str) -> np.ndarray:
    return covariance({**NON_NEGATIVE, **SIGNED}[name](5).materialize(), TREES[tree])


def joint_patterns(tree: str, k: int, b: int) -> list[tuple[int, ...]]:
    """Indices into `released_rows` of every joint pattern whose every continuation keeps (k, b)."""
    rows = released_rows(TREES[tree])
    ways = [[rows.index((path[: t + 1], t)) for t in range(len(path))] for path in TREES[tree]]
    allowed = [{(), *(tuple(way[t] for t in rounds) for rounds in patterns(len(way), k, b))} for way in ways]
    return [
        chosen
        for size in range(1, len(rows) + 1)
        for chosen in itertools.combinations(range(len(rows)), size)
        if all(tuple(i for i in chosen if i in way) in kept for way, kept in zip(ways, allowed, strict=True))
    ]


def joint_record(tree: str, pattern: tuple[int, ...]) -> JointRecord:
    """A single user who took part in these released rows, as the ledgers of the continuations tell."""
    rows = released_rows(TREES[tree])
    members = {rows[i] for i in pattern}
    continuations = []
    for path in TREES[tree]:
        rounds = [t for t in range(len(path)) if (path[: t + 1], t) in members]
        users = ["ann"] if rounds else []
        keys = np.zeros(len(rounds), dtype=np.int32)
        continuations.append(Continuation(list(path), users, np.array(rounds, dtype=np.int32), keys))
    return JointRecord.of(continuations)


def moved(factorization: Factorization, tree: str, pattern: tuple[int, ...]) -> float:
    """The sensitivity that accounting gives to a single user with this pattern."""
    record = joint_record(tree, pattern)
    return float(SumRelease(factorization).of_equal_length(record.places[None], record.branches)[0])


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("name", NON_NEGATIVE)
@pytest.mark.parametrize(("k", "b"), [(1, 1), (2, 1), (2, 2), (3, 1)])
def test_mu_is_that_of_the_pair_of_releases(name, tree, k, b):
    """C ≥ 0: exact, for every pattern of a user who keeps (k, b) in every continuation."""
    factorization, sigma = NON_NEGATIVE[name](5), 1.3
    cov = covariance_of(name, tree)
    every = joint_patterns(tree, k, b)
    assert every
    expected = [furthest(cov, pattern) for pattern in every]
    assert [moved(factorization, tree, pattern) for pattern in every] == pytest.approx(
        expected, rel=TOLERANCE
    )
    worst = joint_record(tree, every[int(np.argmax(expected))])
    for adjacency, factor in (("zero-out", 1.0), ("replace-one", 2.0)):
        release = SumRelease(factorization)
        found = realised_privacy(worst.patterns, release, sigma, DELTA, worst.branches, adjacency)
        assert found.mu == pytest.approx(factor * max(expected) / sigma, rel=TOLERANCE)


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("name", SIGNED)
def test_mu_is_never_below_that_of_any_user(name, tree):
    """Where columns have negative inner products: a bound for scalars ± 1 and for vectors."""
    factorization, rng = SIGNED[name](5), np.random.default_rng(3)
    cov = covariance_of(name, tree)
    for pattern in joint_patterns(tree, 2, 1)[::3]:
        directions = rng.normal(size=(len(pattern), 3))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        assert moved(factorization, tree, pattern) >= furthest(cov, pattern, directions) * (1 - TOLERANCE)


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("name", [*NON_NEGATIVE, *SIGNED])
def test_gram_entries_are_those_of_the_noise(name, tree):
    """[MᵀM] is the inverse of the covariance of the released noise, entry by entry."""
    factorization = {**NON_NEGATIVE, **SIGNED}[name](5)
    branches, places = Branches.of_paths(TREES[tree])
    order = {}
    for path, way in zip(TREES[tree], places, strict=True):
        order |= {(path[: t + 1], t): place for t, place in enumerate(way.tolist())}
    at = [order[row] for row in released_rows(TREES[tree])]
    assert sorted(at) == list(range(branches.rounds))
    precision = np.linalg.inv(covariance_of(name, tree))
    gram = BranchGram(factorization, branches)
    for gap in range(branches.rounds):
        diagonal = gram.gram_diagonal(gap)
        for i, j in itertools.product(range(len(at)), repeat=2):
            if at[j] - at[i] == gap:
                assert diagonal[at[i]] == pytest.approx(precision[i, j], rel=1e-9, abs=1e-10)


def test_two_branches_cost_neither_the_sum_nor_independence():
    """Rows 0..9 shared, C with memory: composition of whole branches counts them twice, and a second branch
    taken for a run of its own forgets that its rows repeat what early rounds contributed."""
    C, sigma = Toeplitz(0.9 ** np.arange(20), 20), 1.0
    ann = [0, 5, 12, 17]
    paths = [[f"a{t}" for t in range(20)], [f"a{t}" if t < 10 else f"b{t}" for t in range(20)]]
    rounds, keys = np.array(ann), np.zeros(4, dtype=np.int64)
    record = JointRecord.of([Continuation(path, ["ann"], rounds, keys) for path in paths])
    joint = realised_privacy(record.patterns, SumRelease(C), sigma, DELTA, record.branches).mu
    one = realised_privacy({tuple(ann): 1}, SumRelease(C), sigma, DELTA, 20).mu
    early = realised_privacy({(0, 5): 1}, SumRelease(C), sigma, DELTA, 10).mu
    alone = realised_privacy({(2, 7): 1}, SumRelease(C), sigma, DELTA, 10).mu
    assert joint == pytest.approx((2 * one**2 - early**2) ** 0.5, rel=1e-12)  # inclusion and exclusion
    assert joint < 0.99 * 2**0.5 * one
    assert joint > 1.01 * (one**2 + alone**2) ** 0.5


def test_a_pair_of_streams_takes_branches_too():
    C, C_2 = Toeplitz([1.0, 0.5], 4), Toeplitz([1.0, 0.25], 4)
    second = SecondStream("per-user", "diagonal", 3, 3, 0.5, "x", {}, C_2)
    pair = PairRelease(C, second, 1.0, "zero-out", 8)
    branches, (_, other) = Branches.of_paths(["abcd", "abxy"])
    pattern = np.array([[0, 2, int(other[3])]])
    squares = []
    for factorization in (C, C_2):
        precision = np.linalg.inv(covariance(factorization.materialize(), ["abcd", "abxy"]))
        squares.append(precision[np.ix_(pattern[0], pattern[0])].sum())
    expected = (squares[0] + 0.5 * squares[1]) ** 0.5
    assert pair.of_equal_length(pattern, branches)[0] == pytest.approx(expected, rel=1e-12)


def test_records_of_many_users_are_put_together_once():
    """Shared rounds count once, a user of one branch alone has that branch alone."""
    first = Continuation(["a", "b", "c"], ["ann", "bob"], np.array([0, 2, 1]), np.array([0, 0, 1]))
    other = Continuation(["a", "b", "x"], ["bob", "eve", "ann"], np.array([1, 2, 0]), np.array([0, 1, 2]))
    record = JointRecord.of([first, other])
    assert record.branches.segments == (Segment(0, 2, None), Segment(2, 3, 0), Segment(2, 3, 0))
    assert record.patterns.to_counts() == {(0, 2): 1, (1,): 1, (3,): 1}
    assert record.users == ["ann", "bob", "eve"]


def test_one_continuation_is_the_run_itself():
    C, release = Toeplitz([1.0, 0.5, 0.25], 6), SumRelease(Toeplitz([1.0, 0.5, 0.25], 6))
    straight, _ = Branches.of_paths(["abcd"])
    table = np.array([[0, 2], [1, 3]])
    assert np.array_equal(release.of_equal_length(table, straight), release.of_equal_length(table, 4))
    assert Branches.of_paths([])[0].rounds == 0
    assert JointRecord.of([]).patterns.participants == 0
    assert C.rounds == 6


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        ((Segment(1, 2, None),), "must begin at round 0"),
        ((Segment(0, 2, None), Segment(3, 4, 0)), "must begin at round 2"),
        ((Segment(0, 2, 0),), "earlier segment"),
    ],
)
def test_segments_follow_their_parents(segments, message):
    with pytest.raises(ValueError, match=message):
        Branches(segments)


def test_no_branch_goes_past_the_horizon():
    branches, _ = Branches.of_paths(["abcd"])
    with pytest.raises(ValueError, match="T \\(released rounds\\)"):
        BranchGram(identity(3), branches)
