"""The letter in plain words: its figure is a bound, and it says nothing that is not public."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest
from accounting.test_public_statement import BUSY, IDLE, pair_header, published
from scipy.stats import norm
from support.headers import make_header

from fedmf.accounting.gaussian import gaussian_delta, gaussian_mu, gaussian_sigma
from fedmf.cohorts import AvailableCohorts
from fedmf.errors import ConfigError
from fedmf.runs.directory import RunHeader
from fedmf.statements.advantage import (
    advantage,
    approximate_advantage,
    gaussian_advantage,
    in_points,
)
from fedmf.statements.letter import PrivacyLetter

DAY = date(2026, 11, 28)


@pytest.mark.parametrize("sigma", [0.3, 0.6, 2.0, 50.0])
def test_no_test_of_two_gaussians_does_better(sigma: float) -> None:
    """The likelihood ratio is monotone, so that the best test is a threshold, here at μ/2."""
    mu = gaussian_mu(sigma)
    best = norm.sf(mu / 2, mu) - norm.sf(mu / 2)
    assert best * (1 - 1e-12) <= gaussian_advantage(mu) <= best * (1 + 1e-11)
    assert gaussian_advantage(mu) == pytest.approx(gaussian_delta(sigma, 0.0), rel=1e-9)
    for epsilon in (0.0, 0.5, 2.0, 8.0):
        allowed = approximate_advantage(epsilon, gaussian_delta(sigma, epsilon))
        assert allowed >= best * (1 - 1e-12), epsilon


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 0.0), (3.0, 1e-3), (8.0, 1e-5)])
def test_the_worst_pair_of_a_guarantee_attains_its_bound(epsilon: float, delta: float) -> None:
    """With δ an answer tells all, else it is randomized response (Kairouz et al. 2015)."""
    honest = (1 - delta) * math.exp(epsilon) / (1 + math.exp(epsilon))
    lying = (1 - delta) / (1 + math.exp(epsilon))
    attained = delta + honest - lying
    assert approximate_advantage(epsilon, delta) == pytest.approx(attained, rel=1e-11)
    assert approximate_advantage(epsilon, delta) >= attained * (1 - 1e-12)


@pytest.mark.parametrize("header_of", [make_header, pair_header])
def test_a_letter_says_nothing_of_who_took_part(
    tmp_path: Path, header_of: Callable[[], RunHeader]
) -> None:
    header = header_of()
    letters = []
    for name, cohorts in (("busy", BUSY), ("idle", IDLE)):
        public, _, _ = published(tmp_path / name, header, cohorts)
        letter = PrivacyLetter.of(public, DAY)
        letters.append((letter.to_markdown(), letter.to_html()))
    assert letters[0] == letters[1]
    right = math.ceil(50 + 50 * gaussian_advantage(public["mu"]))
    for text in letters[0]:
        assert "28 November 2026" in text
        assert f"right in at most {right} of 100" in text
        assert f"the limit is {in_points(gaussian_advantage(public['mu']))} points" in text
        assert "is connected" not in text
        assert "up to 20 points a strong" in text
        assert (
            "published by an earlier computation on these people: this letter counts only" in text
        )
        for word in ("spent", "7f3", "http"):
            assert word not in text, word


def test_amplified_guarantees_have_the_smaller_of_two_bounds(tmp_path: Path) -> None:
    """The Gaussian bound against those who know the cohorts holds against others, too."""
    public, _, _ = published(tmp_path / "run", make_header(), BUSY)
    public["amplification"] = {"accountant": "poisson"}
    known = public["epsilon_known_cohorts"]
    assert advantage({**public, "epsilon": known}) == gaussian_advantage(public["mu"])
    assert advantage({**public, "epsilon": 0.3}) == approximate_advantage(0.3, public["delta"])
    assert "who took part in which round" in PrivacyLetter.of(public, DAY).to_markdown()


def test_the_grade_follows_from_the_advantage_and_not_from_rounded_guesses(tmp_path: Path) -> None:
    """ε = 8 at δ = 1e-4 is right in 82.2 of 100 cases: 83 would be 66 points and weak."""
    public, _, _ = published(tmp_path / "run", make_header(), BUSY)
    mu = gaussian_mu(gaussian_sigma(8.0, delta=1e-4))
    letter = PrivacyLetter.of({**public, "epsilon": 8.0, "delta": 1e-4, "mu": mu}, DAY)
    text = letter.to_markdown()
    assert "right in at most 83 of 100" in text
    assert "64.3 points" in text
    assert "this one is moderate" in text


def test_a_letter_about_connected_users_names_their_condition(tmp_path: Path) -> None:
    header = make_header()
    cohorts = AvailableCohorts(rounds=6, users_per_round=2)
    header = dataclasses.replace(header, run={**header.run, "cohorts": cohorts.to_dict()})
    public, _, _ = published(tmp_path / "run", header, BUSY)
    condition = "No person’s data decide whether that person is connected"
    for statement in (public, {**public, "composed": [{**public, "directory": "run"}]}):
        assert condition in PrivacyLetter.of(statement, DAY).to_markdown()


def test_a_letter_about_streams_alone_tells_of_no_model(tmp_path: Path) -> None:
    run, _, _ = published(tmp_path / "run", make_header(), BUSY)
    run["directory"] = "run"
    stream = {**run, "workload": "average", "columns": ["x"], "directory": "stream"}
    for parts, told in (([stream, stream], False), ([stream, run], True)):
        text = PrivacyLetter.of({**run, "composed": parts}, DAY).to_markdown()
        assert ("model" in text) == told
        assert ("was published by another of these computations" in text) == told


def test_a_letter_says_what_an_expert_needs_to_compute_epsilon(tmp_path: Path) -> None:
    """The matrix stands in ``plan.json`` alone, which only runs with released integers have."""
    public, _, _ = published(tmp_path / "run", make_header(), BUSY)
    assert "was not kept" in PrivacyLetter.of(public, DAY).to_markdown()
    public["released_files"] = {"plan.json": "12", "integers.bin": "ab34"}
    text = PrivacyLetter.of(public, DAY).to_markdown()
    assert "can compute ε again" in text
    assert "folder `simulations` of the source distribution of fedmf" in text
    assert "SHA-256 digest `ab34`" in text


@pytest.mark.parametrize("changes", [{"key_public": True}, {"noise_multiplier": 0.0}])
def test_a_letter_about_nothing_protected_is_refused(tmp_path: Path, changes: dict) -> None:
    header: RunHeader = make_header(**changes)
    public, _, _ = published(tmp_path / "run", header, BUSY)
    with pytest.raises(ConfigError, match="must be about a run with secret noise"):
        PrivacyLetter.of(public, DAY)
