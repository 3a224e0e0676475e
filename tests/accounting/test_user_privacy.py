"""What each user's own rounds cost, from the dense matrix and the absolute noise."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.headers import DELTA, make_header, read, record
from support.ledgers import participations

from fedmf.accounting.gaussian import gaussian_epsilon
from fedmf.ledger.ledger import Ledger
from fedmf.matrices.toeplitz import InverseToeplitz
from fedmf.participation import Participation
from fedmf.runs.directory import RunHeader
from fedmf.runs.run_statement import run_spent
from fedmf.statements.privacy import NoPrivacy

CONTRACT = Participation(rounds=40, max_participations=4, min_separation=7)
FACTORIZATION = InverseToeplitz([1.0, -0.8], 40)
IDS = ["007", "NA", 'quo"te', "com,ma", "=1+1", "new\nline", "ünï", " ", "null", "1e5"]


def recorded(path: Path, released: int = 40, users: int = 300, **changes: Any) -> RunHeader:
    """A ledger of random histories that keep the contract; a user's history may occur many
    times.
    """
    header = make_header(CONTRACT, FACTORIZATION, 20, users=users + 5, **changes)
    rng = np.random.default_rng(5)
    cohorts: list[list[str]] = [[] for _ in range(released)]
    for user in range(users):
        t = int(rng.integers(0, 8))
        for _ in range(int(rng.integers(1, 5))):
            if t < released:
                cohorts[t].append(IDS[user] if user < len(IDS) else f"user-{user}")
            t += 7 + int(rng.integers(0, 3))
    record(path, header, cohorts)
    return header


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize("released", [40, 17])
def test_each_user_gets_what_its_own_rounds_cost(
    adjacency: str, released: int, tmp_path: Path
) -> None:
    """From the dense matrix and the absolute noise, user by user."""
    header = recorded(tmp_path / "ledger", released, adjacency=adjacency)
    factor = {"zero-out": 1, "replace-one": 2}[adjacency]
    plan = header.plan
    clip_norm = header.plan.clip_norm
    movement = clip_norm * plan.rounding.movement
    dense = FACTORIZATION.materialize()[:released]
    with Ledger.open(tmp_path / "ledger", read_only=True) as ledger:
        history: dict[str, list[int]] = {}
        for t, user in participations(ledger):
            history.setdefault(user, []).append(t)
        found = run_spent(plan, ledger)
    statement = read(tmp_path / "ledger").to_dict()
    assert sorted(found.users) == sorted(history)
    assert {"007", "new\nline"} <= set(found.users)
    for row, user in enumerate(found.users):
        shift = factor * clip_norm * np.linalg.norm(dense[:, history[user]].sum(axis=1))
        exact = (shift + movement) / plan.noise_std
        assert found.mu[row] == pytest.approx(exact, rel=1e-12)
    mus = np.sort(np.concatenate([np.zeros(5), found.mu]))
    for q, epsilon in statement["epsilon_spent_quantiles"].items():
        expected = gaussian_epsilon(1 / mus[math.ceil(float(q) * mus.size - 1e-9) - 1], DELTA)
        assert epsilon == pytest.approx(expected, rel=1e-8)
    assert statement["epsilon_spent"] == statement["epsilon_spent_quantiles"]["1"]
    assert len(found.users) == statement["users_participated"]


def test_without_noise_or_rounds(tmp_path: Path) -> None:
    header = recorded(tmp_path / "free", noise_multiplier=0.0, privacy=NoPrivacy())
    with Ledger.open(tmp_path / "free", read_only=True) as ledger:
        assert np.isinf(run_spent(header.plan, ledger).mu).all()
    header = recorded(tmp_path / "none", released=0)
    with Ledger.open(tmp_path / "none", read_only=True) as ledger:
        assert run_spent(header.plan, ledger).users == []
