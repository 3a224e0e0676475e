"""`fedmf stream` from the outside: exit codes, one line for bad input, pipes, what is printed."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.command_line import one_line

from fedmf.cli.app import run
from fedmf.data import Schema
from fedmf.streaming import PrivateRelease, Settings
from fedmf.streaming.private_release import at_bounds

PAIRS = np.random.default_rng(3).normal(size=(1000, 2)) / 1.5
SHARES = np.arange(1000)[:, None] / 1000
CLIPPED = "WARNING: many rows were probably clipped"
BUDGET = ["--clip-norm", "1", "--epsilon", "8", "--delta", "1e-5"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    x = (0.5 * np.random.default_rng(0).normal(size=(12, 2))).tolist()
    lines = [
        "user,x,y",
        *(f"u{i % 8},{a!r},{b!r}" for i, (a, b) in enumerate(x)),
        ",0.1,0.2",
        "u0,0.1",
    ]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in x))
    return tmp_path


def stream(*arguments: str) -> int:
    """The command, told whose rows they are and, of the table, which columns are numbers."""
    told = [] if "--user-column" in " ".join(arguments) else ["--row-level"]
    named = (
        ["--columns", "x,y"]
        if arguments[1].endswith(".csv") and "--columns" not in arguments
        else []
    )
    return run(["stream", *BUDGET, *told, *named, *arguments])


def test_a_file_to_a_file_with_a_state(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --seed: the key is the operating system's, and counts of values are for the operator
    alone.
    """
    files = sorted(path.name for path in folder.iterdir())
    command = [
        "--input",
        "rows.csv",
        "--user-column=user",
        "--output",
        "out.jsonl",
        "--state-dir",
        "state",
    ]
    assert stream(*command, "--dry-run") == 0
    expected = capsys.readouterr().out
    assert sorted(path.name for path in folder.iterdir()) == files
    assert stream(*command) == 0
    last = json.loads((folder / "out.jsonl").read_text().splitlines()[-1])
    assert f" {1.96 * last['mean_standard_error'][0]:.3g} " in expected
    shown = capsys.readouterr()
    assert shown.out.startswith("At most 1 row of each user counts.\n")
    promise = (
        "Every user (column `user`) has (8, 1e-05)-differential privacy, compared with contributing"
        " nothing (zero-out adjacency), against anyone who sees all that was released.\n"
    )
    assert f"\n{promise}" in shown.out
    # The last line is no row, which is as private as what it holds: it counts for nobody, unsaid.
    told = "\n10 of 14 rows count.\n  1 of these without a user id, as invalid rows\n  4 are over"
    assert told in shown.out
    assert shown.out.index(told) < shown.out.index("mean [95 %]") < shown.out.index(promise)
    assert re.search(
        r"\nThe noise of the means is [0-9.]+ times the noise of a single release", shown.out
    )
    assert shown.err == ""
    counts = json.loads((folder / "state/operator.json").read_text())
    assert counts["clipped"] > 0
    statement = json.loads((folder / "state/statement.json").read_text())
    assert (statement["rounds"], statement["rounds_released"], statement["users_participated"]) == (
        10,
        10,
        8,
    )
    assert any("number of its rows that count" in text for text in statement["assumptions"])
    for name in ("noise.key", "operator.json"):
        assert (folder / "state" / name).stat().st_mode & 0o077 == 0
    said = re.sub(f"{CLIPPED}.*", "", shown.out)  # of released numbers, so by chance
    for text in (json.dumps(statement), said, (folder / "out.jsonl").read_text()):
        assert "clipped" not in text
    before = (folder / "out.jsonl").read_bytes()
    # The same command again has nothing left to do.
    assert stream(*command) == 0
    assert (folder / "out.jsonl").read_bytes() == before
    capsys.readouterr()
    with (folder / "rows.csv").open("a") as file:
        file.write("\n0.1,0.2,somebody new")
    assert stream(*command) == 3
    assert "fedmf: all 10 rows of this stream were received" in capsys.readouterr().err
    assert stream(*command, "--log-format", "json") == 3
    told = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert told["exit_code"] == 3
    assert told["error"].startswith("all 10 rows of this stream were received")
    # Another stream has another key and so another noise.
    assert stream(*command[:-3], "other.jsonl", "--state-dir", "fresh") == 0
    assert (folder / "other.jsonl").read_bytes() != before


