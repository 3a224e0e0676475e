"""The app that is a pyproject.toml alone, in this process and on a SuperLink, each node with its own file."""

import tomllib
from pathlib import Path

import numpy as np
import pytest
from support.ledgers import participations

import fedmf
from fedmf.flower import InProcessGrid, run_on_grid
from fedmf.flower.client_app import app
from fedmf.flower.compat import flat_config
from fedmf.records.ledger import Ledger
from fedmf.runs import run_of

APP = Path(__file__).parents[2] / "docs/examples/clinics"
PATIENTS = [f"patient-{u:02d}" for u in range(12)]
CLINICS = [PATIENTS[:5], PATIENTS[5:9], PATIENTS[9:]]


def write(path: Path, patients: list[str]) -> str:
    """Three rows of each patient; the node config that names the file."""
    rng = np.random.default_rng(len(patients))
    lines = ["age,dose,patient,outcome"]
    for patient in patients:
        x = rng.standard_normal((3, 2))
        lines += [f"{a:.4f},{b:.4f},{patient},{'well' if a > b else 'ill'}" for a, b in x]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "roster.txt").write_text("\n".join(PATIENTS))
    return [write(tmp_path / f"clinic-{i}.csv", patients) for i, patients in enumerate(CLINICS)]


def overrides(tmp_path: Path) -> dict[str, str | int | float | bool]:
    return {
        "data.roster": str(tmp_path / "roster.txt"),
        "execution.output-dir": str(tmp_path / "run"),
        "privacy.noise-seed": 1,
    }


def present(path: Path) -> list[tuple[int, str]]:
    with Ledger.open(path / "ledger.sqlite", read_only=True) as ledger:
        return sorted(participations(ledger))


def test_in_this_process(files: list[str], tmp_path: Path) -> None:
    listed = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    config = flat_config(listed) | overrides(tmp_path)
    grid = InProcessGrid(app, len(files), config, [{"data-path": file} for file in files])
    with fedmf.start(run_of(config), tmp_path / "run") as session:
        run_on_grid(session, grid)
    assert len(present(tmp_path / "run")) == 6 * 4
    assert (tmp_path / "run" / "failures.jsonl").read_text() == ""
