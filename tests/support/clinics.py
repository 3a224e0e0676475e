"""Clinics with a file of their own patients each, and a run on all of them."""

from pathlib import Path

import numpy as np
from flwr.clientapp import ClientApp

import fedmf
from fedmf.flower import run_on_grid
from fedmf.flower.apps import client as app
from fedmf.flower.grid import InProcessGrid
from fedmf.runs.loop import RoundReport
from fedmf.runs.run import Run
from support.small_runs import SMALL, dotted, seeing

USERS = [f"patient-{u:02d}" for u in range(12)]
CLINICS = {"a": USERS[:5], "b": USERS[5:9], "c": USERS[9:]}


def rows(users: list[str]) -> str:
    """A CSV of three rows for each user, the same ones wherever they are written."""
    lines = ["age,dose,who,outcome"]
    for user in users:
        x = np.random.default_rng(int(user[-2:]) if user[-2:].isdigit() else 99).standard_normal(
            (3, 2)
        )
        lines += [f"{a:.6f},{b:.6f},{user},{'well' if a > 0 else 'ill'}" for a, b in x]
    return "\n".join(lines) + "\n"


def written_places(folder: Path) -> Path:
    """A folder for each clinic, and one for the server with a user list and a test file."""
    for clinic, users in CLINICS.items():
        (folder / clinic).mkdir()
        (folder / clinic / "rows.csv").write_text(rows(users))
    (folder / "server").mkdir()
    (folder / "server" / "users.txt").write_text("\n".join(USERS))
    (folder / "server" / "test.csv").write_text(rows(["volunteer", "nobody-77"]))
    return folder


def configuration(places: Path, **keys: object) -> dict[str, object]:
    small = {
        **SMALL,
        "users": 12,
        "rounds": 6,
        "cohort_size": 4,
        "messages": "per-user",
        "epsilon": 8.0,
    }
    return {
        **dotted(**small),
        "data.kind": "on-nodes",
        "data.path": str(
            places / "nowhere" / "rows.csv"
        ),  # what the server would open if it opened it
        "data.user-list": str(places / "server" / "users.txt"),
        "data.feature-columns": "age,dose",
        "data.label-column": "outcome",
        "data.user-column": "who",
        "data.class-names": "ill,well",
        "data.input-shape": "2",
        "execution.handshake-timeout": 0.3,
        **keys,
    }


class Clinics(InProcessGrid):
    """A node for each node config, all with one run config."""

    def __init__(  # type: ignore[type-arg]
        self, client: ClientApp, run_config: dict, node_configs: list[dict]
    ) -> None:
        super().__init__(client, len(node_configs), run_config, node_configs)


def clinics(places: Path, config: dict[str, object], *names: str) -> Clinics:
    return Clinics(app, config, [{"data-path": str(places / name / "rows.csv")} for name in names])


def carried_out(
    run: Run, path: Path, grid: InProcessGrid, resume: bool = False
) -> tuple[np.ndarray, list[RoundReport], Path]:
    reports: list[RoundReport] = []
    with (fedmf.resume if resume else fedmf.start)(run, path) as session:
        run_on_grid(session, grid, seeing(reports.append))
        return session.server.parameters.numpy().copy(), reports, path
