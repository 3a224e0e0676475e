"""A released quantity that fedmf does not have needs one file: every path, station and reader knows it."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.apps_of_runs import TASK as APP_TASK
from support.apps_of_runs import same_as_a_run
from support.mean_norms import UNIT, MeanNorm, Norm
from support.moving_norms import RULE, moving_run, uneven_task, updates_of, watch
from support.small_runs import small_run

from fedmf.errors import ConfigError
from fedmf.noise import Domain, GaussianSource, NoiseKey
from fedmf.records.ledger import Ledger
from fedmf.runs.run import Run
from fedmf.runs.statistics import STATISTICS
from fedmf.runs.tables.configuration import TABLES, dotted_keys, known_keys, run_of
from fedmf.training import FixedPointSum

DIMENSION, PART, NAME = 20, MeanNorm(share=0.3), MeanNorm.name
TASK = uneven_task(DIMENSION)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The line that it would have in `fedmf/runs/statistics/__init__.py`."""
    register(monkeypatch)
    yield
    monkeypatch.undo()
    known_keys.cache_clear()


def register(patched: pytest.MonkeyPatch) -> None:
    """Readers of records and of configurations look it up.

    Raises:
        ValueError: fedmf has a part of that name, which nothing would test any more.
    """
    if NAME in STATISTICS:
        raise ValueError(f"name (of the part of tests) must be no part of fedmf; got {NAME!r}.")
    patched.setitem(STATISTICS, NAME, {MeanNorm.kind: MeanNorm})
    patched.setitem(TABLES, NAME, STATISTICS[NAME])
    known_keys.cache_clear()  # it is asked once a process


def with_means(**keys: object) -> Run:
    """A run whose clip norm moves beside it: three quantities share μ²."""
    return dataclasses.replace(
        moving_run(TASK, **{"mechanism": "bsr", "bands": 2, **keys}), extra_releases=(PART,)
    )


def means(path: Path) -> np.ndarray:
    with Ledger.open(path / "ledger.sqlite", read_only=True) as ledger:
        rows = ledger.metrics()
    return np.array([rows[t]["mean_norm"] for t in sorted(rows) if t])


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patched:
        register(patched)
        path = tmp_path_factory.mktemp("means") / "run"
        watched = watch(path, with_means())
    return watched, path, json.loads((path / "statement.json").read_text())


def test_it_releases_the_mean_and_noise_of_the_level_that_is_its_share(seen) -> None:
    """By the definition: C⁻¹ as a matrix, z from the key, norms of users' updates."""
    watched, path, statement = seen
    assert len(set(watched.norms)) > 6  # the clip norm moved beside it
    lengths = np.linalg.norm(updates_of(with_means(), TASK), axis=1)
    sums = [
        np.floor(np.minimum(lengths[cohort] / zeta, 1.0) * UNIT).sum() / UNIT
        for cohort, zeta in zip(watched.cohorts, watched.norms, strict=True)
    ]
    rounds, m = len(sums), statement["users_per_round"]
    source = GaussianSource(NoiseKey.from_seed(7), 1, Domain.of_part(NAME))
    z = np.array([float(source.block(t, 0, 1)[0]) for t in range(rounds)])
    C = np.eye(rounds) + 0.5 * np.eye(rounds, k=-1)
    std = statement["noise_multiplier"] * statement["sensitivity"] / math.sqrt(PART.share)
    wanted = (np.array(sums) + std * np.linalg.solve(C, z)) / m
    # Rows that were clipped to float32 may have their norm one unit lower.
    np.testing.assert_allclose(means(path), wanted, atol=2 * 24 / UNIT / m)
    left = 1 - RULE.share - PART.share
    level = statement["noise_multiplier"] * statement["sensitivity"] * statement["clip_norm"]
    assert statement["noise_std"] == pytest.approx(level / math.sqrt(left), rel=1e-12)


def test_a_wrapped_app_has_those_of_a_run(tmp_path: Path) -> None:
    run = dataclasses.replace(small_run(APP_TASK, mechanism="bisr", epsilon=20.0), extra_releases=(PART,))
    same_as_a_run(run, tmp_path)
    assert len(means(tmp_path / "run")) == 12
    np.testing.assert_allclose(means(tmp_path / "app"), means(tmp_path / "run"), atol=1e-5)


def test_its_value_survives_records_and_its_words_are_in_every_statement(
    seen, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, path, statement = seen
    named = dataclasses.replace(small_run(), extra_releases=(PART,))
    assert (
        Run.from_dict(named.to_dict()).extra_releases == run_of(dotted_keys(named)).extra_releases == (PART,)
    )
    assert {**PART.to_dict(), "name": NAME, "description": PART.description} in statement["statistics"]
    assert "norms are those of clipped updates" in statement["assumptions"]
    assert "mean of every round, for 30 % of mu^2" in (path / "statement.txt").read_text()


def test_a_statistic_that_lies_of_its_bound_is_cut_to_it() -> None:
    """A faulty function costs accuracy; what one user moves stays within what was accounted for."""

    class Wild(Norm):
        def of(self, sign: int, norm: float) -> int:
            return {0.5: 10 * UNIT, 1.0: -(10**15), 0.2: 3}[norm]

    class Broken(Norm):
        def of(self, sign: int, norm: float) -> int:
            return int(math.nan if norm > 0.5 else 1 // sign)

    signs, norms = np.array([1, -1, 1, 0]), np.array([0.5, 1.0, 0.2, 0.0])
    assert Wild().total(signs, norms) == UNIT - UNIT + 3  # who adds nothing tells nothing
    assert Wild().total(np.array([1, 1]), np.array([0.7, 0.2])) == 3  # it fails for one user, who adds 0
    assert Broken().total(signs, norms) == 2
    told = FixedPointSum(3, 1.0, statistics=[Norm()])
    for lie in (UNIT + 1, -UNIT - 1):
        with pytest.raises(ValueError, match="slice norms must add up to at most"):
            Norm().check(lie, 1)
    assert told.lengths == {"sum": 3, "norms": 1}


def test_what_is_no_part_is_refused_in_a_line() -> None:
    with pytest.raises(ConfigError, match=r"extra_releases must hold statistics.*; got 1\."):
        dataclasses.replace(small_run(), extra_releases=(1,))
