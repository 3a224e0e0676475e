"""A row that cannot be read changes its own contribution, and nothing else that leaves."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedmf.cli.app import run

N, BAD = 12, 5
BUDGET = ["--norm-bound", "1", "--epsilon", "8", "--delta", "1e-5", "--seed", "3", "--workload", "prefix"]


def rows() -> np.ndarray:
    return np.random.default_rng(0).uniform(-0.4, 0.4, size=(N, 2))


def streamed(
    folder: Path, capfd: pytest.CaptureFixture[str], line: str, *options: str
) -> tuple[int, str, str, list[dict]]:
    """(exit code, standard output, standard error, releases) of a stream with one line in place of a row."""
    folder.mkdir()
    lines = ["user,x,y", *(f"u{i},{a!r},{b!r}" for i, (a, b) in enumerate(rows().tolist()))]
    lines[1 + BAD] = line
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    capfd.readouterr()
    code = run(
        [
            "stream",
            *BUDGET,
            "--input",
            str(folder / "rows.csv"),
            "--user-column",
            "user",
            "--columns",
            "x,y",
            *options,
        ]
    )
    shown = capfd.readouterr()
    out = shown.out.splitlines()
    if "--output" not in options:
        return code, "", shown.err, [json.loads(text) for text in out]
    return code, shown.out, shown.err, []


BAD_LINES = {
    "text": "u5,0.1,secret",
    "nan": "u5,nan,0.1",
    "infinite": "u5,0.1,inf",
    "short": "u5,0.1",
    "empty": "u5,,",
    "long": "u5,30,40",
}


@pytest.mark.parametrize("bad", BAD_LINES)
def test_a_bad_value_shows_in_that_rows_contribution_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], bad: str
) -> None:
    x = rows()[BAD]
    options = ("--on-long", "refuse")
    good = streamed(tmp_path / "good", capfd, f"u5,{float(x[0])!r},{float(x[1])!r}", *options)
    zero = streamed(tmp_path / "zero", capfd, "u5,0,0", *options)
    found = streamed(tmp_path / "bad", capfd, BAD_LINES[bad], *options)
    assert found == zero  # screen, exit code and releases, bit for bit
    assert found[:3] == good[:3]
    assert found[0] == 0
    assert len(found[3]) == len(good[3]) == N
    for t, (with_row, without) in enumerate(zip(good[3], found[3], strict=True)):
        expected = x if t >= BAD else np.zeros(2)
        np.testing.assert_allclose(np.subtract(with_row["first"], without["first"]), expected, atol=1e-12)
        shift = np.subtract(with_row["second"], without["second"])
        np.testing.assert_allclose(shift, np.outer(expected, expected), atol=1e-12)


def test_what_is_kept_and_printed_beside_the_output_does_not_tell(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With a state and an output file: the same screen and statement; the count is the operator's."""
    shown = {}
    for name, line in (("good", "u5,0.1,0.2"), ("bad", "u5,0.1,secret")):
        place = tmp_path / name
        command = ("--state", str(place / "state"), "--output", str(place / "out.jsonl"))
        shown[name] = streamed(place, capfd, line, *command)
    assert shown["good"] == shown["bad"]
    for suffix in ("json", "txt"):
        texts = {(tmp_path / name / f"state/statement.{suffix}").read_bytes() for name in shown}
        assert len(texts) == 1
    counts = [json.loads((tmp_path / name / "state/operator.json").read_text()) for name in ("good", "bad")]
    assert [entry["zeroed"] for entry in counts] == [0, 1]


def test_stopping_at_a_bad_row_is_said_for_ever(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Also where nothing was read yet, where it did not stop, and by later processes without the option."""
    for name, line in (("first", "u5,0.1,secret"), ("none", "u5,0.1,0.2")):
        place = tmp_path / name
        command = ("--state", str(place / "state"), "--output", str(place / "out.jsonl"))
        code, *_ = streamed(place, capfd, line, *command, "--stop-at-bad-row")
        assert code == (2 if name == "first" else 0)
        again = ["stream", *BUDGET, "--input", str(place / "rows.csv"), "--user-column", "user", *command]
        again += ["--columns", "x,y"]
        assert run(again) == 0
        statement = json.loads((place / "state/statement.json").read_text())
        assert "--stop-at-bad-row" in statement["not_covered"][0]
    place = tmp_path / "never"
    command = ("--state", str(place / "state"), "--output", str(place / "out.jsonl"))
    assert streamed(place, capfd, "u5,0.1,secret", *command)[0] == 0
    text = (place / "state/statement.json").read_text()
    assert "--stop-at-bad-row" not in text