def test_strange_rows_are_for_the_operator(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the input by the release before each row, or of another file by the last: one strange row
    each.
    """
    x = np.random.default_rng(0).normal(0, 0.1, (4000, 2)).round(4).tolist()
    x[3500] = [0.9, -0.9]
    (folder / "long.csv").write_text("x,y\n" + "".join(f"{a},{b}\n" for a, b in x))
    asked = ["--release-every", "1000", "--false-alarms", "1e-4", "--output"]
    assert stream("--input", "long.csv", *asked, "a.csv", "--alarms", "a.txt") == 0
    assert (
        "Not private, for the operator only: 1 of 3,000 scored rows are above"
        in capsys.readouterr().out
    )
    header, alarm = (folder / "a.txt").read_text().splitlines()
    assert (header, alarm.split(",")[0]) == ("row,score,threshold,release", "3501")
    assert (folder / "a.txt").stat().st_mode & 0o077 == 0
    (folder / "new.csv").write_text("x,y\n0.1,0.1\n0.9,-0.9\n")
    assert (
        stream("--input", "long.csv", *asked, "b.csv", "--alarms", "b.txt", "--score", "new.csv")
        == 0
    )
    assert [line.split(",")[0] for line in (folder / "b.txt").read_text().splitlines()] == [
        "row",
        "2",
    ]
    assert (folder / "a.csv").read_text().count("\n") == 5
    capsys.readouterr()
    assert stream("--input", "new.csv", *asked, "d.csv", "--alarms", "d.txt") == 0
    assert "no row followed a release of enough rows; use --score FILE" in capsys.readouterr().out
    (folder / "bad.csv").write_text("station day\n0.1\n")
    assert (
        stream("--input", "long.csv", *asked, "c.csv", "--alarms", "c.txt", "--score", "bad.csv")
        == 2
    )
    assert (
        "must be 'x', 'y', as in the stream; got 'station day' in bad.csv."
        in capsys.readouterr().err
    )
    assert not (folder / "c.txt").exists()


def test_the_screen_says_what_cannot_be_said(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        stream("--input", "rows.csv", "--output", "a.csv", "--epsilon", "0.1", "--plot", "a.png")
        == 0
    )
    shown = capsys.readouterr().out
    assert " too noisy" in shown
    told = (
        r"WARNING: too noisy to say how large the variances are\. A standard deviation of [xy]"
        r" below [0-9]"
    )
    assert re.search(told, shown)
    assert (folder / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (PAIRS, CLIPPED),
        (np.where(SHARES > 0.2, 9 + PAIRS, np.nan), CLIPPED),
        (PAIRS / 2, "mean [95 %]"),
        (PAIRS / np.linalg.norm(PAIRS, axis=1)[:, None] * SHARES**0.5, "mean [95 %]"),
        (
            np.full((1000, 2), "2026-01-01"),
            "If a column is empty, or has a wrong name, unit or format (text, times)",
        ),
    ],
    ids=["normal", "long or missing", "short", "disc", "text"],
)
def test_released_moments_tell_of_clipped_rows(
    folder: Path, capsys: pytest.CaptureFixture[str], rows: np.ndarray, told: str
) -> None:
    """Normal rows with a third beyond the clip norm, and others; not rows within it, up to a whole
    disc.
    """
    pd.DataFrame(rows, columns=["x", "y"]).to_csv("long.csv", index=False)
    more = ["--release-every", "250", "--full", "--seed", "1"]
    assert stream("--input", "long.csv", "--output", "b.csv", *more) == 0
    shown = capsys.readouterr().out
    assert told in shown
    assert "Does not cover:" in shown
    assert ("WARNING" in shown) == (told != "mean [95 %]")


def test_a_json_log_has_an_object_for_each_warning(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether the releases or the text are on standard output."""
    arguments = ["--input", "rows.csv", "--epsilon", "0.1", "--seed", "1", "--output"]
    for output, standard in (("d.csv", "out"), ("-", "err")):
        assert stream(*arguments, output) == 0
        text = getattr(capsys.readouterr(), standard)
        (folder / "d.csv").unlink(missing_ok=True)
        assert stream(*arguments, output, "--log-format", "json") == 0
        shown = capsys.readouterr()
        objects = [json.loads(line) for line in shown.err.splitlines()]
        (warning,) = [line["warning"] for line in objects if "warning" in line]
        assert warning.startswith("too noisy to say how large the variances are.")
        assert f"WARNING: {warning}\n" in text
        assert "WARNING" not in shown.out + shown.err


def test_standard_output_and_a_public_seed(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = [
        "--input",
        "rows.jsonl",
        "--seed",
        "1",
        "--second-moment",
        "diagonal",
        "--workload",
        "prefix",
    ]
    assert stream(*command) == 0
    first = capfd.readouterr()
    found = [json.loads(line) for line in first.out.splitlines()]
    assert [row["t"] for row in found] == list(range(1, 13))
    assert found[0].keys() == {
        "t",
        "mean",
        "mean_low",
        "mean_high",
        "mean_standard_error",
        "covariance",
        "covariance_low",
        "covariance_high",
        "too_noisy",
        "columns",
    }
    assert first.err.startswith("Every row counts as a different user")
    assert "\nSimulation only, no privacy (public noise seed)." in first.err
    assert stream(*command, "--output", "-") == 0
    assert capfd.readouterr().out == first.out
    assert sorted(path.name for path in folder.iterdir()) == ["rows.csv", "rows.jsonl"]


def piped(text: str, *arguments: str) -> int:
    """The command with a text as its standard input."""
    kept = os.dup(0)
    read_end, write_end = os.pipe()
    os.write(write_end, text.encode())
    os.close(write_end)
    os.dup2(read_end, 0)
    os.close(read_end)
    try:
        return stream(*arguments)
    finally:
        os.dup2(kept, 0)
        os.close(kept)


def test_a_pipe_that_is_given_in_two_parts(folder: Path) -> None:
    lines = (folder / "rows.jsonl").read_text().splitlines(keepends=True)
    both = ["--rounds", "12", "--seed", "4"]
    base = ["--input", "-", *both, "--output", "out.jsonl", "--state-dir", "state"]
    assert piped("".join(lines[:7]), *base) == 0
    assert (folder / "out.jsonl").read_text().count("\n") == 7
    assert piped("".join(lines[7:]), *base, "--from-row", "8") == 0
    assert stream("--input", "rows.jsonl", *both, "--output", "whole.jsonl") == 0
    assert (folder / "whole.jsonl").read_bytes() == (folder / "out.jsonl").read_bytes()
    # Given whole once more, nothing is left to do; what comes after the horizon is left in the
    # pipe.
    assert piped("".join(lines * 2), *base) == 0
    assert (folder / "whole.jsonl").read_bytes() == (folder / "out.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--input absent.csv", "absent.csv cannot be opened"),
        ("--input .", "directory"),
        ("--input rows.csv --columns x,z", "'z' is missing"),
        ("--input rows.csv --columns x --rounds 0", "n (rounds)"),
        ("--input rows.csv --columns x --mechanism bisrr", "Did you mean"),
        ("--input rows.csv --columns x --rows-per-user 3", "need a user column"),
        ("--input rows.csv --columns x --output absent/out.jsonl", "folder that exists"),
        ("--input rows.csv --columns x --output rows.csv", "must not exist"),
        ("--input rows.csv --columns x --output rows.tsv", "must end in"),
        ("--input rows.csv --columns x --state-dir .", "new or empty"),
        ("--input rows.csv --columns x --from-row 3", "must be 1 for a new stream"),
        ("--input -", "n (rounds) must be given for standard input; got none. Use --rounds N."),
        ("--input rows.csv --clip-norm -1 --columns x", "clip_norm"),
        ("--input rows.csv --weight better", "weight must be a number, or for joint mean, cov"),
        ("--input rows.csv --columns x --score rows.csv", "--score needs --alarms FILE"),
        ("--input rows.csv --method post-processing --alarms a.csv", "for a density: one workload"),
        (
            "--input rows.csv --user-column user --row-id user",
            "(column) must not be that of the user ids",
        ),
    ],
)
def test_bad_requests_are_one_line(
    folder: Path, capfd: pytest.CaptureFixture[str], arguments: str, message: str
) -> None:
    kept = sorted(path.name for path in folder.iterdir())
    assert stream(*arguments.split()) == 2
    shown = capfd.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert message in shown.err.replace("δ (", "delta (")
    assert sorted(path.name for path in folder.iterdir()) == kept


