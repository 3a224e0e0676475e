"""The end-to-end audit in its short form: silent on the code as it is, loud on code that is broken.

Keys and coins are fresh ones, and no test here leans on what they happen to be: each fails on right code with
chance below 1e-6.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from scipy import stats
from support.worlds import EndToEnd, audit_end_to_end
from support.worlds.hostile_worlds import shift_interval

from fedmf.cli.app import run as command
from fedmf.errors import ConfigError
from fedmf.noise import BlockedNoise
from fedmf.rounds import here
from fedmf.runs import Run, run_of
from fedmf.runs import server as server_module
from fedmf.training.barrier import loading as loading_module

KEYS = {"data.users": 120, "cohorts": {"rounds": 4, "size": 60}, "mechanism": {"kind": "bisr", "bands": 2}}
#: A bound or interval that holds with this confidence accuses right code once in a million tests.
SHORT = {"behaviours": ("raise", "huge"), "canary_runs": 1, "world_runs": 0, "confidence": 1 - 1e-6}
#: Two runs of it are 4,000 trials, nearly as cheap as those of KEYS.
MANY = {**KEYS, "data.users": 2000, "cohorts": {"rounds": 4, "size": 1000}}


def short(run: Run | None = None, **changes: object) -> EndToEnd:
    return audit_end_to_end(run or run_of(KEYS), command, **{**SHORT, **changes})  # type: ignore[arg-type]


def weaken(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """Noise of a standard deviation divided by ``factor``; every record and plan stays as it was."""

    class Weaker(BlockedNoise):
        def blocks(self):
            for part, noise in super().blocks():
                yield part, _Weakened(noise, factor)

    monkeypatch.setattr(server_module, "BlockedNoise", Weaker)


@dataclass
class _Weakened:
    noise: Any
    factor: float

    def add_(self, out: Any, scale: float) -> None:
        self.noise.add_(out, scale / self.factor)


def test_a_correct_run_is_not_accused_and_the_audit_has_teeth() -> None:
    """With 4,000 trials the bound stays below 0.4 μ with chance 2e-7, and is above 0.55 μ nearly always."""
    found = short(run_of(MANY), canary_runs=2)
    assert found.contradictions == ()
    assert found.canaries == 2 * 2000
    assert found.bound.mu > 0.4 * found.mu_claimed
    exact = {world.behaviour: world.mu_exact for world in found.worlds}
    assert 0.9 * found.mu_claimed < exact["raise"] <= found.mu_claimed * 1.001
    assert 0 < exact["huge"] < exact["raise"]


def test_too_little_noise_is_caught_by_canaries(monkeypatch: pytest.MonkeyPatch) -> None:
    """σ/2 at ε = 8: with 4,000 trials it stays unseen with chance below 1e-20."""
    weaken(monkeypatch, 2.0)
    found = short(run_of(MANY), canary_runs=2, behaviours=())
    assert found.bound.mu > found.mu_claimed
    assert found.refuted


@pytest.mark.parametrize(("messages", "together"), [("slice", None), ("per-user", None), ("per-user", 1)])
def test_a_user_who_takes_others_along_is_caught(
    messages: str, together: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A barrier that gives up on everybody whom it loads together with a broken user, unless that is one."""
    true = loading_module.load_examples

    def all_or_none(dataset, structure, users, counts, note):
        failed: list[tuple[int, str]] = []
        loaded = true(dataset, structure, users, counts, lambda place, why: failed.append((place, why)))
        for place in range(users.size) if failed else ():
            note(place, failed[0][1])
        return loaded

    monkeypatch.setattr("fedmf.training.local.load_examples", all_or_none)
    form = {} if together is None else {"execution.users-per-message": together}
    run = run_of({**KEYS, "execution.messages": messages, **form})
    found = short(run, behaviours=("raise",))
    (world,) = found.worlds
    assert (world.mu_exact > 3 * found.mu_claimed) is (together != 1)
    assert found.refuted is (together != 1)


def test_what_else_leaves_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning that names who failed."""
    train = here.trained

    def telling(request, trainer, sums):
        answer = train(request, trainer, sums)
        for failure in answer.failures:
            logging.getLogger("fedmf").warning("user %s failed", failure.user)
        return answer

    monkeypatch.setattr(here, "trained", telling)
    found = short(behaviours=("raise", "slow"))
    assert [len(world.outside) for world in found.worlds] == [1, 0]
    assert found.contradictions[0].startswith("raise: log: ")


def test_the_interval_holds_with_its_confidence() -> None:
    """1,000 intervals at 0.9 of μ = 2 from 8 + 8 values; this test's false-alarm rate: 1e-6 a side."""
    rng, low, high = np.random.default_rng(4), 0, 0
    for _ in range(1000):
        limits = shift_interval(rng.normal(2, 1, 8), rng.normal(0, 1, 8), 0.9)
        low, high = low + (limits[0] > 2), high + (limits[1] < 2)
    assert stats.binom.ppf(1e-6, 1000, 0.05) <= min(low, high)
    assert max(low, high) <= stats.binom.isf(1e-6, 1000, 0.05)


def test_replace_one() -> None:
    replaced = short(run_of({**KEYS, "privacy.adjacency": "replace-one"}), behaviours=("opposite",))
    assert replaced.contradictions == ()
    assert replaced.worlds[0].mu_exact > 0.9 * replaced.mu_claimed


def test_sampled_cohorts() -> None:
    """Their worlds are compared under one key."""
    sampled = run_of(
        {
            **KEYS,
            "cohorts": {"kind": "cyclic-poisson", "rounds": 4, "size": 60},
            "privacy.amplified": True,
            "mechanism": {"kind": "identity"},
        }
    )
    found = short(sampled, behaviours=("nan",), world_runs=3)
    assert found.contradictions == ()
    assert np.isnan(found.worlds[0].mu_low)


def test_bad_requests() -> None:
    with pytest.raises(ConfigError, match="behaviour must be one of raise, "):
        short(behaviours=("polite",))
    with pytest.raises(ConfigError, match="users must be at most"):
        short(run_of({**KEYS, "data.kind": "synthetic", "data.users": 5000}))
    with pytest.raises(ConfigError, match="canary runs must be at least 1"):
        short(world_runs=1)
    with pytest.raises(ConfigError, match="without noise claims nothing"):
        short(run_of({**KEYS, "privacy.kind": "none"}))
