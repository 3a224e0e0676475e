"""Branches of one run together, with common rounds once, against the covariance of all releases."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from support.continuations import covariance, furthest, released_rows
from support.oracles import patterns

from fedmf.errors import LedgerError
from fedmf.ledger.lineage import Lineage
from fedmf.matrices.factorization import Dense, Factorization
from fedmf.matrices.sensitivity import sensitivity_of
from fedmf.matrices.toeplitz import InverseToeplitz, Toeplitz
from fedmf.participation import Participation
from fedmf.statements.composition import LaterCost, PrivacyCost, UserLosses, compose
from fedmf.statements.recorded_patterns import pattern_sensitivity
from fedmf.statements.row_blocks import gram_of_rows, largest_movement, recorded_movements

CONTRACT = (5, 2, 2)
N = CONTRACT[0]
FORK = 2
#: Histories of two branches, a letter a round.
PATHS = ("aabbb", "aaccc")
STRATEGIES: dict[str, Factorization] = {
    "toeplitz": Toeplitz([1.0, 0.75, 0.5, 0.25], N),
    "dense": Dense(np.tril(np.random.default_rng(5).uniform(0.1, 1.0, (N, N)))),
    "signed": InverseToeplitz([1.0, 0.7, -0.3], N),
}


def whole(C: Factorization, pattern: tuple[int, ...]) -> float:
    return pattern_sensitivity(C, pattern)


def later(C: Factorization, pattern: tuple[int, ...], fork: int) -> float:
    gram = gram_of_rows(C, fork, N)
    return float(recorded_movements(gram, np.array([pattern]))[0]) if pattern else 0.0


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_pair_of_patterns_costs_what_both_branches_give(name: str) -> None:
    """Over all patterns in two branches that agree before the fork, and all signs."""
    C = STRATEGIES[name]
    cov = covariance(C.materialize(), PATHS)
    rows = released_rows(PATHS)
    gram = gram_of_rows(C, FORK, N)
    planned = math.hypot(
        sensitivity_of(C, Participation(*CONTRACT)).value,
        largest_movement(gram, Participation(*CONTRACT)),
    )
    worst = 0.0
    for p, q in itertools.product([(), *patterns(*CONTRACT)], repeat=2):
        if [t for t in p if t < FORK] != [t for t in q if t < FORK]:
            continue
        taken = {(PATHS[0][: t + 1], t) for t in p} | {(PATHS[1][: t + 1], t) for t in q}
        expected = furthest(cov, [rows.index(row) for row in sorted(taken)])
        found = math.hypot(whole(C, p), later(C, q, FORK))
        assert found >= expected * (1 - 1e-12)
        if name != "signed":
            assert found == pytest.approx(expected, rel=1e-9)
        worst = max(worst, expected)
    assert worst * (1 - 1e-12) <= planned < math.sqrt(2) * whole_worst(C)


def whole_worst(C: Factorization) -> float:
    return sensitivity_of(C, Participation(*CONTRACT)).value


def test_the_bound_by_rows_lies_above_the_enumeration(monkeypatch: pytest.MonkeyPatch) -> None:
    for C in STRATEGIES.values():
        gram = gram_of_rows(C, FORK, N)
        enumerated = largest_movement(gram, Participation(*CONTRACT))
        expected = max(later(C, pattern, FORK) for pattern in patterns(*CONTRACT))
        assert enumerated == pytest.approx(expected, rel=1e-11)
        with monkeypatch.context() as patched:
            patched.setattr("fedmf.statements.row_blocks._MOST_PATTERNS", 0)
            assert largest_movement(gram, Participation(*CONTRACT)) >= enumerated * (1 - 1e-12)


class Rows:
    """Releases of a branch that cost each user the same after every fork."""

    def __init__(self, planned_mu: float, users: list[str], mu: float) -> None:
        self.cost = LaterCost(planned_mu, UserLosses(users, np.full(len(users), mu)))
        self.forks: list[int] = []

    def after(self, fork: int) -> LaterCost:
        self.forks.append(fork)
        return self.cost


def branch(name: str, commits: str, salts: str = "", **changes: object) -> PrivacyCost:
    """A branch with a letter for each commit, and for the salt of its opening."""
    said = {
        "unit": "user",
        "adjacency": "zero-out",
        "noise_key": "k",
        "noise_key_public": False,
        "delta": 1e-5,
        "mu": 2.0,
        "epsilon": 9.0,
        "amplification": None,
        "users_participated": 1,
        **changes,
    }
    chains = tuple(commits[: t + 1].encode() for t in range(len(commits)))
    lineage = Lineage(b"run", chains, tuple(salt.encode() for salt in salts or commits))
    return PrivacyCost(
        name, said, UserLosses(["u"], np.array([1.5])), lineage, Rows(1.0, ["u"], 0.5)
    )


def test_a_tree_of_branches_counts_every_release_once() -> None:
    """The longest branch counts whole, others from the last commit they share with a longer one."""
    costs = [branch("short", "aab"), branch("long", "aaccccc"), branch("third", "aacccd")]
    costs.append(branch("copy", "aacc"))
    made = compose(costs)
    assert [cost.later.forks for cost in costs] == [[2], [], [5], []]
    assert made["mu"] == pytest.approx(math.sqrt(2.0**2 + 2 * 1.0**2), rel=1e-12)
    assert made["mu_spent"] == pytest.approx(math.sqrt(1.5**2 + 2 * 0.5**2), rel=1e-12)
    counted = [part["counted"].split(":")[0] for part in made["composed"]]
    assert counted == ["branch", "all releases", "branch", "copy"]


def test_a_copy_costs_nothing_more() -> None:
    made = compose([branch("run", "aaa"), branch("copy", "aaa")])
    assert made["mu"] == pytest.approx(2.0, rel=1e-12)
    assert made["mu_spent"] == pytest.approx(1.5, rel=1e-12)


def test_without_row_blocks_common_rounds_count_twice_and_the_statement_says_so() -> None:
    costs = [branch("a", "aab"), branch("b", "aac")]
    for cost in costs:
        cost.later.after = lambda fork: None
    made = compose(costs)
    assert made["mu"] == pytest.approx(2.0 * math.sqrt(2), rel=1e-12)
    assert "counted twice, which is a safe bound" in made.render_text()


@pytest.mark.parametrize(
    "other",
    [
        branch("b", "aac", salts="aab"),
        branch("b", "aac", noise_key_public=True),
    ],
    ids=["one opening", "public key"],
)
def test_branches_with_the_same_noise_are_refused(other: PrivacyCost) -> None:
    with pytest.raises(LedgerError, match=r"same noise.*not independent"):
        compose([branch("a", "aab"), other])
