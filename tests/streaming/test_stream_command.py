"""`fedmf stream` from the outside: exit codes, one line for bad input, pipes, what is printed."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from fedmf.cli.app import run
from fedmf.moments import METHODS, SECOND_MOMENTS

BUDGET = ["--norm-bound", "1", "--epsilon", "8", "--delta", "1e-5"]
REQUIRED = {
    "unit", "adjacency", "mechanism", "params", "rounds", "max_participations", "min_separation",
    "actual_max_participations", "actual_min_separation", "sampling", "users", "clip_norm",
    "noise_multiplier", "sensitivity", "sensitivity_kind", "delta", "epsilon", "epsilon_spent",
    "not_covered", "secret", "software", "mu", "mu_spent", "noise_key_public",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).normal(size=(12, 2)).tolist()
    lines = ["user,x,y", *(f"u{i},{a!r},{b!r}" for i, (a, b) in enumerate(x))]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in x))
    return tmp_path


def stream(*arguments: str) -> int:
    """The command, told whose rows they are and, of the table, which columns are numbers."""
    told = [] if "--user-column" in arguments else ["--each-row-a-user"]
    named = ["--columns", "x,y"] if "rows.csv" in arguments and "--columns" not in arguments else []
    return run(["stream", *BUDGET, *told, *named, *arguments])


def test_a_file_to_a_file_with_a_state(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --seed: the key is the operating system's, and the counts are for the operator only."""
    command = ["--input", "rows.csv", "--user-column", "user", "--output", "out.jsonl", "--state", "state"]
    assert stream(*command) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("Unit: a user (column `user`); at most one row of each user takes a step, ")
    assert "\nMissing cells: " in shown.out
    promise = (
        "Every user (column `user`) has (8, 1e-05)-differential privacy under zero-out adjacency, "
        "against anyone who sees all that was released.\n"
    )
    assert f"\n{promise}" in shown.out
    counts = json.loads((folder / "state/operator.json").read_text())
    assert counts["clipped"] > 0
    assert shown.err == ""
    statement = json.loads((folder / "state/statement.json").read_text())
    assert statement.keys() >= REQUIRED
    assert statement["rounds"] == statement["rounds_released"] == statement["users_participated"] == 12
    assert any("number of its rows is public" in text for text in statement["assumptions"])
    assert statement["noise_key_public"] is False
    assert (folder / "state/noise.key").stat().st_mode & 0o077 == 0
    assert (folder / "state/operator.json").stat().st_mode & 0o077 == 0
    for text in (
        json.dumps(statement),
        shown.out[shown.out.index(promise) :],
        (folder / "out.jsonl").read_text(),
    ):
        assert "clipped" not in text
        assert "refused" not in text
    before = (folder / "out.jsonl").read_bytes()
    assert before.count(b"\n") == 12
    # The same command again has nothing left to do but to say what it is asked.
    assert stream(*command, "--show-counts") == 0
    told = f"Not private, for the operator only: {counts['clipped']} rows were longer"
    assert told in capsys.readouterr().err
    assert (folder / "out.jsonl").read_bytes() == before
    # Another stream has another key and so another noise.
    assert stream(*command[:-3], "other.jsonl", "--state", "fresh") == 0
    assert (folder / "other.jsonl").read_bytes() != before


def test_help_names_every_method_and_second_moment(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["stream", "--help"]) == 0
    words = set(re.findall(r"[\w-]+", capsys.readouterr().out))
    assert {*METHODS, *SECOND_MOMENTS} <= words


