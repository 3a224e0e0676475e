"""Data that stay on their nodes: the server knows a user list, each node trains the users of its
own file.
"""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from support.clinics import (
    CLINICS,
    USERS,
    Clinics,
    carried_out,
    clinics,
    configuration,
    rows,
    written_places,
)

import fedmf
from fedmf.data import (
    OnNodes,
)
from fedmf.errors import ConfigError
from fedmf.flower import run_on_grid
from fedmf.flower.apps import client as app
from fedmf.flower.handshake import served_users
from fedmf.runs.cost_estimate import dry_run
from fedmf.runs.loop import RoundRecord
from fedmf.runs.tables.configuration import run_of
from fedmf.training import classification

pytestmark = pytest.mark.usefixtures("own_time")


@pytest.fixture
def places(tmp_path: Path) -> Path:
    return written_places(tmp_path)


def on_one_machine(places: Path, path: Path) -> np.ndarray:
    """The same run with everybody's examples in memory of one process."""
    config = configuration(places)
    described = run_of(config)
    source = OnNodes(
        users=12,
        path=str(places / "all.csv"),
        user_list=str(config["data.user-list"]),
        feature_columns=("age", "dose"),
        label_column="outcome",
        user_column="who",
        class_names=("ill", "well"),
        input_shape=(2,),
    )
    (places / "all.csv").write_text(rows(USERS))
    task = classification(source.here(), described.task_source.model.build((2,), 2))  # type: ignore[attr-defined]
    run = dataclasses.replace(described, task=task)
    return fedmf.simulate(run, path).parameters.numpy()


def test_the_model_is_that_of_all_data_in_one_place(places: Path) -> None:
    config = configuration(places)
    model, reports, _ = carried_out(
        run_of(config), places / "run", clinics(places, config, "a", "b", "c")
    )
    assert [report.present for report in reports] == 6 * [4]
    assert not any(report.failures for report in reports)
    assert np.array_equal(model, on_one_machine(places, places / "same"))


def test_the_server_opens_no_file_but_the_user_list(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planning, starting, resuming and stating are done where no user's rows can be read."""
    config = configuration(places, **{"execution.node-keys": "keys"})
    opened = list[str]()
    real = Path.open

    def noting(path: Path, *arguments, **keys):  # type: ignore[no-untyped-def]
        opened.append(str(path))
        return real(path, *arguments, **keys)

    monkeypatch.setattr(Path, "open", noting)
    with fedmf.start(run_of(config), places / "run") as session:
        assert not session.task.dataset.has_examples
        assert session.task.dataset.user_ids == tuple(USERS)
        assert session.task.model.dimension == 2 * 8 + 8 + 8 * 2 + 2
        session.write_reports()
    with fedmf.resume(run_of(config), places / "run") as session:
        statement = session.statement().to_dict()
    touched = {path for path in opened if str(places) in path and str(places / "run") not in path}
    assert touched <= {str(config["data.user-list"])}
    inputs = {entry["name"]: entry["value"] for entry in statement["public_inputs"]}
    assert "--enable-supernode-auth" in inputs["nodes of users"]
    assert "sizes of users" not in inputs
    assert inputs["test part"] == "none"


def test_a_simulation_is_refused_before_anything_is_written(places: Path) -> None:
    run = run_of(configuration(places, **{"data.test-path": str(places / "server" / "test.csv")}))
    assert len(run.task_source.build().dataset.test_labels) == 6
    with pytest.raises(ConfigError, match="examples must be on this machine"):
        fedmf.simulate(run, places / "run")
    assert not (places / "run").exists()
    with pytest.raises(ConfigError, match="examples must be on this machine"):
        next(dry_run(run))


def test_a_clinic_that_is_down_is_absent_and_comes_back_when_the_run_goes_on(places: Path) -> None:
    config = configuration(places)
    run = run_of(config)
    _, reports, path = carried_out(run, places / "run", clinics(places, config, "a", "b"))
    assert sum(report.present for report in reports) == 6 * 4 - 2 * 3
    with pytest.raises(ConfigError, match="another run"):
        fedmf.resume(run_of(configuration(places, **{"data.class-names": "well,ill"})), path)

    class Stops(Exception):
        pass

    def stop(record: RoundRecord) -> None:
        if record.rounds == 3:
            raise Stops

    with fedmf.start(run, places / "stopped") as session, pytest.raises(Stops):
        run_on_grid(session, clinics(places, config, "a", "b", "c"), stop)
    again = clinics(places, config, "c", "a", "b")  # other ids, other order
    model, reports, _ = carried_out(run, places / "stopped", again, resume=True)
    assert [report.round_index for report in reports] == [3, 4, 5]
    assert np.array_equal(model, on_one_machine(places, places / "same"))


def test_what_a_node_says_is_what_its_file_and_its_user_list_say(places: Path) -> None:
    config = configuration(places)
    (places / "c" / "rows.csv").write_text(rows([*CLINICS["c"], "visitor", *CLINICS["a"][:1]]))
    (places / "c" / "allowed.txt").write_text("\n".join([*CLINICS["c"], "long-gone"]))
    nodes = [{"data-path": str(places / name / "rows.csv")} for name in "abc"]
    nodes[2]["data-user-list"] = str(places / "c" / "allowed.txt")

    answered: dict[int, list[str]] = {}

    class Noting(Clinics):
        def pull_messages(self, message_ids):  # type: ignore[no-untyped-def]
            for reply in super().pull_messages(message_ids):
                if reply.metadata.message_type == "query":
                    answered[len(answered)] = list(served_users(reply) or ())
                yield reply

    model, _, _ = carried_out(run_of(config), places / "run", Noting(app, config, nodes))
    assert answered == {0: CLINICS["a"], 1: CLINICS["b"], 2: CLINICS["c"]}
    assert np.array_equal(model, on_one_machine(places, places / "same"))


def test_one_users_broken_rows_change_that_users_update_alone(places: Path) -> None:
    """Neighboring worlds: who is present is the same, and everybody else's update keeps its
    bits.
    """
    updates: dict[str, dict[tuple[str, int], np.ndarray]] = {}

    class Noting(Clinics):
        def pull_messages(self, message_ids):  # type: ignore[no-untyped-def]
            for reply in super().pull_messages(message_ids):
                config = reply.content.config_records["config"]
                if "rows" in reply.content.array_records.get("arrays", {}):
                    rows = reply.content.array_records["arrays"]["rows"].numpy()
                    for user, row in zip(config["users"], rows, strict=True):
                        updates[world].setdefault((user, config["round"]), row.copy())
                yield reply

    for world in ("whole", "broken"):
        updates[world] = {}
        if world == "broken":
            text = (places / "b" / "rows.csv").read_text()
            broken = text.replace(f",{USERS[6]},", f",x,1e999,{USERS[6]},,")
            assert broken != text
            (places / "b" / "rows.csv").write_text(broken)
        config = configuration(places, **{"cohorts.rounds": 1, "cohorts.users-per-round": 12})
        nodes = [{"data-path": str(places / name / "rows.csv")} for name in "abc"]
        carried_out(run_of(config), places / world, Noting(app, config, nodes))
    assert (
        updates["whole"].keys()
        >= updates["broken"].keys()
        >= {(u, 0) for u in USERS if u != USERS[6]}
    )
    for key, update in updates["broken"].items():
        if key[0] != USERS[6]:
            assert np.array_equal(update, updates["whole"][key])


def test_data_on_nodes_are_not_simulated(places: Path) -> None:
    with pytest.raises(ConfigError, match="examples must be on this machine"):
        fedmf.simulate(run_of(configuration(places)), places / "run")
