"""Data that stay on their nodes by a schema: each node reads its own file, all by the same one."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.clinics import (
    USERS,
    Clinics,
    carried_out,
    clinics,
    configuration,
    rows,
    written_places,
)

import fedmf
from fedmf.data import read_schema
from fedmf.flower.apps import client as app
from fedmf.runs.tables.configuration import run_of

pytestmark = pytest.mark.usefixtures("own_time")


@pytest.fixture
def places(tmp_path: Path) -> Path:
    return written_places(tmp_path)


SCHEMA = """
[columns.age]
kind = "number"
lower = -1
upper = 2
scale = 0.7
[columns.dose]
kind = "number"
lower = -3
upper = 3
fill = 0.25
[columns.who]
kind = "user"
[columns.outcome]
kind = "category"
categories = ["ill", "well"]
"""


def by_schema(places: Path, text: str = SCHEMA, **keys: object) -> dict[str, object]:
    """A configuration in which the schema alone says classes, shape and columns."""
    (places / "schema.toml").write_text(text)
    left_out = ("data.feature-columns", "data.class-names", "data.input-shape")
    config = {key: value for key, value in configuration(places).items() if key not in left_out}
    digest = read_schema(places / "schema.toml").digest
    schema = {"data.schema": f"{places / 'schema.toml'}#{digest}"}
    return {**config, **schema, **keys}


def test_every_node_reads_its_own_file_by_the_schema(places: Path) -> None:
    """The model is that of one table with all rows and the same schema, bad rows included."""
    everybody = [*USERS, *(f"volunteer-{i:02d}" for i in range(3))]
    text = rows(everybody)
    for user, bad in (
        (USERS[1], "x,1"),
        (USERS[6], "0.5,"),
        (USERS[9], "1e999,1"),
        (USERS[10], "nan,nan"),
    ):
        line = next(line for line in text.splitlines() if f",{user}," in line)
        text = text.replace(line, f"{bad},{line.split(',', 2)[2]}")
    (places / "all.csv").write_text(text)
    (places / "all.txt").write_text("\n".join(everybody))
    config = by_schema(places)
    table = {
        **config,
        "data.schema": str(places / "schema.toml"),
        "data.kind": "table",
        "data.path": str(places / "all.csv"),
        "data.user-list": str(places / "all.txt"),
        "data.partition": "by-user",
    }
    whole = run_of(table)
    trained = whole.task_source.data.load().user_ids  # type: ignore[union-attr]
    (places / "server" / "users.txt").write_text("\n".join(trained))
    head, *lines = text.splitlines()
    for clinic, users in (("a", trained[:5]), ("b", trained[5:9]), ("c", trained[9:])):
        mine = [line for line in lines if line.split(",")[2] in users]
        (places / clinic / "rows.csv").write_text("\n".join([head, *mine]) + "\n")
    model, reports, path = carried_out(
        run_of(config), places / "run", clinics(places, config, "a", "b", "c")
    )
    assert [report.present for report in reports] == 6 * [4]
    assert np.array_equal(model, fedmf.simulate(whole, places / "whole").parameters.numpy())
    inputs = {
        entry["name"]: entry["source"]
        for entry in json.loads((path / "statement.json").read_text())["public_inputs"]
    }
    assert (
        inputs["classes"] == inputs["normalization"] == f"declared: schema {config['data.schema']}"
    )


def test_a_node_with_another_schema_serves_nobody(places: Path) -> None:
    """Where its scaling is another one, and where it has the same schema in another place and
    layout.
    """
    config = by_schema(places)
    (places / "own.toml").write_text("# the same\n" + SCHEMA.replace("0.7", "0.70"))
    (places / "other.toml").write_text(SCHEMA.replace("0.7", "0.8"))
    nodes = [{"data-path": str(places / name / "rows.csv")} for name in "abc"]
    nodes[0]["data-schema"] = str(places / "own.toml")
    nodes[1]["data-schema"] = str(places / "other.toml")
    _, reports, _ = carried_out(run_of(config), places / "run", Clinics(app, config, nodes))
    assert sum(report.present for report in reports) == 6 * 4 - 2 * 4