@pytest.mark.parametrize(
    ("options", "header", "message"),
    [
        (
            "--columns x",
            "user,x",
            "--row-level if every row is from a different person; got neither.",
        ),
        ("--row-level", "a,Started at", "be named (--columns A,B) or declared (--schema FILE"),
        ("--row-level", "user;x", "must separate cells by commas; its header has ';': 'user;x'"),
        ("--row-level --user-column user --columns x", "user,x", "a different person; got both."),
    ],
)
def test_users_and_columns_must_be_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], options: str, header: str, message: str
) -> None:
    (tmp_path / "rows.csv").write_text(f"{header}\n1,0.5\n2,0.25\n")
    command = ["stream", "--input", str(tmp_path / "rows.csv"), *BUDGET, *options.split()]
    assert run([*command, "--state-dir", str(tmp_path / "state")]) == 2
    assert message in one_line(capfd)
    assert not (tmp_path / "state").exists()


SCHEMA = """
[columns.user]
kind = "user"
[columns.speed]
kind = "number"
lower = 0
upper = 40
{more}
[columns.at]
kind = "time"
start = "2026-01-01"
end = "2026-02-01"
step = "1 d"
"""


WIDE = """
[columns.day]
kind = "{day}"
[columns.x]
kind = "number"
lower = -9
upper = 9
scale = 1
{more}
[columns.y]
kind = "number"
lower = -9
upper = 9
scale = 1
{more}
"""
WEEK = "--schema {}.toml --second-moment diagonal --time-column day --start 2026-01-05 --rounds 1"


