"""Files say by their endings how rows and releases are written; what an ending does not say is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmf.cli.app import run
from fedmf.cli.stream import InputFormat, OutputFormat
from fedmf.streaming.outputs import SHAPES, output_name, shape_of
from fedmf.streaming.rows import FORMATS

STREAM = ["stream", "--input", "rows.csv", "--norm-bound", "1", "--epsilon", "8", "--delta", "1e-5"]


@pytest.fixture(autouse=True)
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("x\n0.5\n0.25\n")


def test_the_command_offers_every_format_there_is() -> None:
    """It lists them by itself, so that help and completion load nothing heavy."""
    assert [one.value for one in InputFormat] == list(FORMATS)
    assert [one.value for one in OutputFormat] == list(SHAPES)


def test_no_ending_means_two_formats() -> None:
    endings = [ending for of in FORMATS.values() for ending in of]
    assert len(set(endings)) == len(endings)


@pytest.mark.parametrize("name", ["x.tsv", "x.txt", "x.csv.gz", "out.2024"])
def test_an_ending_that_says_nothing_is_refused_before_anything_is_there(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*STREAM, "--each-row-a-user", "--output", name, "--state", "state"]) == 2
    assert capsys.readouterr().err == (
        "fedmf: output (file) must end in .csv, .jsonl, .ndjson, .json, .parquet, .pq, or in nothing for "
        f"JSON lines; got {name!r}. Or say its format: --format json, tidy or wide.\n"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.csv"]


def test_with_a_format_said_any_name_will_do(tmp_path: Path) -> None:
    assert run([*STREAM, "--each-row-a-user", "--output", "x.tsv", "--format", "tidy"]) == 0
    assert (tmp_path / "x.tsv").read_text().startswith("t,quantity,column,")


def test_a_stream_that_wrote_lines_elsewhere_goes_on() -> None:
    """As earlier versions began it, under any ending; another file is not that one."""
    path = Path("x.tsv")
    assert shape_of(path, output_name(path)) == "json"
    assert shape_of(path, output_name(path, density=True)) == "json"
    with pytest.raises(ValueError, match="must end in"):
        shape_of(path, output_name(Path("y.tsv")))
    names = ("x.csv", "x.CSV", "x.jsonl", "x.parquet", "x")
    assert [shape_of(Path(name), "") for name in names] == ["wide", "wide", "json", "json", "json"]
