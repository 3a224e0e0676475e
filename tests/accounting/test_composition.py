"""Several independent releases joined by user, against covariances, integrals and simulated
adversaries.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from support.continuations import furthest
from support.oracles import patterns

from fedmf.accounting.gaussian import gaussian_epsilon
from fedmf.accounting.rounding import at_least
from fedmf.errors import ConfigError, LedgerError
from fedmf.matrices.factorization import Dense, Factorization
from fedmf.matrices.toeplitz import InverseToeplitz, Toeplitz
from fedmf.statements.composition import PrivacyCost, UserLosses, compose, joined_mu
from fedmf.statements.recorded_patterns import pattern_sensitivity

DELTA = 1e-5
#: Relative; sums of some ten float64 Gram entries against the inverse of a covariance.
TOLERANCE = 1e-9


def costs(name: str, mu: dict[str, float], /, **changes: object) -> PrivacyCost:
    worst = max(mu.values(), default=0.0)
    said = {
        "unit": "user",
        "adjacency": "zero-out",
        "noise_key": f"key of {name}",
        "noise_key_public": False,
        "delta": DELTA,
        "mu": worst,
        "mu_spent": worst,
        "epsilon": worst,
        "epsilon_spent": worst,
        "amplification": None,
        "users_participated": len(mu),
        **changes,
    }
    return PrivacyCost(name, said, UserLosses(list(mu), np.array([*mu.values()], dtype=np.float64)))


def shift(made: Factorization, pattern: tuple[int, ...]) -> float:
    return pattern_sensitivity(made, pattern)


FIRST = (4, 2, 2)
SECOND = (5, 2, 3)
STRATEGIES: dict[str, tuple[Factorization, Factorization]] = {
    "toeplitz, banded": (Toeplitz([1.0, 0.75, 0.5], 4), Toeplitz([1.0, 0.6], 5)),
    "toeplitz, dense": (
        Toeplitz([1.0, 0.5, 0.25, 0.125], 4),
        Dense(np.tril(np.random.default_rng(5).uniform(0.1, 1.0, (5, 5)))),
    ),
}
NOISE = (1.7, 0.9)


def stacked(parts: list[tuple[np.ndarray, float]], one_key: bool = False) -> np.ndarray:
    """Covariance of all sums that several runs release; with one key their z are equal, row by
    row.
    """
    sizes = [len(C) for C, _ in parts]
    blocks = [[np.zeros((n, m)) for m in sizes] for n in sizes]
    for (i, (C, noise)), (j, (D, other)) in itertools.product(enumerate(parts), repeat=2):
        if i == j or one_key:
            shared = np.eye(len(C), len(D))
            blocks[i][j] = noise * other * np.linalg.inv(C) @ shared @ np.linalg.inv(D).T
    return np.block(blocks)


@pytest.mark.parametrize("pair", STRATEGIES)
def test_every_pair_of_patterns_costs_what_the_stacked_release_gives(pair: str) -> None:
    """Mahalanobis distance under the covariance of both releases, over all patterns and signs."""
    C, D = STRATEGIES[pair]
    cov = stacked([(C.materialize(), NOISE[0]), (D.materialize(), NOISE[1])])
    users = {
        f"{p} {q}": (p, q)
        for p, q in itertools.product([(), *patterns(*FIRST)], [(), *patterns(*SECOND)])
        if p or q
    }
    joined = [
        costs(
            name, {user: shift(made, one) / noise for user, one in zip(users, taken, strict=True)}
        )
        for name, made, noise, taken in (
            ("a", C, NOISE[0], [p for p, _ in users.values()]),
            ("b", D, NOISE[1], [q for _, q in users.values()]),
        )
    ]
    names, mu = joined_mu([one.spent for one in joined])
    assert names == list(users)
    for name, found in zip(names, mu.tolist(), strict=True):
        p, q = users[name]
        expected = furthest(cov, [*p, *(4 + t for t in q)])
        assert found == pytest.approx(expected, rel=TOLERANCE)
        assert found >= expected * (1 - 1e-12)


def test_signed_strategies_are_never_counted_too_low() -> None:
    C = InverseToeplitz([1.0, 0.7, -0.3], 4)
    D = InverseToeplitz([1.0, -0.8], 5)
    cov = stacked([(C.materialize(), 1.0), (D.materialize(), 1.0)])
    for p, q in itertools.product(patterns(*FIRST), patterns(*SECOND)):
        found = math.hypot(shift(C, p), shift(D, q))
        assert found >= furthest(cov, [*p, *(4 + t for t in q)]) * (1 - 1e-12)


def test_one_key_twice_protects_nobody() -> None:
    """Differences of the two releases hold no noise: the covariance has a direction with none,
    along which a user's contribution shows. Such a pair is refused.
    """
    C = Toeplitz([1.0, 0.75, 0.5], 4)
    D = Toeplitz([1.0, 0.6], 4)
    cov = stacked([(C.materialize(), 1.0), (D.materialize(), 1.0)], one_key=True)
    values, vectors = np.linalg.eigh(cov)
    silent = vectors[:, values < 1e-12]
    assert silent.shape[1] == 4
    assert np.abs(silent[0]).max() > 0.1
    with pytest.raises(LedgerError, match=r"noise keys must be different; a and b have k, "):
        compose([costs("a", {"u": 1.0}, noise_key="k"), costs("b", {"u": 1.0}, noise_key="k")])


def test_figures_of_the_statement_are_those_of_the_users() -> None:
    made = compose(
        [
            costs("a", {"ann": 0.5, "bob": 1.0, "eve": 0.3}),
            costs("b", {"bob": 1.5, "joe": 0.2}, delta=1e-6),
            costs("c", {"ann": 1.2, "bob": 2.0}),
        ]
    )
    worst = math.sqrt(1 + 1.5**2 + 4)
    assert (made["delta"], made["users_participated"], made["users_in_several"]) == (1e-6, 4, 2)
    assert made["mu_spent"] == pytest.approx(worst, rel=1e-12)
    assert made["epsilon_spent"] == pytest.approx(gaussian_epsilon(1 / worst, 1e-6), rel=1e-9)
    assert made["epsilon_spent_quantiles"]["0.5"] == pytest.approx(
        gaussian_epsilon(1 / 0.3, 1e-6), rel=1e-9
    )
    assert made["epsilon"] == pytest.approx(gaussian_epsilon(1 / worst, 1e-6), rel=1e-9)
    assert "(not private)" in made.render_text()


def test_the_public_statement_of_several_tells_nothing_of_participation() -> None:
    made = [
        compose(
            [costs("a", spent, mu=2.0, epsilon=1.0), costs("b", {"bob": 1.5}, mu=1.5, epsilon=1.0)]
        )
        for spent in ({"ann": 0.5, "bob": 1.0}, {"joe": 0.1})
    ]
    assert made[0].public() == made[1].public()
    text = made[0].public().render_text()
    promised = gaussian_epsilon(1 / 2.5, DELTA)
    assert f"2 runs and streams together: every user has ({at_least(promised)}, 1e-05)" in text
    assert "(not private)" not in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"adjacency": "replace-one"},
            "adjacency must be the same to account for several together; a has",
        ),
        ({"unit": "example"}, "unit must be the same"),
        ({"noise_key": "key of a"}, "noise keys must be different"),
    ],
)
def test_what_cannot_be_joined_is_refused_in_one_line(
    changes: dict[str, str], message: str
) -> None:
    with pytest.raises((ConfigError, LedgerError), match=message) as refused:
        compose([costs("a", {"u": 1.0}), costs("b", {"u": 1.0}, **changes)])
    assert "\n" not in str(refused.value)
