"""The design table: its fields, its arithmetic and its errors."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy.stats import norm
from support import oracles

from fedmf.accounting.gaussian import gaussian_delta
from fedmf.accounting.rounding import at_least
from fedmf.cli.app import run
from fedmf.mechanisms.choice import GivenFactorization, NamedMechanism
from fedmf.mechanisms.design import design
from fedmf.mechanisms.registry import build
from fedmf.mechanisms.workload import parse_workload
from fedmf.participation import Participation

TEN_EPOCHS = Participation(3900, 10, 390)
SMALL = Participation(48, 4, 12)
FIELDS = {
    "mechanism",
    "params",
    "sensitivity",
    "sensitivity_kind",
    "sensitivity_case",
    "rmse",
    "max_se",
    "noise_multiplier",
    "epsilon",
    "delta",
    "adjacency",
    "workload",
    "rounds",
    "max_participations",
    "min_separation",
    "memory_vectors",
    "regenerated_vectors",
    "nanoseconds_per_coordinate",
    "sampling",
    "noise_std",
    "noise_std_error",
    "objective",
    "objective_error",
}


CONTRACT_NAMES = [
    "identity",
    "square-root",
    "bsr",
    "bisr",
    "bifr",
    "bfr",
    "cgd",
    "nu-ftrl",
    "one-parameter",
    "optimal-diagonal",
    "banded",
    "banded-toeplitz",
    "banded-inverse",
    "blt",
    "dense",
    "tree",
    "kary-tree",
    "rated-bfr",
    "shifted-root",
    "quadratic-lti",
    "strongly-convex-lti",
]


@pytest.mark.parametrize("name", [*CONTRACT_NAMES, "normalized-bisr", "normalized-banded"])
def test_every_name_of_the_contract_gives_a_row_of_dense_linear_algebra(name, capsys):
    """The command line's row for each name equals that of dense matrices of the same C."""
    n = 32
    k = 2
    b = 16
    request = [
        "design",
        "--rounds",
        n,
        "--max-participations",
        k,
        "--min-separation",
        b,
        "--mechanism",
        name,
    ]
    assert run([*map(str, request), "--epsilon", "2", "--delta", "1e-6", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert set(row) == FIELDS
    assert (row["mechanism"], row["rounds"], row["epsilon"], row["delta"]) == (name, n, 2.0, 1e-6)
    C = build(name, Participation(n, k, b), params=row["params"]).factorization
    dense = C.materialize()
    if name.startswith("normalized-"):
        assert np.linalg.norm(dense, axis=0) == pytest.approx(np.ones(n), rel=1e-12)
    truth = oracles.scalar_sensitivity(dense, k, b)
    assert row["sensitivity_kind"] == "exact"
    assert row["sensitivity"] == pytest.approx(truth, rel=1e-11)
    sigma = row["noise_multiplier"]
    loss = norm.cdf(0.5 / sigma - 2.0 * sigma) - math.exp(2.0) * norm.cdf(
        -0.5 / sigma - 2.0 * sigma
    )
    assert loss == pytest.approx(1e-6, rel=1e-6)
    A = oracles.prefix_sums(n)
    assert row["rmse"] == pytest.approx(oracles.rmse(A, dense, truth) * sigma, rel=1e-9)
    largest = math.sqrt(oracles.query_variances(A, dense).max())
    assert row["max_se"] == pytest.approx(largest * truth * sigma, rel=1e-9)
    z = np.random.default_rng(0).normal(size=n)
    assert C.streaming_inverse().apply(z) == pytest.approx(
        np.linalg.solve(dense, z), rel=1e-9, abs=1e-9
    )
    assert row["memory_vectors"] == C.streaming_inverse().memory_vectors


def test_published_table_with_its_budget():
    (row,) = design(TEN_EPOCHS, ["bisr"], 8.0, 1e-5, bands=64)
    assert row["rmse"] == pytest.approx(10.50, rel=1e-3)
    assert row["noise_multiplier"] == pytest.approx(0.60023, rel=1e-5)
    assert row["memory_vectors"] == 0
    assert row["regenerated_vectors"] == 63


@pytest.mark.parametrize(
    "workload", ["prefix", "exponential:0.9", "window:5", "average", "momentum:0.8"]
)
def test_errors_are_those_of_the_workload(workload):
    rows = design(SMALL, ["bisr", "normalized-cgd", "banded-toeplitz"], workload=workload, bands=4)
    for row in rows:
        C = build(
            row["mechanism"], SMALL, params=row["params"], workload=parse_workload(workload, 48)
        )
        A = parse_workload(workload, 48).materialize()
        dense = C.factorization.materialize()
        expected = oracles.rmse(A, dense, row["sensitivity"])
        assert row["workload"] == workload
        assert row["rmse"] == pytest.approx(expected, rel=1e-9)
        assert row["max_se"] == pytest.approx(
            math.sqrt(oracles.query_variances(A, dense).max()) * row["sensitivity"], rel=1e-9
        )


def test_bad_requests_are_rejected():
    for given, message in [
        ({"mechanisms": ["cgd"], "params": {"gamma": 0.5}}, "gamma .* cgd takes lambda"),
        ({"mechanisms": ["cgd", "identity"], "bands": 3}, "bands .* identity takes none"),
        ({"mechanisms": ["treee"]}, "Did you mean"),
        ({"mechanisms": ["bsr"], "epsilon": 1.0}, "delta must be given together with epsilon"),
        ({"mechanisms": ["bsr"], "delta": 1e-5}, "epsilon must be given together with delta"),
        ({"mechanisms": ["bsr"], "epsilon": -1.0, "delta": 1e-5}, "ε"),
        ({"mechanisms": ["bsr"], "epsilon": 1.0, "delta": 2.0}, "δ"),
        ({"mechanisms": ["bsr"], "adjacency": "add-one"}, "adjacency"),
        ({"mechanisms": ["bsr"], "workload": "median"}, "workload"),
        ({"mechanisms": ["bsr"], "workload": "window:49"}, "n=48"),
        ({"mechanisms": ["bsr"], "memory_vectors": -1}, "memory_vectors .* at least 0; got -1"),
        ({"mechanisms": ["bsr"], "bands": 4, "memory_vectors": 2}, "at least 3 for bsr .* got 2"),
        ({"bands": 49}, "between 1 and n=48"),
        ({"mechanisms": ["bsr"], "bands": 49}, "between 1 and n=48"),
    ]:
        with pytest.raises(ValueError, match=message) as raised:
            design(SMALL, **given)
        assert "\n" not in str(raised.value)


def test_a_factorization_of_ones_own_is_compared_with_names():
    """Its row is that of the same coefficients by name; parameters of names do not concern it."""
    C = build("bsr", SMALL, bands=5).factorization
    choices = [GivenFactorization(C, "mine"), "bsr", NamedMechanism("bsr", {"bands": 5})]
    mine, *same = design(SMALL, choices, 2.0, 1e-6, bands=5)
    assert (mine["mechanism"], mine["params"]) == ("mine", {})
    for row in same:
        assert {**row, "mechanism": "mine", "params": {}} == mine
    (row,) = design(SMALL, [GivenFactorization(C)], 4.0, 1e-4, sampling="cyclic-poisson")
    (named,) = design(SMALL, ["bsr"], 4.0, 1e-4, bands=5, sampling="cyclic-poisson")
    assert {**named, "mechanism": "own", "params": {}} == row
    with pytest.raises(ValueError, match="at least 4 for own with n=48; got 2"):
        design(SMALL, [GivenFactorization(C)], memory_vectors=2)
    with pytest.raises(ValueError, match="as for the given C, 48; got 40"):
        design(Participation(40, 2, 12), [GivenFactorization(C)])


def test_a_stated_noise_says_which_epsilon_it_gives(capsys):
    """The noise for a budget has that budget, under either adjacency."""
    for adjacency, factor in (("zero-out", 1), ("replace-one", 2)):
        rows = design(SMALL, ["bsr", "tree"], 2.0, 1e-6, adjacency)
        for budgeted in rows:
            name = budgeted["mechanism"]
            S = budgeted["noise_std"]
            (row,) = design(SMALL, [name], delta=1e-6, adjacency=adjacency, noise_multiplier=S)
            assert row["epsilon"] == pytest.approx(2.0, rel=1e-9)
            assert gaussian_delta(S / (row["sensitivity"] * factor), row["epsilon"]) <= 1e-6
            for field in ("noise_multiplier", "rmse", "max_se", "noise_std"):
                assert row[field] == pytest.approx(budgeted[field])
    request = (
        "design --rounds 48 --max-participations 4 --min-separation 12 --mechanism tree --delta"
        " 1e-6"
    )
    assert run([*request.split(), "--noise-multiplier", "7"]) == 0
    printed = capsys.readouterr().out
    (row,) = design(SMALL, ["tree"], delta=1e-6, noise_multiplier=7.0)
    assert at_least(row["epsilon"], 5) in printed
    for given in (
        {"epsilon": 1.0, "delta": 1e-6},
        {},
        {"delta": 1e-6, "sampling": "balls-in-bins"},
    ):
        with pytest.raises(ValueError, match="with delta, and without epsilon and sampling"):
            design(SMALL, ["tree"], noise_multiplier=7.0, **given)
    with pytest.raises(ValueError, match="positive and finite"):
        design(SMALL, ["tree"], delta=1e-6, noise_multiplier=0.0)
