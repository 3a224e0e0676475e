"""Releases of several rows: the exact bound on one user, and sums of rows with noise."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.covariance import covariance_fits
from support.streams import BUDGET, named, releases, run_once, sample, write_rows

from fedmf.accounting.gaussian import certified_sigma
from fedmf.matrices.joint_sensitivity import UserRange, joint_sensitivity
from fedmf.participation import Participation
from fedmf.release.row_plan import step_contract
from fedmf.streaming import Layout, Settings, StreamPlan, account_stream, open_run

USERS: dict[str, Any] = {"user_column": "user", "max_participations": 4, "min_separation": 2}


def planned(d: int, rounds: int, **more: Any) -> StreamPlan:
    layout = Layout(tuple(f"x{i}" for i in range(d)), more.get("user_column"))
    return StreamPlan.of(Settings(**{**BUDGET, "rounds": rounds, **more}), layout, rounds)


@pytest.mark.parametrize("n", [5, 8])
@pytest.mark.parametrize("every", [1, 2, 3])
def test_no_allowed_rows_are_more_or_nearer_than_the_contract_of_steps(n: int, every: int) -> None:
    """Every set of rows that (n, k, b) allows, for all k and b: at most c in a step and K·c in all;
    where c is 1, at most K steps, B apart.
    """
    for k, b in itertools.product(range(1, 5), range(1, n + 1)):
        if (k - 1) * b + 1 > n:
            continue
        steps, most = step_contract(Participation(n, k, b), every)
        assert steps.rounds == math.ceil(n / every)
        for rows in itertools.combinations(range(n), k):
            if any(later - sooner < b for sooner, later in itertools.pairwise(rows)):
                continue
            hit, counts = np.unique(np.array(rows) // every, return_counts=True)
            assert counts.max() <= most
            assert k <= steps.max_participations * most or len(hit) <= steps.max_participations
            if most == 1:
                assert len(hit) <= steps.max_participations
                assert (np.diff(hit) >= steps.min_separation).all()


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize("mechanism", ["bisr", "blt", "banded-toeplitz", "identity"])
def test_the_joint_sensitivity_is_that_of_all_rows_of_a_user(
    mechanism: str, adjacency: str
) -> None:
    """By brute force, d = 1: every set of rows that is allowed, rows of norm ζ in both directions
    and 0.
    """
    n = 8
    every = 2
    k = 4
    b = 1
    asked = {**USERS, "max_participations": k, "min_separation": b, "adjacency": adjacency}
    plan = planned(1, n, release_every=every, mechanisms=(mechanism,), **asked)
    made = plan.mechanism
    weight = plan.mechanism.weight
    assert weight is not None
    C = made.first.materialize()
    worst = 0.0
    pairs = (
        [(1.0, 0.0), (-1.0, 0.0)]
        if adjacency == "zero-out"
        else [(1, -1), (-1, 1), (1, 0), (-1, 0)]
    )
    for rows in itertools.combinations(range(n), k):
        steps = np.array(rows) // every
        for values in itertools.product(pairs, repeat=k):
            moved = np.zeros((len(C), 2))
            for step, (x, y) in zip(steps, values, strict=True):
                moved[step] += (x - y, math.sqrt(weight) * (x * x - y * y))
            worst = max(worst, float(np.linalg.norm(C @ moved)))
    stated = plan.sensitivity
    assert worst <= stated.value * (1 + 1e-9)
    if stated.kind == "exact":
        assert worst == pytest.approx(stated.value, rel=1e-9)
    assert plan.noise_multiplier == pytest.approx(certified_sigma(8.0, 1e-5), rel=1e-12)
    with_rounding = stated.value + plan.rows_of_user * made.rounding.movement
    assert made.first_std == pytest.approx(with_rounding * plan.noise_multiplier, rel=1e-11)
    assert made.first_std > stated.value * plan.noise_multiplier
    assert made.second_std == pytest.approx(made.first_std / math.sqrt(weight), rel=1e-12)


def test_what_is_stated_is_a_bound_where_rows_do_not_divide() -> None:
    plan = planned(2, 12, release_every=4, **{**USERS, "max_participations": 3})
    assert (plan.rows_of_user, plan.sensitivity.kind) == (2, "upper_bound")
    assert planned(2, 12, release_every=4, **USERS).sensitivity.kind == "exact"
    C = plan.mechanism.first
    part = plan.mechanism.participation
    users = UserRange(1.0, 2, "zero-out")
    assert plan.mechanism.weight is not None
    s = joint_sensitivity(C, C, part, plan.mechanism.weight, users).value
    assert plan.sensitivity.value == pytest.approx(2 * s)


def test_a_user_of_few_rows_has_spent_less() -> None:
    plan = planned(2, 24, release_every=4, **{**USERS, "max_participations": 6})
    sigmas = [plan.multiplier_under(rows, 2) for rows in range(1, 7)]
    assert sigmas == sorted(sigmas, reverse=True)
    assert sigmas[-1] == pytest.approx(plan.noise_multiplier)
    assert sigmas[0] > 3 * sigmas[-1]


@pytest.mark.parametrize("n", [24, 22])
def test_releases_are_means_of_all_rows_before(tmp_path: Path, n: int) -> None:
    """With little noise: after 5, 10, … and all n rows, whatever rows came together; the rest of a
    file, of which fewer rows count, is released too.
    """
    x = 0.3 * sample(n)
    users = [f"u{i % 9}" for i in range(n)]
    source = write_rows(tmp_path / "rows.csv", x, users)
    settings = Settings(
        **{**BUDGET, "epsilon": 1e9}, release_every=5, **{**USERS, "max_participations": 2}
    )
    statement = run_once(tmp_path, settings, source)
    counted = [i for i in range(n) if users[:i].count(users[i]) < 2]
    assert statement["rounds_released"] == len(counted)
    assert statement["counts"]["beyond_k"] == n - len(counted)
    found = releases(tmp_path / "out.jsonl")
    assert [line["t"] for line in found] == [*range(5, len(counted), 5), len(counted)]
    for line in found:
        rows = x[counted[: line["t"]]]
        np.testing.assert_allclose(line["mean"], rows.mean(axis=0), atol=1e-3)
        np.testing.assert_allclose(line["covariance"], np.cov(rows.T, bias=True), atol=1e-2)


def test_a_stream_in_parts_ends_with_the_same_bytes(tmp_path: Path) -> None:
    """A process that ended between two releases is as if it had not read the rows since the last;
    so is an input that was cut.
    """
    x = sample(23)
    n = 23
    settings = Settings(
        **BUDGET,
        rounds=n,
        release_every=5,
        mechanisms=("blt",),
        timestamp="x2",
        columns=("x0", "x1"),
    )
    source = write_rows(tmp_path / "rows.csv", x)
    outputs = []
    lines = source.read_text().splitlines(keepends=True)
    for name, stops in (("whole", [n]), ("parts", [3, 9, 10, 22, n])):
        folder = tmp_path / name
        folder.mkdir()
        for stop in stops:
            part = folder / "part.csv"
            part.write_text("".join(lines[: stop + 1]))
            with open_run(folder / "state", settings, part, folder / "out.csv") as (run, reader):
                run.feed(reader, whole=name == "parts")
                assert run.waiting == (stop % 5 if stop < n else 0)
                assert run.position.row == (stop - stop % 5 if stop < n else n)
                run.conclude()
        outputs.append((folder / "out.csv").read_bytes())
    assert outputs[0] == outputs[1]
    assert outputs[0].count(b"\n") == 6


def test_rows_that_wait_are_nobodys_yet(tmp_path: Path) -> None:
    """In the statement and in the ledger, whichever commits came before."""
    x = 0.3 * sample(14)
    users = [f"u{i}" for i in range(14)]
    settings = Settings(**BUDGET, rounds=40, release_every=4, user_column="user")
    source = write_rows(tmp_path / "rows.csv", x, users)
    settings = named(settings, source)
    for _ in range(2):
        with open_run(tmp_path / "state", settings, source, tmp_path / "o.csv") as (run, reader):
            run.feed(reader)
            assert run.waiting == 2
            statement = run.conclude()
        assert statement == account_stream(tmp_path / "state")
        assert (statement["rounds_released"], statement["users_participated"]) == (12, 12)
    whole = tmp_path / "whole"
    whole.mkdir()
    longer = write_rows(tmp_path / "rows.csv", 0.3 * sample(24), [f"u{i}" for i in range(24)])
    run_once(tmp_path, settings, longer, "o.csv")
    run_once(whole, settings, longer, "o.csv")
    assert (tmp_path / "o.csv").read_bytes() == (whole / "o.csv").read_bytes()


DIMENSION = 2000


@pytest.mark.parametrize("mechanism", ["banded-toeplitz", "blt"])
def test_noise_is_that_of_the_releases(tmp_path: Path, mechanism: str) -> None:
    """Zeros, R = 3, over interruptions, a secret key: C₁ times the noise is white; σ × 1.1 is
    rejected.
    """
    n = 36
    every = 3
    source = write_rows(tmp_path / "rows.csv", np.zeros((n, DIMENSION)))
    lines = source.read_text().splitlines(keepends=True)
    settings = Settings(
        **{**BUDGET, "seed": None},
        rounds=n,
        release_every=every,
        second_moment="trace",
        mechanisms=(mechanism,),
    )
    settings = named(settings, source)
    for stop in (7, 8, 20, n):
        part = tmp_path / "part.csv"
        part.write_text("".join(lines[: stop + 1]))
        with open_run(tmp_path / "state", settings, part, tmp_path / "out") as (run, reader):
            run.feed(reader)
            released = run.state.releases(0, run.position.records).numbers[:, :DIMENSION]
    assert json.loads((tmp_path / "out").read_text().splitlines()[0])["t"] == every
    steps = n // every
    noise = np.diff(np.arange(1, steps + 1)[:, None] * released, axis=0, prepend=0)
    noise = noise / run.plan.mechanism.first_std
    C = run.plan.mechanism.first.materialize()
    assert covariance_fits(noise, C, 1.0)
    assert not covariance_fits(noise * 1.1, C, 1.0)


def test_what_cannot_be_summed_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"R \(release every\) must be 1 for method post-processing"
    ):
        Settings(**BUDGET, release_every=2, method="post-processing")


def errors(plan: StreamPlan) -> np.ndarray:
    """Of the means of each release, in units of a single release of the same rows."""
    t = np.minimum(np.arange(plan.every, plan.rounds + plan.every, plan.every), plan.rounds)
    made = np.sqrt(plan.variances(0, t)) / plan.row_sums(0, t)
    return made / [plan.one_shot_error(rows) for rows in t.tolist()]


@pytest.mark.parametrize(
    ("n", "k", "b", "every", "most"),
    [
        (6000, 10, 200, 1, 2.3),
        (60_000, 30, 200, 600, 2.0),
        (327_346, 50, 300, 3000, 2.3),
    ],
)
def test_the_default_is_near_a_single_release(
    n: int, k: int, b: int | None, every: int, most: float
) -> None:
    """Over the last quarter of the releases; and no release after the first tenth has four times
    its own.
    """
    plan = planned(
        4, n, user_column="user", max_participations=k, min_separation=b, release_every=every
    )
    found = errors(plan)
    assert found[3 * len(found) // 4 :].mean() < most
    assert found[len(found) // 10 :].max() < 4
    named = planned(
        4,
        n,
        user_column="user",
        max_participations=k,
        min_separation=b,
        release_every=every,
        mechanisms=("banded-toeplitz",),
        bands=min(32, plan.mechanism.participation.min_separation),
    )
    assert found[-1] <= errors(named)[-1] * 1.01


def test_an_objective_is_taken() -> None:
    last, mean = (planned(2, 400, objective=name) for name in ("last", "rmse"))
    at = np.array([400])
    assert last.variances(0, at)[0] < mean.variances(0, at)[0]
    with pytest.raises(ValueError, match="objective must be"):
        planned(2, 12, objective="least")
