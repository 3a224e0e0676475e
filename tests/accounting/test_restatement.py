"""What published mechanisms give, against every pattern of a user and the definitions of the errors."""

from __future__ import annotations

import json
import math
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from support.command_line import one_line

from fedmf.accounting import gaussian_delta, restate, zcdp_epsilon
from fedmf.cli.app import run
from fedmf.factorization import kary_tree, square_strategy, tree
from fedmf.participation import Participation

N, K, B, SIGMA, DELTA = 21, 3, 5, 3.0, 1e-7
CONTRACT = Participation(N, K, B)


def nodes(rounds: int) -> NDArray[np.float64]:
    """A row of a binary tree for each dyadic block that is complete."""
    rows = []
    width = 1
    while width <= rounds:
        for start in range(0, rounds - width + 1, width):
            row = np.zeros(rounds)
            row[start : start + width] = 1.0
            rows.append(row)
        width *= 2
    return np.array(rows)


def largest_change(matrix: NDArray[np.float64]) -> float:
    """max ‖M·x‖ over all patterns that the contract allows and all signs of their entries."""
    found = 0.0
    for size in range(1, K + 1):
        for pattern in combinations(range(N), size):
            if all(later - earlier >= B for earlier, later in pairwise(pattern)):
                for signs in np.ndindex(*(2,) * (size - 1)):
                    x = matrix[:, list(pattern)] @ np.array([1, *(1 - 2 * s for s in signs)])
                    found = max(found, float(np.linalg.norm(x)))
    return found


def random_nodes() -> NDArray[np.float64]:
    """A matrix with entries of both signs and more rows than rounds."""
    return np.eye(N + 4, N) + 0.3 * np.random.default_rng(4).standard_normal((N + 4, N))


@pytest.mark.parametrize("matrix", [nodes(N), random_nodes()], ids=["tree", "signs"])
def test_figures_are_those_of_the_worst_pattern(matrix: NDArray[np.float64]) -> None:
    found = restate(square_strategy(matrix), CONTRACT, SIGMA, DELTA)
    worst = largest_change(matrix)
    assert found.sensitivity.value >= worst * (1 - 1e-12)
    if found.sensitivity.kind == "exact":
        assert found.sensitivity.value == pytest.approx(worst, rel=1e-9)
    for adjacency, factor in (("zero-out", 1), ("replace-one", 2)):
        figures = found.figures["adjacency"][adjacency]
        reach = found.sensitivity.value * factor / SIGMA
        assert figures["mu"] == pytest.approx(reach, rel=1e-9)
        assert figures["mu"] >= worst * factor / SIGMA * (1 - 1e-12)
        assert figures["rho"] == pytest.approx(reach**2 / 2, rel=1e-9)
        assert gaussian_delta(1 / reach, figures["epsilon"]) == pytest.approx(DELTA, rel=1e-4)
        assert figures["epsilon"] < figures["epsilon_by_rho"]


def test_a_tree_by_name_is_the_tree_of_its_nodes() -> None:
    by_name = restate(tree(N), CONTRACT, SIGMA, DELTA).figures
    by_nodes = restate(square_strategy(nodes(N)), CONTRACT, SIGMA, DELTA).figures
    assert by_name["sensitivity_kind"] == by_nodes["sensitivity_kind"] == "exact"
    assert by_name["adjacency"]["zero-out"] == pytest.approx(by_nodes["adjacency"]["zero-out"], rel=1e-9)
    assert by_name["rmse"] == pytest.approx(by_nodes["rmse"], rel=1e-9)


def test_the_error_is_that_of_the_best_linear_estimates() -> None:
    matrix, prefixes = nodes(N), np.tril(np.ones((N, N)))
    covariance = prefixes @ np.linalg.inv(matrix.T @ matrix) @ prefixes.T
    found = restate(square_strategy(matrix), CONTRACT, SIGMA, DELTA)
    assert found.rmse == pytest.approx(SIGMA * math.sqrt(np.trace(covariance) / N), rel=1e-9)


def test_the_usual_conversion_is_the_best_order() -> None:
    alphas = 1 + np.geomspace(1e-3, 1e4, 200_001)
    for rho, delta in ((0.81, 1e-10), (0.01, 1e-5), (5.0, 1e-3)):
        by_order = rho * alphas + np.log1p(-1 / alphas) - np.log(delta * alphas) / (alphas - 1)
        assert zcdp_epsilon(rho, delta) == pytest.approx(by_order.min(), rel=1e-6)


