"""What a sweep costs as a whole: against the exact δ of joint Gaussian releases and against plain sums."""

from __future__ import annotations

import math

import pytest
from scipy import integrate, stats
from support.sweeps import small_sweep

from fedmf.accounting import NoPrivacy, UserLevel, gaussian_sigma
from fedmf.sweeps import composed_privacy


def joint_delta(mus: list[float], epsilon: float) -> float:
    """δ of independent Gaussian releases of shifts μ_i, two of them, by numerical integration.

    δ = E[(1 − e^{ε − L})₊] with L = Σ (μ_i X_i − μ_i²/2), X_i ~ N(μ_i, 1).
    """
    first, second = mus

    def inner(x: float) -> float:
        loss = first * x - first**2 / 2
        # (1 − e^{ε − L})₊ over X_2: positive where μ_2 X_2 − μ_2²/2 > ε − loss
        threshold = (epsilon - loss) / second + second / 2
        plain = stats.norm.sf(threshold - second)
        less = math.exp(epsilon - loss) * stats.norm.sf(threshold)
        return float(stats.norm.pdf(x - first) * (plain - less))

    value, _ = integrate.quad(inner, first - 9, first + 9, epsabs=1e-13, epsrel=1e-10, limit=400)
    return value


@pytest.mark.parametrize(("first", "second"), [(2.0, 2.0), (8.0, 1.0), (0.5, 4.0)])
def test_two_runs_cost_what_their_joint_release_does(first: float, second: float) -> None:
    found = composed_privacy([[UserLevel(epsilon=first)], [UserLevel(epsilon=second)]])
    mus = [1 / gaussian_sigma(epsilon, 1e-5) for epsilon in (first, second)]
    assert joint_delta(mus, found.epsilon) <= found.delta * (1 + 1e-6)
    assert joint_delta(mus, found.epsilon * (1 - 1e-4)) > found.delta  # and it is no looser than it must be
    assert max(first, second) < found.epsilon < first + second
    assert found.rule == "Gaussian composition"


def test_a_run_that_is_chosen_counts_as_the_worst_it_may_be() -> None:
    open_choice = composed_privacy(
        [[UserLevel(epsilon=2.0)], [UserLevel(epsilon=1.0), UserLevel(epsilon=4.0)]]
    )
    worst = composed_privacy([[UserLevel(epsilon=2.0)], [UserLevel(epsilon=4.0)]])
    assert open_choice.epsilon == worst.epsilon


def test_amplified_runs_add_up() -> None:
    runs = [[UserLevel(epsilon=2.0, delta=1e-6, amplified=True)], [UserLevel(epsilon=3.0, delta=1e-5)]]
    found = composed_privacy(runs)
    assert (found.epsilon, found.delta) == pytest.approx((5.0, 1.1e-5), rel=1e-12)
    assert "sum of ε and of δ" in found.render()


def test_runs_without_noise_are_not_private() -> None:
    found = composed_privacy([[NoPrivacy()], [UserLevel(epsilon=2.0)], [UserLevel(), NoPrivacy()]])
    assert (found.runs, found.open_runs, found.epsilon) == (3, 2, math.inf)
    assert found.noised_epsilon == pytest.approx(2.0, rel=1e-6)
    assert found.render().startswith("Not private as a whole: 2 of 3 runs add no noise.")
    assert composed_privacy([[NoPrivacy()]]).render() == "Not private: none of the 1 runs adds noise."


def test_what_is_said_of_seeds_adjacency_and_useless_deltas() -> None:
    both = composed_privacy([[UserLevel(adjacency="replace-one")], [UserLevel()]])
    assert (both.adjacency, both.public_noise) == ("zero-out", False)
    assert composed_privacy([[UserLevel(adjacency="replace-one", noise_seed=1)]]).adjacency == "replace-one"
    assert "simulation that protects nobody" in composed_privacy([[UserLevel(noise_seed=1)]]).render()
    many = composed_privacy([[UserLevel(delta=0.6, amplified=True)]] * 2)
    assert many.render() == "All 2 runs together promise nothing: their δ add up to 1.2."


def test_tuning_runs_count() -> None:
    """5 tuning and reported runs of one cell cost √5 times the μ of one."""
    sweep = small_sweep(
        variants={"identity": {"mechanism.kind": "identity"}}, grid={}, tuning_seeds=(100,), base={}
    )
    sigma = gaussian_sigma(8.0, 1e-5)
    found = composed_privacy(sweep.promises)
    assert found.runs == 2 + 3
    delta = found.delta
    # exact, by the law of one Gaussian of shift √5/σ
    mu = math.sqrt(5) / sigma
    exact = stats.norm.cdf(mu / 2 - found.epsilon / mu) - math.exp(found.epsilon) * stats.norm.cdf(
        -mu / 2 - found.epsilon / mu
    )
    assert exact == pytest.approx(delta, rel=1e-5)
