"""Flower's Ray engine: any number of workers gives the same model, bit for bit."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.ledgers import last_state, participations
from support.small_runs import run_small, small_run

from fedmf.errors import ConfigError
from fedmf.flower.apps import backend_config, start_ray
from fedmf.ledger.ledger import Ledger
from fedmf.runs.run import Run
from fedmf.runs.tables.configuration import render_toml

#: Users of unequal size, so that longest-first cuts cohorts differently for each number of workers.
KEYS = {
    "rounds": 4,
    "mechanism": "bisr",
    "bands": 2,
    "server_momentum": 0.9,
    "local_batch_size": 16,
}


def _run(workers: int) -> Run:
    return small_run(**KEYS, workers=workers, partition="dirichlet", dirichlet_alpha=0.3)


def _model(path: Path, workers: int) -> np.ndarray:
    """The final model of a run by the command; Ray leaves its marks on a process, so it has its
    own.
    """
    config = path.with_suffix(".toml")
    config.write_text(render_toml(_run(workers)))
    command = [
        sys.executable,
        "-m",
        "fedmf",
        "simulate",
        str(config),
        "--engine",
        "ray",
        "--out",
        str(path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return last_state(path)[0].numpy()


@pytest.mark.weekly
def test_workers_give_the_bits_of_one_process(tmp_path: Path) -> None:
    """And the ledger replays, the statement holds, nobody was counted twice."""
    path = tmp_path / "ray"
    several = _model(path, 3)
    run = _run(1)
    alone = tmp_path / "alone"
    assert np.array_equal(several, run_small(alone, run))
    assert (path / "failures.jsonl").read_text() == ""
    statement = json.loads((path / "statement.json").read_text())
    assert statement["rounds_released"] == run.cohorts.rounds
    assert statement["epsilon_spent"] <= statement["epsilon"]
    with Ledger.open(path / "ledger.sqlite", read_only=True) as ledger:
        assert ledger.released == run.cohorts.rounds
        pairs = participations(ledger)
    assert len(pairs) == len(set(pairs)) == run.cohorts.rounds * run.cohorts.users_per_round


@pytest.mark.parametrize(
    ("keys", "init", "resources"),
    [
        ({"workers": 3}, {"num_cpus": 3}, {"num_cpus": 1.0, "num_gpus": 0.0}),
        (
            {"workers": 4, "worker_gpus": 0.25},
            {"num_cpus": 4},
            {"num_cpus": 1.0, "num_gpus": 0.25},
        ),
    ],
    ids=str,
)
def test_what_actors_reserve(
    keys: dict, init: dict, resources: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    reserved = backend_config(small_run(**keys).execution)
    assert reserved["client_resources"] == {**resources, "max_restarts": -1}
    assert reserved["init_args"]["num_cpus"] == init["num_cpus"]
    monkeypatch.setenv("RAY_ADDRESS", "auto")  # a cluster knows what it has
    assert "num_cpus" not in backend_config(small_run(**keys).execution)["init_args"]


@pytest.mark.weekly
@pytest.mark.parametrize("address", ["auto", "127.0.0.1:9"])
def test_an_address_without_a_cluster_is_refused_at_once(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConfigError, match="it cannot be reached"):
        start_ray(small_run().execution)
