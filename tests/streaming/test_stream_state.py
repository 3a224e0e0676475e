"""The state of a stream: held to its settings, input and format; made again where outputs are lost."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest
import torch
from support.streams import BUDGET, N, run_once, sample, write_rows

from fedmf.errors import ConfigError
from fedmf.noise.key import NoiseKey
from fedmf.streaming.plans import StreamPlan
from fedmf.streaming.rows import InputError, Layout
from fedmf.streaming.session import open_run
from fedmf.streaming.settings import Settings
from fedmf.streaming.state import StateError, StreamState
from fedmf.streaming.state.state import pack_state, unpack_state


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    run_once(tmp_path, Settings(**BUDGET, rounds=N), write_rows(tmp_path / "rows.csv", sample()[:20]))
    return tmp_path


def test_other_settings_are_refused_in_one_line(begun: Path) -> None:
    base = {**BUDGET, "rounds": N}
    for change in (
        {"epsilon": 4.0}, {"delta": 1e-6}, {"norm_bound": 2.0}, {"rounds": N + 1}, {"rounds": None},
        {"seed": 6}, {"seed": None}, {"workloads": ("prefix",)}, {"method": "ime"}, {"second": "diagonal"},
        {"every": 2}, {"timestamp": "when"}, {"key": "when"},
        {"adjacency": "replace-one"}, {"mechanisms": ("cgd",)}, {"bands": 3}, {"params": {"taper": 1.0}},
        {"weight": 0.1}, {"columns": ("x0", "x1", "x2")}, {"user_column": "x0"}, {"max_participations": 2},
    ):  # fmt: skip
        name = next(iter(change))
        with pytest.raises(StateError, match=f"^{name} must be") as caught:
            run_once(begun, Settings(**{**base, **change}), begun / "rows.csv")
        assert "\n" not in str(caught.value)


def test_another_input_is_noticed(begun: Path) -> None:
    settings, x = Settings(**BUDGET, rounds=N), sample()
    before = (begun / "out.jsonl").read_bytes()
    for values, word in (
        (np.delete(x, 3, axis=0), "row 20 .* must be the one that was dealt with before"),
        (x[:12], "ends with row 12"),
        (x[:, :2], "must be .x0., .x1., .x2., as in the rows before; got .x0., .x1."),
    ):
        with pytest.raises(InputError, match=word):
            run_once(begun, settings, write_rows(begun / "other.csv", values))
    with pytest.raises(InputError, match="row 21 must come next; the input begins with row 22"):
        run_once(begun, settings, begun / "rows.csv", first_row=22)
    assert (begun / "out.jsonl").read_bytes() == before
    # The rest alone, said to begin with row 21, ends as the whole would have.
    with open_run(
        begun / "state", settings, write_rows(begun / "rest.csv", x[20:]), begun / "out.jsonl", first_row=21
    ) as (run, reader):
        run.feed(reader)
        run.conclude()
    folder = begun / "whole"
    folder.mkdir()
    run_once(folder, settings, write_rows(folder / "rows.csv", x))
    assert (folder / "out.jsonl").read_bytes() == (begun / "out.jsonl").read_bytes()


def test_lost_and_moved_outputs_are_made_again(begun: Path) -> None:
    settings = Settings(**BUDGET, rounds=N)
    before = (begun / "out.jsonl").read_bytes()
    (begun / "out.jsonl").write_bytes(before[:100])
    run_once(begun, settings, begun / "rows.csv")
    assert (begun / "out.jsonl").read_bytes() == before
    (begun / "out.jsonl").unlink()
    run_once(begun, settings, begun / "rows.csv")
    assert (begun / "out.jsonl").read_bytes() == before
    run_once(begun, settings, begun / "rows.csv", "other.jsonl")
    assert (begun / "other.jsonl").read_bytes() == before
    (begun / "third.jsonl").write_text("mine")
    with pytest.raises(ValueError, match="must not exist"):
        run_once(begun, settings, begun / "rows.csv", "third.jsonl")
    assert (begun / "third.jsonl").read_text() == "mine"


def test_a_directory_in_use_or_of_something_else_is_refused(begun: Path) -> None:
    settings = Settings(**BUDGET, rounds=N)
    with (
        StreamState.open(begun / "state") as state,
        pytest.raises(StateError, match=r"stream state .* is being written by another process"),
    ):
        run_once(begun, settings, begun / "rows.csv")
    plan = state.plan
    (begun / "mine").mkdir()
    (begun / "mine/file").touch()
    with pytest.raises(StateError, match="new or empty"):
        StreamState.create(begun / "mine", plan, NoiseKey.from_seed(0))
    (begun / "state/noise.key").chmod(0o644)
    with pytest.raises(ConfigError, match="0600"):
        run_once(begun, settings, begun / "rows.csv")
    assert (begun / "state").stat().st_mode & 0o077 == 0


def test_settings_out_of_range() -> None:
    for change, word in (
        ({"method": "magic"}, "method"),
        ({"workloads": ()}, "workload"),
        ({"mechanisms": ("cgd",) * 3}, "mechanism"),
        ({"method": "pp", "mechanisms": ("cgd", "bisr")}, "must be one"),
        ({"method": "pp", "weight": 1.0}, "weight"),
        ({"every": 0}, "every"),
        ({"rounds": 0}, "rounds"),
        ({"min_separation": 2}, "min_separation"),
    ):
        with pytest.raises(ValueError, match=word):
            Settings(**{**BUDGET, **change})
    layout = Layout(("a", "b"), False, 2, None)
    for change, word in (
        ({"second": "3"}, "block sizes"),
        ({"second": "some"}, "block sizes"),
        ({"max_participations": 2}, "min_separation"),
        ({"max_participations": 9, "min_separation": 9}, "fit in"),
        ({"params": {"nu": 1.0}}, "nu"),
        ({"workloads": ("medium",)}, "workload"),
        ({"mechanisms": ("bisrr",)}, "bisr"),
        ({"epsilon": -1.0}, "privacy loss"),
        ({"norm_bound": 0.0}, "zeta"),
        ({"adjacency": "next-door"}, "adjacency"),
    ):
        with pytest.raises(ValueError, match=word):
            StreamPlan.of(Settings(**{**BUDGET, **change}), layout, N)


def test_states_survive_packing() -> None:
    state = {"t": 3, "deep": {"x": torch.arange(6.0, dtype=torch.float64).view(2, 3), "none": None, "s": "é"}}
    back = unpack_state(pack_state(state))
    assert torch.equal(back["deep"].pop("x"), state["deep"].pop("x"))  # type: ignore[attr-defined]
    assert back == state


def test_states_of_other_formats_are_refused(begun: Path) -> None:
    for pragma, message in (
        ("user_version=2", "stream state .* has format version 2; this fedmf reads version 1"),
        ("application_id=1", "is not a fedmf stream state: its application id is 0x1"),
    ):
        connection = sqlite3.connect(begun / "state/state.sqlite")
        connection.execute(f"PRAGMA {pragma}")
        connection.close()
        with pytest.raises(StateError, match=message) as caught:
            StreamState.open(begun / "state")
        assert "\n" not in str(caught.value)


def test_a_state_without_the_opening_that_made_its_steps_is_refused(begun: Path) -> None:
    connection = sqlite3.connect(begun / "state/state.sqlite")
    with connection:
        connection.execute("DELETE FROM openings")
    connection.close()
    with pytest.raises(StateError, match="position: its opening is missing"):
        StreamState.open(begun / "state")
