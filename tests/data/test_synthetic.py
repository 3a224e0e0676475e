"""Users generated on demand: the law they say they have, whoever is asked for together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedmf.data.keyed_draws import KeyedDraws, normals, sixteen_bits
from fedmf.data.synthetic import Synthetic

laws = settings(derandomize=True, max_examples=30, deadline=None, database=None)


@laws
@given(st.lists(st.integers(0, 10**6 - 1), min_size=1, max_size=40), st.integers(0, 2**63 - 1))
def test_a_user_is_a_function_of_seed_and_number(users: list[int], seed: int) -> None:
    """Alone or in a crowd, among a million or among just enough."""
    law = Synthetic(10**6, "power-law", 1.2, examples_per_user=5, features=9, classes=4, seed=seed)
    crowd, few = law.load(), replace(law, users=max(users) + 1).load()
    features, labels = crowd.examples(np.array(users))
    edges = np.cumsum([0, *crowd.sizes(np.array(users))])
    for i, user in enumerate(users):
        x, y = few.examples(np.array([user]))
        assert torch.equal(x, features[edges[i] : edges[i + 1]])
        assert torch.equal(y, labels[edges[i] : edges[i + 1]])


def test_a_million_users_keep_nothing() -> None:
    few, many = (Synthetic(users).load() for users in (2_000, 2**31 - 1))
    held = [{name: getattr(value, "nbytes", 0) for name, value in vars(data).items()} for data in (few, many)]
    assert held[0].keys() == held[1].keys()
    assert sum(held[1].values()) < 2**22
    assert many.user_ids[2**31 - 2] == "user-2147483646"
    assert many.examples(np.array([2**31 - 2]))[0].shape == (20, 60)


def test_features_have_the_stated_law() -> None:
    """One example of each of 20,000 users: coordinate j has variance 1 + β² + j^−1.2."""
    data = Synthetic(20_000, examples_per_user=1, features=6, beta=2.0, seed=3).load()
    x = data.examples(np.arange(20_000))[0].double().numpy()
    variance = 1 + 4 + np.arange(1, 7) ** -1.2
    for j in range(6):
        assert stats.kstest(x[:, j] / np.sqrt(variance[j]), "norm").pvalue > 1e-6
    covariance = np.cov(x.T)
    # Coordinates share B_k only; a covariance of 20,000 pairs errs by 6/√20,000 = 0.04 a standard error.
    assert np.abs(covariance - np.diag(variance) - 4 * (1 - np.eye(6))).max() < 6 * 0.05


def test_examples_of_a_user_share_its_centre() -> None:
    data = Synthetic(400, examples_per_user=50, features=4, seed=1).load()
    x = data.examples(np.arange(400))[0].double().numpy().reshape(400, 50, 4)
    within = x.var(axis=1, ddof=1).mean(axis=0)
    # 19,600 degrees of freedom: a standard error of 1 %.
    assert within == pytest.approx(np.arange(1, 5) ** -1.2, rel=0.06)


def agreement(alpha: float, clusters: int) -> float:
    """Accuracy on held-out users of one logistic regression trained on everybody's examples."""
    data = Synthetic(
        300, examples_per_user=30, features=8, classes=3, clusters=clusters, alpha=alpha, seed=2
    ).load()
    x, y = data.examples(np.arange(300))
    model = torch.nn.Linear(8, 3)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=60, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(model(x), y) + 1e-4 * model.weight.square().sum()
        value.backward()
        return value

    optimizer.step(loss)  # type: ignore[arg-type]
    return float((model(data.test_features).argmax(dim=1) == data.test_labels).double().mean())


def test_alpha_sets_how_much_users_models_differ() -> None:
    same, wild = (agreement(alpha, 1) for alpha in (0.0, 10.0))
    assert same > 0.93
    assert wild < same - 0.2


def test_sizes_follow_the_power_law() -> None:
    data = Synthetic(50_000, "power-law", 2.0, seed=4).load()
    sizes = data.sizes(np.arange(50_000))
    assert sizes.min() == 10
    for size in (20, 40, 100):
        share = (sizes > size).mean()
        # P(size > s) = (10/s)², rounding included; 50,000 users err by at most 0.0022 a standard error.
        assert share == pytest.approx((10 / (size + 0.5)) ** 2, abs=6 * 0.0022)
    assert set(Synthetic(100, examples_per_user=7).load().sizes(np.arange(100)).tolist()) == {7}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"users": 0}, "users.* must be an integer in 1.*; got 0"),
        ({"examples_per_user": 0}, "examples_per_user must be an integer in 1.*; got 0"),
        ({"features": 0}, "features must be an integer in 1.*; got 0"),
        ({"classes": -1}, "classes must be an integer in 2.*; got -1"),
        ({"clusters": 0}, "clusters. must be an integer in 1..1000; got 0"),
        ({"alpha": -0.1}, r"α \(alpha\) must lie in .0, ∞.; got -0.1"),
        ({"beta": float("nan")}, r"β \(beta\) must lie in .0, ∞.; got nan"),
        ({"partition": "shards"}, "partition must be one of iid, power-law; got 'shards'"),
        ({"size_exponent": 1.0}, r"a \(size_exponent\) must lie in"),
    ],
)
def test_impossible_worlds_are_refused(keys: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Synthetic(**{"users": 10, **keys})  # type: ignore[arg-type]


def test_keyed_words_are_uniform_and_differ_by_user_counter_seed_and_purpose() -> None:
    users, counters = np.arange(200), np.tile(np.arange(50), (200, 1))
    words = KeyedDraws(0, "a").words(users, counters)
    assert len(np.unique(words)) == words.size
    for other in (KeyedDraws(1, "a"), KeyedDraws(0, "b")):
        assert not np.isin(other.words(users, counters), words).any()
    parts = sixteen_bits(words)
    assert parts.shape == (200, 200)
    assert stats.chisquare(np.bincount(parts.ravel() >> 8, minlength=256)).pvalue > 1e-6
    assert stats.kstest(normals(words).ravel(), "norm").pvalue > 1e-6
    rows = normals(words).astype(np.float64)
    # 19,900 pairs of users, each a mean of 200 products: 6 standard errors.
    assert np.abs(np.corrcoef(rows) - np.eye(200)).max() < 6 / np.sqrt(200)
