"""The app that is a pyproject.toml alone, in this process and on a SuperLink, each node with its own file."""

import json
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
from support.certificates import make_credentials
from support.flower_network import flower_environment, flwr_run, superlink, supernodes

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
        return sorted(ledger.participations())


def test_in_this_process(files: list[str], tmp_path: Path) -> None:
    listed = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    config = flat_config(listed) | overrides(tmp_path)
    grid = InProcessGrid(app, len(files), config, [{"data-path": file} for file in files])
    with fedmf.start(run_of(config), tmp_path / "run") as session:
        run_on_grid(session, grid)
    assert len(present(tmp_path / "run")) == 6 * 4
    assert (tmp_path / "run" / "failures.jsonl").read_text() == ""


@pytest.mark.deployment
def test_on_a_superlink_with_authenticated_nodes(files: list[str], tmp_path: Path) -> None:
    """Each is enrolled for its patients; the last clinic claims one that is not its."""
    write(Path(files[2]), [*CLINICS[2], PATIENTS[0]])
    app_dir = Path(shutil.copytree(APP, tmp_path / "app"))
    env, credentials = flower_environment(tmp_path), make_credentials(tmp_path / "keys", len(files))
    keys = [credentials.node(i).with_suffix(".pub").read_text().strip() for i in range(len(files))]
    lines = [f"{key} {user}" for key, users in zip(keys, CLINICS, strict=True) for user in users]
    (tmp_path / "enrolled").write_text("\n".join(lines))
    config = overrides(tmp_path) | {
        "execution.enrolment": str(tmp_path / "enrolled"),
        "execution.messages": "slice",
        "cohorts.rounds": 1,
        "cohorts.size": 12,
        "execution.handshake-timeout": 600.0,
    }
    paths = [f"data-path='{file}'" for file in files]
    with (
        superlink(env, tmp_path / "net", credentials=credentials) as link,
        supernodes(env, link, len(files), credentials, paths),
    ):
        done = flwr_run(app_dir, env, link.name, config, timeout=3000)
    assert done.ok, done.details + done.output[-3000:]
    assert present(tmp_path / "run") == [(0, user) for user in PATIENTS]
    assert json.loads((tmp_path / "run" / "statement.json").read_text())["rounds_released"] == 1