@pytest.mark.parametrize(
    "options",
    [
        "--schema fill.toml --release-every 999",
        "--second-moment trace --release-every 999",
        f"{WEEK.format('fill')} --release-every 1w --until 2026-01-12",
    ],
    ids=["schema", "trace", "periods"],
)
def test_clipped_rows_are_told_and_counted(
    folder: Path, capsys: pytest.CaptureFixture[str], options: str
) -> None:
    """By a warning from released numbers, and exactly by a dry run; not below the clip norm."""
    pd.DataFrame(PAIRS, columns=["x", "y"]).assign(day="2026-01-06").to_csv("a.csv", index=False)
    Path("fill.toml").write_text(WIDE.format(day="text", more="fill = 0"))
    told = ["--input", "a.csv", "--seed", "1", "--output", "out.jsonl", *options.split()]
    assert stream(*told) == 0
    assert CLIPPED in capsys.readouterr().out
    assert stream(*told, "--dry-run") == 0
    clipped = int((np.linalg.norm(PAIRS, axis=1) > 1).sum())
    assert f"\n  clipped to norm 1: {clipped}\n" in capsys.readouterr().out
    Path("out.jsonl").unlink()
    assert stream(*told, "--clip-norm", "2") == 0
    assert CLIPPED not in capsys.readouterr().out


