"""A statistic of somebody's own is one function and one bound; noise, records and statements follow."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from support import own_functions
from support.moving_norms import RULE, moving_run, uneven_task, updates_of, watch
from support.own_functions import ODD, give, halves
from support.small_runs import small_run

import fedmf
from fedmf.errors import ConfigError
from fedmf.noise import Domain, GaussianSource, NoiseKey
from fedmf.records.ledger import Ledger
from fedmf.runs.run import Run
from fedmf.runs.statistics import CustomStatistic, update_factor
from fedmf.runs.statistics.custom_rows import CustomRows
from fedmf.training import FixedPointSum
from fedmf.training.barrier import silent

OWN = CustomStatistic("support.own_functions:halves", ("first", "last"), 0.8, share=0.3)
DIMENSION = 20
TASK = uneven_task(DIMENSION)


def with_own(**named: object) -> Run:
    """A run whose clip norm moves beside it: three quantities share μ²."""
    return dataclasses.replace(
        moving_run(TASK, **{"mechanism": "bsr", "bands": 2, **named}), extra_releases=(OWN,)
    )


def released(path: Path) -> np.ndarray:
    with Ledger.open(path / "ledger.sqlite", read_only=True) as ledger:
        rows = ledger.metrics()
    return np.array([[rows[t][name] for name in OWN.columns] for t in sorted(rows) if t])


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("own") / "run"
    watched = watch(path, with_own())
    return watched, path, json.loads((path / "statement.json").read_text())


def test_it_releases_means_of_clipped_rows_with_noise_of_its_share(seen) -> None:
    """By the definition: updates clipped to ζ_t, the function, its rows clipped to c, C⁻¹ as a matrix."""
    watched, path, statement = seen
    assert len(set(watched.norms)) > 6  # the clip norm moved beside it
    updates = torch.from_numpy(updates_of(with_own(), TASK))
    sums = []
    for cohort, zeta in zip(watched.cohorts, watched.norms, strict=True):
        clipped = [updates[u] * min(1.0, zeta / float(updates[u].norm())) for u in cohort]
        with silent():
            rows = [halves(update) for update in clipped]
        sums.append(sum(row * min(1.0, OWN.bound / float(row.norm())) for row in rows))
    rounds, m = len(sums), statement["users_per_round"]
    source = GaussianSource(NoiseKey.from_seed(7), 2, Domain.of_part("statistic"))
    z = np.stack([source.block(t, 0, 2) for t in range(rounds)])
    C = np.eye(rounds) + 0.5 * np.eye(rounds, k=-1)
    std = OWN.bound * statement["noise_multiplier"] * statement["sensitivity"] / math.sqrt(OWN.share)
    wanted = (np.stack(sums) + std * np.linalg.solve(C, z)) / m
    np.testing.assert_allclose(released(path), wanted, atol=1e-6)
    left = 1 - RULE.share - OWN.share
    level = statement["noise_multiplier"] * statement["sensitivity"] * statement["clip_norm"]
    assert statement["noise_std"] == pytest.approx(level / math.sqrt(left), rel=1e-12)


@pytest.mark.parametrize("function", ["halves", "greedy", "moody"])
def test_what_one_user_adds_has_norm_one_at_most_whatever_the_function_is(function: str) -> None:
    """(a·x/ζ, b·s/c) of single users, of the integers that the server sums: its norm is what ε rests on."""
    statistic = CustomRows("statistic", 2, 0.8, f"support.own_functions:{function}")
    generator, largest = torch.Generator().manual_seed(3), 0.0
    a, b = 1 / update_factor([OWN]), math.sqrt(OWN.share)
    rows = torch.randn(200, 6, generator=generator) * torch.logspace(-3, 3, 200)[:, None]
    together = FixedPointSum(6, 0.5, statistics=[statistic])
    assert bool(together.add_updates(rows).all())
    summed = torch.zeros(8, dtype=torch.float64)
    for row in rows:
        alone = FixedPointSum(6, 0.5, statistics=[statistic])
        alone.add_updates(row[None])
        x, s = alone.total() / 0.5, alone.told_vector(statistic) / 0.8
        summed += torch.cat([alone.total(), alone.told_vector(statistic)])
        largest = max(largest, float(torch.cat([a * x, b * s]).norm()))
    assert 0.5 < largest <= 1
    both = torch.cat([together.total(), together.told_vector(statistic)])
    torch.testing.assert_close(both, summed, rtol=0, atol=1e-9)  # nobody changes what another adds
    plain = FixedPointSum(6, 0.5)
    plain.add_updates(rows)
    assert torch.equal(plain.fixed_point, together.fixed_point)  # a function that writes changes no update


@pytest.mark.parametrize("what", ODD)
def test_whatever_the_function_gives_for_one_user_is_that_users_zero(what: str) -> None:
    """Others' numbers keep their bits, wherever that user stands, and no update changes."""
    give(what)
    statistic = CustomRows("statistic", 2, 0.8, "support.own_functions:odd")
    others = torch.tensor([[0.1, 0.05, 0.2], [-0.2, 0.1, 0.0], [0.15, -0.1, 0.1]])
    broken = torch.tensor([[0.3, 0.1, 0.1]])
    apart = FixedPointSum(3, 0.5, statistics=[statistic])
    apart.add_updates(others)
    for place in range(4):
        rows = torch.cat([others[:place], broken, others[place:]])
        together = FixedPointSum(3, 0.5, statistics=[statistic])
        assert bool(together.add_updates(rows).all())
        assert together.parts["statistic"].tolist() == apart.parts["statistic"].tolist() != [0, 0]
        plain = FixedPointSum(3, 0.5)
        plain.add_updates(rows)
        assert torch.equal(plain.fixed_point, together.fixed_point)


