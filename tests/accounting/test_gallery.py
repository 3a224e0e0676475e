"""The gallery of published deployments: sources' figures, exact conversions, and the estimator that ran."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedmf.accounting import at_least, gallery, gaussian_delta
from fedmf.cli.app import run
from fedmf.factorization import tree

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return gallery()


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


def test_the_figures_of_the_first_launch(rows: list[dict[str, Any]]) -> None:
    nodes, online = rows[:2]
    figures = nodes["adjacency"]["zero-out"]
    assert nodes["squared_sensitivity"] == pytest.approx(79, rel=1e-12)
    assert figures["rho"] == pytest.approx(79 / 98, rel=1e-12)
    assert math.ceil(100 * figures["rho"]) / 100 == nodes["published"]["rho"] == 0.81
    assert round(figures["epsilon_by_rho"], 2) == nodes["published"]["epsilon"] == 8.90
    assert round(figures["epsilon"], 2) == 8.53
    assert online["squared_sensitivity"] < 70.302  # what the estimator drops is not paid for
    assert round(online["adjacency"]["zero-out"]["epsilon"], 2) == 7.99


def test_the_figures_of_the_banded_launches(rows: list[dict[str, Any]]) -> None:
    """With p ≤ b and columns of one norm c the squared sensitivity is k·c²: a fifth each, and one each."""
    for row, column in zip(rows[2:], (0.2, 1.0, 1.0), strict=True):
        assert row["sensitivity_from"] == "published rho"
        assert row["squared_sensitivity"] == pytest.approx(row["max_participations"] * column, rel=1e-12)
        bands = int(row["mechanism"].split()[1])
        assert bands <= row["min_separation"]
        found = row["adjacency"]["zero-out"]
        assert found["epsilon"] == pytest.approx(row["published"]["epsilon"], rel=1e-6)
        assert gaussian_delta(1 / found["mu"], row["published"]["epsilon"]) == pytest.approx(1e-10, rel=1e-4)


def test_every_entry_has_a_source_and_its_row_in_the_docs(rows: list[dict[str, Any]]) -> None:
    text = (DOCS / "restate.md").read_text(encoding="utf-8")
    for row in rows:
        assert row["source"].split(" (")[0].split(",")[0] in text
        zero_out, replace_one = row["adjacency"].values()
        shown = (
            f"n = {row['rounds']}, k = {row['max_participations']}, b = {row['min_separation']}, "
            f"σ = {row['noise_multiplier']:g}"
        )
        values = zero_out["rho"], zero_out["epsilon"], replace_one["epsilon"]
        figures = " | ".join(at_least(value, 4) for value in values) + " |"
        lines = [line for line in text.splitlines() if line.startswith("|") and shown in line]
        assert any(line.endswith(figures) for line in lines), (shown, figures)


def test_the_command_shows_it_without_other_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["restate", "--gallery"]) == 0
    shown = capsys.readouterr().out
    assert "8.527" in shown
    assert "7.991" in shown
    assert shown.count("source: ") == 2