def test_missing_cells_and_times_of_a_schema_are_told_with_the_remedy(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Most rows miss a cell; a fill keeps them, or else they are not counted as valid rows."""
    Path("a.csv").write_text("day,x,y\n" + "2026-01-06,0.5,\n" * 2 + "2026-01-06,0.5,0.5\n")
    for more, invalid in (("nullable = true", 2), ("fill = 0", 0), ("nullable = false", 2)):
        Path("a.toml").write_text(WIDE.format(day="ignore", more=more))
        assert stream("--input", "a.csv", "--schema", "a.toml", "--dry-run") == 0
        shown = capsys.readouterr().out
        assert f"  invalid rows: {invalid}" in shown
        assert "in 3 releases. 95 % noise" in shown
        assert "Least visible correlation at the last release: " in shown
        assert ("most rows are invalid" in shown) == (invalid > 0)
        assert ("set a fill in each column instead" in shown) == (more == "nullable = false")
    assert stream("--input", "a.csv", *WEEK.format("a").split(), "--release-every", "1w") == 2
    assert (
        "declares as text or time; got 'day', a column of kind 'ignore'" in capsys.readouterr().err
    )


def test_a_schema_scales_and_is_kept(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Means in the column's own units, a filled cell as the value it is filled with; another
    schema, another header and what it has no place for are refused in one line.
    """
    lines = [f"u{i},{(i * 7) % 40 if i % 4 else ''},2026-01-{i + 1:02}T07:30" for i in range(24)]
    (tmp_path / "rows.csv").write_text("\n".join(["user,speed,at", *lines]) + "\n")
    (tmp_path / "filled.csv").write_text(
        "\n".join(["user,speed,at", *(x.replace(",,", ",25,") for x in lines)])
    )
    (tmp_path / "other.csv").write_text("user,Speed,at\n" + "\n".join(lines))
    for name, more in (("a", "nullable = true"), ("b", "fill = 25")):
        (tmp_path / f"{name}.toml").write_text(SCHEMA.format(more=more))

    def command(schema: str, rows: str, *more: str) -> int:
        files = f"--input {tmp_path}/{rows}.csv --schema {tmp_path}/{schema}.toml --timestamp at"
        return run(f"stream {files} --epsilon 200 --delta 1e-5 --seed 3".split() + list(more))

    state = ("--state-dir", str(tmp_path / "state"))
    assert command("a", "rows", *state, "--release-every", "24") == 0
    line = json.loads(capfd.readouterr().out)
    valid = [(i * 7) % 40 for i in range(24) if i % 4]
    assert line["mean"][0] == pytest.approx(np.mean(valid), abs=4 * line["mean_standard_error"][0])
    assert line["mean_low"][0] < line["mean"][0] < line["mean_high"][0]
    assert line["valid_share"] == pytest.approx(0.75, abs=0.2)
    assert line["timestamp"] == "2026-01-24T00:00:00"
    assert json.loads((tmp_path / "state/operator.json").read_text())["unreadable speed"] == 6
    assert command("a", "rows", "--rounds", "30", "--release-every", "99") == 0
    told = (
        "24 of 24 rows count.\n24 rows wait for the release after 30 rows (--release-every,"
        " --rounds).\n"
    )
    assert f"{told}No release yet.\n" in capfd.readouterr().err
    assert (command("b", "rows"), capfd.readouterr().out) == (
        command("b", "filled"),
        capfd.readouterr().out,
    )
    (tmp_path / "new.csv").write_text("city,speed\nGraz,1e9\nLinz,20\nWels,none\n")
    alarms = ("--alarms", str(tmp_path / "alarms.csv"), "--score", str(tmp_path / "new.csv"))
    assert command("b", "rows", *alarms) == 0
    last, told = capfd.readouterr()
    assert (
        " of 2 scored rows are above the threshold for 1 % of ordinary ones, 1 have a missing"
        in told
    )
    # A value beyond the bounds of the schema is scored as it is, here as in Python.
    score = PrivateRelease.from_dict(json.loads(last.splitlines()[-1])).score([[1e9]])
    found = (tmp_path / "alarms.csv").read_text().splitlines()[1].split(",")
    assert (found[0], float(found[1])) == ("1", pytest.approx(score[0], rel=1e-5))
    for arguments, message in (
        (
            ("b", "rows", *state, "--release-every", "24"),
            "schema must be as it was when the stream",
        ),
        (("a", "other"), "columns must all be declared in the schema; got 'Speed'"),
        (
            ("a", "rows", "--columns", "at"),
            "must be a column that the schema declares as number or category",
        ),
        (("a", "rows", "--user-column", "speed"), "user_column must be as in the schema"),
        (("a", "rows", "--second-moment", "trace"), "second moment must be full or diagonal"),
    ):
        capfd.readouterr()
        assert command(*arguments) == 2
        assert message in one_line(capfd)


def test_released_numbers_tell_of_a_wrong_unit() -> None:
    """A mean at a bound, with a narrow interval and of a number."""
    number = {"kind": "number", "lower": 1.3, "upper": 2.1}
    city = {"kind": "category", "categories": ["Graz", "Linz"]}
    schema = Schema.from_dict(
        {"who": {"kind": "user"}, "a": number, "b": number, "c": number, "city": city}
    )
    settings = Settings(schema=schema, epsilon=1.0, delta=1e-5)
    assert settings.user_column == "who"
    mean = np.array([2.1, 1.35, 1.3, 1.0, 0.0])
    half = np.array([0.01, 0.01, 0.2, 0.0, 0.0])
    fields = {"t": 9, "mean": mean, "mean_low": mean - half, "mean_high": mean + half}
    release = PrivateRelease(9, lambda: fields)
    told = at_bounds(release, schema.encoding())
    assert told.startswith(
        "a is released at its upper bound 2.1: is the range in the schema in the"
    )


def test_fields_beyond_the_header_are_no_fault_if_empty_and_else_one_users_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A user whose first row has too many fields has spent that row, not a later one."""
    monkeypatch.chdir(tmp_path)
    lines = [f"u{i},0.8,0.1" + "," * (i % 3) for i in range(60)]
    lines += ["v,0,8,0.1", "v,0.8,0.1", "w,many,0.1"]
    (tmp_path / "rows.csv").write_text("\n".join(["user,x,y", *lines]) + "\n")
    told = ["--input", "rows.csv", "--user-column=user", "--release-every", "99"]
    assert stream(*told, "--dry-run") == 0
    shown = capsys.readouterr().out
    assert "  rows: 63 of 62 users\n  columns: x (number), y (number)\n" in shown
    because = "1 (more fields than the header), 1 (x: missing or unreadable)"
    assert f"  invalid rows: 2: {because}\n" in shown
    assert stream(*told, "--state-dir", "state", "--output", "out.jsonl") == 0
    assert "62 of 63 rows count." in capsys.readouterr().out
    counts = json.loads((tmp_path / "state/operator.json").read_text())
    assert (counts["zeroed"], counts["beyond_k"]) == (2, 1)
    assert (counts["more fields than the header"], counts["unreadable x"]) == (1, 1)
    assert "unreadable y" not in counts