@pytest.mark.parametrize("function", ["largest_kept", "poisoned", "drawn"])
def test_a_function_that_remembers_is_refused_before_anything_is_spent(function: str, tmp_path: Path) -> None:
    """A, hostile B, A again: other numbers for A would be B's doing."""
    own = dataclasses.replace(OWN, function=f"support.own_functions:{function}")
    with pytest.raises(ConfigError, match=r"must depend on its argument alone; .* gave other") as error:
        fedmf.start(dataclasses.replace(small_run(), extra_releases=(own,)), tmp_path / "run")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_the_first_user_moves_nobody_elses_part() -> None:
    """In units of a zero first user, others would be large; in those of a large one, small."""
    statistic = CustomRows("statistic", 2, 0.8, "support.own_functions:first_kept")
    others = torch.full((20, 2), 1e-4)
    sums = []
    for first in (torch.zeros(1, 2), torch.ones(1, 2)):
        own_functions._first.clear()
        total = FixedPointSum(2, 2.0, statistics=[statistic])
        total.add_updates(torch.cat([first, others]))
        sums.append(total.told_vector(statistic))
    assert float((sums[0] - sums[1]).norm()) <= 0.8


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            "support.own_functions:three",
            r"must give 2 finite numbers for .* got \(3,\)",
        ),
        ("support.own_functions:missing", "has no attribute 'missing'"),
        ("no_such_module:f", "No module named 'no_such_module'"),
        ("support.own_functions:NOT_A_FUNCTION", "must be callable; got .* a float"),
        ("math:sqrt", "must give 2 finite numbers for an update of shape .*sqrt failed"),
    ],
)
def test_a_function_that_cannot_serve_is_refused_before_anything_is_spent(
    function: str, message: str, tmp_path: Path
) -> None:
    run = dataclasses.replace(small_run(), extra_releases=(dataclasses.replace(OWN, function=function),))
    with pytest.raises(ConfigError, match=message):
        fedmf.start(run, tmp_path / "run")
    assert not (tmp_path / "run").exists()
