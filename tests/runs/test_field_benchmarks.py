"""`simulations/field`: each benchmark reduced, and on small files of the format of its data."""

from __future__ import annotations

import importlib.util
import math
import tomllib
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from support.format_files import USERS, write_cifar, write_leaf, write_sentences

import fedmf

FOLDER = Path(__file__).parents[2] / "simulations" / "field"
NAMES = sorted(path.stem for path in FOLDER.glob("*.toml"))


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("field_benchmarks", FOLDER / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCRIPT = load_script()
SHORT: dict[str, Any] = {"cohorts.rounds": 3, "optimizer.warmup": 0, "mechanism.kind": "identity"}


def test_each_configuration_can_be_run() -> None:
    assert sorted(SCRIPT.REDUCED) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_reduced_runs_release_all_rounds(tmp_path: Path, name: str) -> None:
    result = fedmf.simulate(SCRIPT.run_of(name, reduced=True, keys=SHORT), tmp_path / "run")
    statement = result.statement.to_dict()
    assert statement["rounds_released"] == 3
    assert statement["epsilon_realised"] <= 8.0
    measure = "perplexity" if name.startswith("stackoverflow") else "accuracy"
    assert math.isfinite(result.metrics[3][measure])


FILES: dict[str, tuple[Any, dict[str, Any]]] = {
    "cifar10-iid": (write_cifar, {"data.users": 12}),
    "cifar10-dirichlet": (write_cifar, {"data.users": 12}),
    "femnist": (partial(write_leaf, width=28 * 28), {}),
    "stackoverflow-lstm": (write_sentences, {"model.hidden": 8}),
    "stackoverflow-transformer": (write_sentences, {"model.layers": 1, "model.feed-forward": 8}),
}


@pytest.mark.parametrize("name", NAMES)
def test_full_configurations_read_their_files(tmp_path: Path, name: str) -> None:
    write, keys = FILES[name]
    (tmp_path / "data").mkdir()
    folder = write(tmp_path / "data")
    if name.startswith("stackoverflow"):
        keys = {**keys, "data.vocabulary-size": 50}
    run = SCRIPT.run_of(name, folder, keys={**SHORT, "cohorts.rounds": 2, "cohorts.size": 3, **keys})
    assert run.task_source.undeclared() == ()
    result = fedmf.simulate(run, tmp_path / "run")
    assert result.statement.to_dict()["rounds_released"] == 2
    assert np.isfinite(result.parameters.numpy()).all()
    if write is not write_cifar:
        assert set((tmp_path / "data" / "users.txt").read_text().split()) == set(USERS)


def test_settings_are_those_that_pfl_publishes() -> None:
    """Of benchmarks/image_classification/configs/baseline.yaml and benchmarks/lm/configs/baseline.yaml."""
    images = {"size": 50, "clip-norm": 0.4, "batch-size": 10, "local": 0.1, "server": 1.0}
    words = {"size": 400, "clip-norm": 1.0, "batch-size": 16, "local": 0.3, "server": 0.1}
    rounds = {"cifar10-iid": 3000, "cifar10-dirichlet": 3000, "femnist": 1500}
    for name in NAMES:
        tables = tomllib.loads((FOLDER / f"{name}.toml").read_text())
        assert (tables["privacy"]["epsilon"], tables["privacy"]["delta"]) == (2.0, 1e-6)
        assert tables["cohorts"]["rounds"] == rounds.get(name, 2000)
        found = {
            "size": tables["cohorts"]["size"],
            "clip-norm": tables["privacy"]["clip-norm"],
            "batch-size": tables["local"]["batch-size"],
            "local": tables["local"]["learning-rate"],
            "server": tables["optimizer"]["learning-rate"],
        }
        assert found == (words if name.startswith("stackoverflow") else images)
        assert SCRIPT.PUBLISHED[name] == (1_000_000, 5000 if found == words else 1000)


def test_the_published_noise_is_what_the_run_then_adds() -> None:
    run = SCRIPT.run_of("cifar10-iid", reduced=True)
    keys, said = SCRIPT.with_published_noise("cifar10-iid", run)
    plan = fedmf.plan(SCRIPT.run_of("cifar10-iid", reduced=True, keys=keys))
    sigma = plan.noise_multiplier * plan.sensitivity.value / run.cohorts.size * 1000
    assert "for the 100 users here, each in up to 4 of 40 rounds, epsilon 51,4" in said
    # dp-accounting on its own, for 1,000 of 10⁶ people in each of 3,000 rounds.
    loss = from_gaussian_mechanism(sigma, sampling_prob=1e-3, value_discretization_interval=1e-4)
    assert loss.self_compose(3000).get_epsilon_for_delta(1e-6) == pytest.approx(2.0, rel=5e-3)
