"""Parameters searched for the amplified error against grids; refusals of `fedmf design --sampling`."""

from __future__ import annotations

import math

import pytest

from fedmf.accounting.sampling import Sampling, amplified_noise_of
from fedmf.accounting.search import amplified_mechanism
from fedmf.cli.app import run
from fedmf.mechanisms.choice import NamedMechanism
from fedmf.mechanisms.errors import query_variances
from fedmf.mechanisms.registry import build
from fedmf.mechanisms.workload import prefix
from fedmf.participation import Participation

CONTRACT = Participation(24, 3, 8)
# Noise of found and grid points carries standard errors of about 0.1 % and 0.3 %.
SLACK = 1.01


def error_at(name: str, sampling: Sampling, epsilon: float, **params: float) -> float:
    """RMSE with the noise for ε and δ = 1e-5."""
    strategy = build(name, CONTRACT, params=params).factorization
    noise = amplified_noise_of(sampling, strategy, CONTRACT, epsilon, 1e-5, 0.05, 2**13)
    return math.sqrt(query_variances(strategy, prefix(24)).mean()) * noise.noise_std


def found_by_search(name: str, sampling: Sampling, epsilon: float) -> tuple[float, dict[str, float]]:
    mechanism, noise = amplified_mechanism(
        NamedMechanism(name), CONTRACT, prefix(24), sampling, epsilon, 1e-5
    )
    rmse = math.sqrt(query_variances(mechanism.factorization, prefix(24)).mean()) * noise.noise_std
    return rmse, dict(mechanism.params)


@pytest.mark.weekly
@pytest.mark.parametrize(
    ("name", "sampling", "epsilon"),
    [
        ("bsr", "cyclic-poisson", 4.0),
        ("bsr", "balls-in-bins", 16.0),
        ("bsr", "b-min-sep", 2.0),
    ],
)
def test_bands_are_as_good_as_a_grid(name: str, sampling: Sampling, epsilon: float) -> None:
    found, params = found_by_search(name, sampling, epsilon)
    grid = {p: error_at(name, sampling, epsilon, bands=p) for p in (1, 2, 4, 8)}
    assert params["bands"] in grid
    assert found <= SLACK * min(grid.values())
    assert found < 0.99 * max(grid.values())


def test_the_search_passes_over_strategies_with_negative_entries() -> None:
    """1/i + c has them for c < −1/p, where its search begins."""
    found, params = found_by_search("one-parameter", "balls-in-bins", 2.0)
    assert found <= 1.05 * found_by_search("bsr", "balls-in-bins", 2.0)[0]
    assert params["c"] >= -1 / params["bands"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["cgd", "--sampling", "cyclic-poisson"], "banded strategies only"),
        (["cgd", "--sampling", "b-min-sep"], "banded strategies only"),
        (["bsr", "--bands", "9", "--sampling", "cyclic-poisson"], "at most n/k=8"),
        (
            ["bsr", "--bands", "8", "--workload", "window:3", "--sampling", "balls-in-bins"],
            "no negative entries",
        ),
        (["bsr", "--sampling", "balls-in-bins", "--memory-vectors", "3"], "no limit on memory_vectors"),
    ],
)
def test_design_refuses_what_the_accountants_do_not_cover(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    contract = ["--rounds", "24", "--max-participations", "3", "--min-separation", "8"]
    budget = ["--epsilon", "2", "--delta", "1e-5", "--json"]
    assert run(["design", *contract, *budget, "--mechanism", *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert message in captured.err