def test_standard_output_and_a_public_seed(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = ["--input", "rows.jsonl", "--seed", "1", "--second", "diagonal", "--workload", "prefix"]
    assert stream(*command) == 0
    first = capfd.readouterr()
    found = [json.loads(line) for line in first.out.splitlines()]
    assert [row["t"] for row in found] == list(range(1, 13))
    assert found[0].keys() == {
        "t", "first", "second", "mean", "covariance", "standard_error",
        "mean_standard_error", "second_standard_error", "covariance_standard_error",
    }  # fmt: skip
    assert len(found[0]["second"]) == 2
    assert first.err.startswith("Unit: a row, each as another user's.")
    assert (
        "\nSimulation only, no privacy (public noise seed). With a secret key: Every row has (8, "
        in first.err
    )
    assert stream(*command) == 0
    assert capfd.readouterr().out == first.out
    assert sorted(path.name for path in folder.iterdir()) == ["rows.csv", "rows.jsonl"]


def piped(text: str, *arguments: str) -> int:
    """The command with a text as its standard input."""
    kept, (read_end, write_end) = os.dup(0), os.pipe()
    os.write(write_end, text.encode())
    os.close(write_end)
    os.dup2(read_end, 0)
    os.close(read_end)
    try:
        return stream(*arguments)
    finally:
        os.dup2(kept, 0)
        os.close(kept)


def test_a_pipe_that_is_given_in_two_parts(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lines = (folder / "rows.jsonl").read_text().splitlines(keepends=True)
    both = ["--rounds", "12", "--seed", "4"]
    base = ["--input", "-", *both, "--output", "out.jsonl", "--state", "state"]
    assert piped("".join(lines[:7]) + "[0.5, oops]\n", *base, "--stop-at-bad-row") == 2
    error = capfd.readouterr().err
    assert error.startswith("fedmf: row 8 (line 8) must hold an array of numbers. The 7 rows before it")
    assert error.count("\n") == 1
    assert (folder / "out.jsonl").read_text().count("\n") == 7
    assert piped("".join(lines[7:]), *base, "--from-row", "8") == 0
    assert stream("--input", "rows.jsonl", *both, "--output", "whole.jsonl") == 0
    assert (folder / "whole.jsonl").read_bytes() == (folder / "out.jsonl").read_bytes()
    # Given whole once more, nothing is left to do; what comes after the horizon is left in the pipe.
    assert piped("".join(lines * 2), *base) == 0
    assert (folder / "whole.jsonl").read_bytes() == (folder / "out.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--input", "absent.csv"], "absent.csv cannot be opened"),
        (["--input", "."], "must be a file"),
        (["--input", "rows.csv", "--columns", "x,z"], "'z' is missing"),
        (["--input", "rows.csv", "--user-column", "name"], "'name' is missing"),
        (["--input", "rows.csv", "--columns", "x", "--rounds", "0"], "n (rounds)"),
        (["--input", "rows.csv", "--columns", "x", "--every", "0"], "every"),
        (["--input", "rows.csv", "--columns", "x", "--second", "two"], "second (moment)"),
        (["--input", "rows.csv", "--columns", "x", "--workload", "mean"], "A (workload)"),
        (["--input", "rows.csv", "--columns", "x", "--mechanism", "bisrr"], "Did you mean"),
        (["--input", "rows.csv", "--columns", "x", "--param", "nu"], "key=number"),
        (
            ["--input", "rows.csv", "--columns", "x", "--max-participations", "3"],
            "k (max_participations) must be 1",
        ),
        (["--input", "rows.csv", "--user-column", "user", "--max-participations", "3"], "min_separation"),
        (["--input", "rows.csv", "--columns", "x", "--output", "absent/out.jsonl"], "folder that exists"),
        (["--input", "rows.csv", "--columns", "x", "--output", "rows.csv"], "must not exist"),
        (["--input", "rows.csv", "--columns", "x", "--state", "."], "new or empty"),
        (["--input", "rows.csv", "--columns", "x", "--state", "rows.csv"], "new or empty"),
        (["--input", "rows.csv", "--columns", "x", "--from-row", "3"], "row 1 for a new stream"),
        (["--input", "rows.csv", "--columns", "x", "--seed", "-1"], "seed"),
        (["--input", "-"], "n (rounds) must be given for standard input; got none. Say --rounds N."),
        (["--input", "rows.csv", "--input-format", "parquet"], "cannot be read"),
        (["--input", "rows.csv", "--input-format", "xlsx"], "xlsx"),
        (["--input", "rows.csv", "--method", "magic"], "magic"),
        (["--input", "rows.csv", "--norm-bound", "-1", "--columns", "x"], "zeta"),
        (["--input", "rows.csv", "--epsilon", "nan", "--columns", "x"], "finite"),
        (["--input", "rows.csv", "--delta", "1", "--columns", "x"], "delta"),
    ],
)
def test_bad_requests_are_one_line(
    folder: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    kept = sorted(path.name for path in folder.iterdir())
    assert stream(*arguments) == 2
    shown = capfd.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert message in shown.err.replace("δ (", "delta (")
    assert sorted(path.name for path in folder.iterdir()) == kept


def test_empty_inputs(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name, content in (("none.csv", ""), ("header.csv", "x,y\n"), ("blank.jsonl", "\n \n")):
        (folder / name).write_text(content)
        named = ["--columns", "x,y"] if name == "header.csv" else []
        assert stream("--input", name, *named, "--rounds", "5", "--state", f"{name}.state") == 2
        shown = capfd.readouterr().err.splitlines()
        assert shown[-1] == "fedmf: input must have rows; got an empty one."


def test_a_bad_row_without_a_state_tells_what_is_needed(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = (folder / "rows.csv").read_text().splitlines()
    text[5] = "u4,0.123456,secret"
    (folder / "rows.csv").write_text("\n".join(text))
    command = ["--input", "rows.csv", "--user-column", "user", "--state", "state", "--output", "out.jsonl"]
    assert stream(*command, "--stop-at-bad-row") == 2
    shown = capfd.readouterr().err
    assert shown.startswith(
        "fedmf: row 5 (line 6) column 'y' must be a number. The 4 rows before it are done."
    )
    assert "secret" not in shown
    assert "0.123456" not in shown
    assert stream(*command, "--show-counts") == 0
    assert "1 rows could not be read and counted as zero vectors" in capfd.readouterr().err
    assert (folder / "out.jsonl").read_text().count("\n") == 12
