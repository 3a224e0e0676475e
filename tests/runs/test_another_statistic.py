"""A released quantity that fedmf does not have needs one file: every path, station and reader knows
it.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from support.apps_of_runs import TASK as APP_TASK
from support.apps_of_runs import same_as_a_run
from support.mean_norms import UNIT, MeanNorm, Norm
from support.moving_norms import RULE, moving_run, uneven_task, updates_of, watch
from support.normals import normals
from support.small_runs import small_run

from fedmf.clipping.clipped_sum import ClippedSum
from fedmf.errors import ConfigError
from fedmf.ledger.ledger import Ledger
from fedmf.noise.key import Domain

pytestmark = pytest.mark.usefixtures("mean_norms")
PART = MeanNorm(budget_share=0.3)


def means(path: Path) -> np.ndarray:
    with Ledger.open(path / "ledger.sqlite", read_only=True) as ledger:
        rows = ledger.metrics()
    return np.array([rows[t]["mean_norm"] for t in sorted(rows) if t])


def test_a_wrapped_app_has_those_of_a_run(tmp_path: Path) -> None:
    run = dataclasses.replace(
        small_run(APP_TASK, mechanism="bisr", epsilon=20.0), extra_releases=(PART,)
    )
    same_as_a_run(run, tmp_path)
    assert len(means(tmp_path / "run")) == 12
    np.testing.assert_allclose(means(tmp_path / "app"), means(tmp_path / "run"), atol=1e-5)


def test_its_noise_is_that_of_its_share_next_to_a_moving_clip_norm(tmp_path: Path) -> None:
    """By the definition: norms of updates clipped to ζ_t in units of ζ_t, and C⁻¹ as a matrix."""
    task = uneven_task(20)
    run = moving_run(task, mechanism="bsr", bands=2)
    watched = watch(tmp_path / "run", dataclasses.replace(run, extra_releases=(PART,)))
    statement = json.loads((tmp_path / "run" / "statement.json").read_text())
    assert len(set(watched.norms)) > 6
    lengths = np.linalg.norm(updates_of(run, task), axis=1)
    sums = []
    for cohort, zeta in zip(watched.cohorts, watched.norms, strict=True):
        sums.append(np.minimum(lengths[cohort] / zeta, 1.0).sum())
    rounds = len(sums)
    z = normals(7, Domain.of_statistic(PART.name), rounds, 1)[:, 0]
    C = np.eye(rounds) + 0.5 * np.eye(rounds, k=-1)
    level = statement["noise_multiplier"] * (statement["sensitivity"] + statement["rounding"])
    noise = level / math.sqrt(PART.budget_share) * np.linalg.solve(C, z)
    wanted = (np.array(sums) + noise) / statement["users_per_round"]
    np.testing.assert_allclose(means(tmp_path / "run"), wanted, atol=1e-5)
    left = 1 - RULE.budget_share - PART.budget_share
    wanted_std = level * statement["clip_norm"] / math.sqrt(left)
    assert statement["noise_std"] == pytest.approx(wanted_std, rel=1e-12)


def test_a_statistic_that_lies_of_its_bound_is_cut_to_it() -> None:
    """A faulty function costs accuracy; what one user moves stays within what was accounted for."""

    class Wild(Norm):
        def of(self, sign: int, norm: float) -> int:
            return {0.5: 10 * UNIT, 1.0: -(10**15), 0.2: 3}[norm]

    class Broken(Norm):
        def of(self, sign: int, norm: float) -> int:
            return int(math.nan if norm > 0.5 else 1 // sign)

    signs = np.array([1, -1, 1, 0])
    norms = np.array([0.5, 1.0, 0.2, 0.0])
    assert Wild().total(signs, norms) == UNIT - UNIT + 3  # who adds nothing tells nothing
    assert (
        Wild().total(np.array([1, 1]), np.array([0.7, 0.2])) == 3
    )  # it fails for one user, who adds 0
    assert Broken().total(signs, norms) == 2
    told = ClippedSum(3, 1.0, statistics=[Norm()])
    for lie in (UNIT + 1, -UNIT - 1):
        with pytest.raises(ValueError, match="slice norms must add up to at most"):
            Norm().check(lie, 1)
    assert told.lengths == {"sum": 3, "norms": 1}


def test_what_is_no_part_is_refused_in_a_line() -> None:
    with pytest.raises(ConfigError, match=r"must hold values of fedmf.runs.Statistic; got 1\."):
        dataclasses.replace(small_run(), extra_releases=(1,))
