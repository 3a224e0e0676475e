"""Patients as users: a row each, held out by patient, by the files that are known."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes

from fedmf.data import Diabetes, diabetes
from fedmf.runs import run_of


def test_every_patient_is_a_user_or_held_out() -> None:
    data = Diabetes(seed=3).load()
    published = load_diabetes(scaled=False)
    assert data.sizes(np.arange(data.users)).tolist() == [1] * 354
    assert len(data.test_labels) == 88
    features, labels = data.examples(np.arange(data.users))
    place = [int(name.removeprefix("patient-")) for name in data.user_ids]
    units, centres = diabetes._UNITS, diabetes._CENTRES
    shown = (
        np.column_stack([features, labels]) * units + centres,
        published.data[place],
        published.target[place],
    )
    np.testing.assert_allclose(shown[0][:, :-1], shown[1], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(shown[0][:, -1], shown[2], rtol=1e-5)
    rows = {tuple(row) for row in features.tolist()}
    assert not rows & {tuple(row) for row in data.test_features.tolist()}
    fewer = Diabetes(users=100, seed=3).load()
    assert torch.equal(fewer.test_features, data.test_features)
    assert {*fewer.user_ids} < {*data.user_ids}


def test_what_is_left_and_which_files_are_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"U \(users\) must be at most 354"):
        Diabetes(users=355).load()
    other = tmp_path / "rows.csv.gz"
    other.write_bytes(gzip.compress(b"1 2\n"))
    monkeypatch.setattr(diabetes, "bundled", lambda dataset, name: other)
    with pytest.raises(ValueError, match=r"diabetes_data_raw.csv.gz .* must have SHA-256 86badf50"):
        Diabetes().load()


def test_a_regression_learns_something(tmp_path: Path) -> None:
    import fedmf

    keys = {"task.kind": "regression", "data.kind": "diabetes", "model.kind": "logistic"}
    keys |= {
        "cohorts.rounds": 40,
        "cohorts.users-per-round": 59,
        "privacy.clip-norm": 0.5,
        "privacy.noise-seed": 0,
    }
    keys |= {"privacy.epsilon": 8.0, "client.learning-rate": 0.3, "server.learning-rate": 0.3}
    metrics = fedmf.simulate(run_of({**keys, "execution.evaluate-every": 40}), tmp_path / "run").metrics
    assert metrics[40]["rmse"] < 0.9 * metrics[0]["rmse"]