def test_the_command_compares_at_the_same_epsilon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "c.npy", nodes(N))
    options = f"--rounds {N} --max-participations {K} --min-separation {B} --noise-multiplier 3 --delta 1e-7"
    assert run(f"restate --strategy {tmp_path / 'c.npy'} {options} --against bisr --json".split()) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (
        figures["adjacency"]
        == restate(square_strategy(nodes(N)), CONTRACT, SIGMA, DELTA).figures["adjacency"]
    )
    (other,) = figures["at_the_same_epsilon"]
    assert other["mechanism"] == "bisr"
    assert other["epsilon"] == figures["adjacency"]["zero-out"]["epsilon"]
    assert run(f"restate --mechanism tree --param full=1 {options} --against bisr".split()) == 0
    shown = capsys.readouterr().out
    assert "replace-one" in shown
    assert "as published" in shown


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("--mechanism tree --noise-multiplier 0", "noise_multiplier"),
        ("--mechanism tree --delta 1.5", "delta"),
        ("--mechanism tree --strategy c.npy", "either"),
        ("--strategy missing.npy", "missing.npy"),
        ("--strategy missing.npy --param full=1", "--param belongs"),
        ("--mechanism treee", "treee"),
        ("", "either"),
    ],
)
def test_bad_input_is_one_line(change: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = "--rounds 8 --max-participations 2 --min-separation 4 --noise-multiplier 3 --delta 1e-7"
    assert run(["restate", *given.split(), *change.split()]) == 2
    assert message in one_line(capsys)


def test_a_file_of_anything_else_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = "--rounds 8 --max-participations 2 --min-separation 4 --noise-multiplier 3 --delta 1e-7"
    (tmp_path / "text.npy").write_text("no array")
    np.save(tmp_path / "words.npy", np.array(["a", "b"]))
    for name in ("text.npy", "words.npy"):
        assert run(["restate", *given.split(), "--strategy", str(tmp_path / name)]) == 2
        assert name in one_line(capsys)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.ones((3, 4)), "shape"),
        (np.ones((4, 3)), "independent"),
        (np.full((3, 3), np.nan), "finite"),
        (np.ones(3), "shape"),
    ],
)
def test_matrices_that_are_no_strategy(matrix: NDArray[np.float64], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        square_strategy(matrix)


def test_another_horizon_is_refused() -> None:
    with pytest.raises(ValueError, match="rounds"):
        restate(kary_tree(8, 2), CONTRACT, SIGMA, DELTA)


def production_estimates(rounds: int) -> NDArray[np.float64]:
    """Row t: how the noise of prefix t is made of the nodes' noises, by the rule of the production code.

    A buffer holds a value for each complete block of the prefix, smallest last. A new leaf is merged with the
    last block as long as both are of one level ℓ: u = n + ½(u_left + u_right), n the noise of the parent. The
    prefix adds u/(2 − 2^{−ℓ}) for each block. Written from the description of the algorithm; shares nothing
    with fedmf.
    """
    nodes = 0
    buffer: list[tuple[int, dict[int, float]]] = []
    prefixes = []
    for _ in range(rounds):
        level, value = 0, {nodes: 1.0}
        nodes += 1
        while buffer and buffer[-1][0] == level:
            _, left = buffer.pop()
            merged = {nodes: 1.0}
            nodes += 1
            for half in (left, value):
                for node, weight in half.items():
                    merged[node] = merged.get(node, 0.0) + weight / 2
            level, value = level + 1, merged
        buffer.append((level, value))
        prefixes.append(
            {node: weight / (2 - 0.5**height) for height, block in buffer for node, weight in block.items()}
        )
    made = np.zeros((rounds, nodes))
    for t, weights in enumerate(prefixes):
        made[t, list(weights)] = list(weights.values())
    return made


@pytest.mark.parametrize("rounds", [1, 2, 7, 16, 61])
def test_the_online_tree_is_the_estimator_that_ran_in_production(rounds: int) -> None:
    """Equal covariance of all prefixes: the same distribution, so the same privacy."""
    N = production_estimates(rounds)
    B = np.tril(np.ones((rounds, rounds))) @ np.linalg.inv(tree(rounds, full=False).materialize())
    np.testing.assert_allclose(B @ B.T, N @ N.T, rtol=1e-10, atol=1e-12)
    if rounds > 2:
        full = np.tril(np.ones((rounds, rounds))) @ np.linalg.inv(tree(rounds).materialize())
        assert not np.allclose(full @ full.T, N @ N.T, rtol=1e-3)


def test_the_figures_of_the_first_launch_in_production() -> None:
    """Tree aggregation of 2022: published ρ 0.81 and ε 8.90 at δ = 1e-10 (docs/restate.md)."""
    contract = Participation(2000, 6, 314)
    nodes, online = (restate(tree(2000, full=full), contract, 7.0, 1e-10) for full in (True, False))
    figures = nodes.figures["adjacency"]["zero-out"]
    assert nodes.sensitivity.value**2 == pytest.approx(79, rel=1e-12)
    assert figures["rho"] == pytest.approx(79 / 98, rel=1e-12)
    assert math.ceil(100 * figures["rho"]) / 100 == 0.81
    assert round(figures["epsilon_by_rho"], 2) == 8.90
    assert round(figures["epsilon"], 2) == 8.53
    assert online.sensitivity.value**2 < 70.302  # what the estimator drops is not paid for
    assert round(online.epsilon(), 2) == 7.99
