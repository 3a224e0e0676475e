"""Signals, descriptors, clocks, two processes; clusters and deployments that lose a part; a soak."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "simulations" / "reliability"
sys.path.insert(0, str(FOLDER))
import process_faults  # noqa: E402  # pyright: ignore[reportMissingImports]
import soak  # noqa: E402  # pyright: ignore[reportMissingImports]
from jobs import stream, training  # noqa: E402  # pyright: ignore[reportMissingImports]

sys.path.remove(str(FOLDER))

JOBS = {job.name: job for job in (training(1), stream())}
ENDS = {"died", "one line", "went on"}


def script(name: str, *options: str, planted: str = "") -> tuple[int, str]:
    """Exit status and output of a script in a process of its own, with a fault planted into fedmf first."""
    code = (
        f"import sys; sys.path.insert(0, {str(FOLDER)!r}); sys.argv = [{name!r}, *{options!r}]\n"
        f"{planted}\nimport {name}; sys.exit({name}.main())"
    )
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "FLWR_TELEMETRY_ENABLED": "0",
    }
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    return ended.returncode, ended.stdout + ended.stderr[-3000:]


@pytest.mark.parametrize("fault", process_faults.FAULTS)
@pytest.mark.parametrize("job", JOBS)
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # fork with threads: they are idle
def test_what_happens_to_a_process_loses_nothing(job: str, fault: str, tmp_path: Path) -> None:
    found = process_faults.outcomes(JOBS[job], fault, tmp_path / "place", tries=1)
    assert set(found) <= ENDS, found
    assert found.total() == 1
    if fault == "0 free descriptors left":
        assert found["one line"] == 1  # the fault met it


def test_a_second_process_that_gets_in_is_seen() -> None:
    planted = "import fedmf.records.lock as lock; lock.fcntl.flock = lambda *_: None"
    job, fault = "run, checkpoint every 1", "a second process at the same time"
    status, output = script(
        "process_faults", "--tries", "1", "--only", job, "--fault", fault, planted=planted
    )
    assert status == 1, output
    assert "ENDED WRONGLY" in output or "ANOTHER RESULT" in output or "LOST" in output, output


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_soak_of_150_rounds(tmp_path: Path) -> None:
    found = soak.soak(tmp_path / "run", rounds=150, resumes=2)
    assert (found.rounds, found.resumes) == (150, 2)
    assert found.failures > 50  # of 300 expected, less those of nodes that are away
    first, second = found.ledger_growth
    assert 0 < second < 1.5 * first + 100  # bytes a round: what is kept of a round does not grow
    first, second = found.directory_growth
    assert 0 < second < 1.5 * first + 500
    fewest, most = found.descriptors
    assert most - fewest <= 3
    assert found.memory_slope < 200_000  # KiB per 1,000 rounds: caches still fill in so short a run


@pytest.mark.deployment
def test_a_ray_cluster_that_loses_a_node_in_a_round_goes_on() -> None:
    status, output = script("cluster_faults", "--rounds", "6")
    assert status == 0, output


@pytest.mark.deployment
def test_a_deployment_that_loses_a_node_goes_on() -> None:
    """The other four faults take minutes: `simulations/reliability/distributed_faults.py` has them all."""
    fault = "SuperNode killed and started again"
    status, output = script("distributed_faults", "--rounds", "2", "--round-timeout", "600", "--fault", fault)
    assert status == 0, output
