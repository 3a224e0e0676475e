"""Records of earlier releases are read, accounted for and, where their meaning did not change, gone on with.

The samples were made by `make.py` with the code whose format of run headers their folder names; see there.
"""

from __future__ import annotations

import json
import math
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedmf.cli.app import run as command
from fedmf.runs import StatementRefused
from fedmf.runs.publication.verification import recompute
from fedmf.statements import in_todays_words

HERE = Path(__file__).parent
SAMPLES = sorted(HERE.glob("*/*.tar.xz"))
RUNS = [path for path in SAMPLES if not path.name.startswith(("stream-", "sweep", "wrapper"))]
#: Signed statements as fedmf account --publish wrote them, with sentences that are written otherwise today.
PUBLISHED = sorted(HERE.glob("published/*.json"))
STREAMS = [path for path in SAMPLES if path.name.startswith("stream-")]
WRAPPED = [path for path in SAMPLES if path.name.startswith("wrapper")]
SWEEPS = [path for path in SAMPLES if path.name.startswith("sweep")]
#: Figures of a statement come from float64 formulas and searches with this tolerance.
CLOSE = 1e-6
#: Released models: processors differ in the last bits of float32 training, which noise of fixed size hides.
MODEL = 1e-4

#: What of a statement is sentences.
_SENTENCES = ("assumptions", "not_covered", "secret")


def name_of(path: Path) -> str:
    return f"{path.parent.name}-{path.name.removesuffix('.tar.xz')}"


def unpacked(sample: Path, into: Path) -> tuple[Path, dict[str, Any]]:
    """The directory, and what was noted of it."""
    folder = into / "sample"
    with tarfile.open(sample) as archive:
        archive.extractall(folder, filter="data")
    noted = sample.with_name(sample.name.replace(".tar.xz", ".json"))
    return folder, json.loads(noted.read_text()) if noted.exists() else {}


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What the command prints; it succeeds."""
    capsys.readouterr()
    status = command(list(arguments))
    captured = capsys.readouterr()
    assert status == 0, captured.err
    return captured.out


def differences(noted: object, now: object, place: str = "") -> Iterator[str]:
    """Where a statement of today says something else than was noted; it may say more."""
    if isinstance(noted, dict) and isinstance(now, dict):
        for key, value in noted.items():
            if key not in now:
                yield f"{place}.{key} is gone"
            else:
                yield from differences(value, now[key], f"{place}.{key}")
    elif isinstance(noted, list) and isinstance(now, list) and len(noted) == len(now):
        for i, (one, other) in enumerate(zip(noted, now, strict=True)):
            yield from differences(one, other, f"{place}[{i}]")
    elif isinstance(noted, float) and isinstance(now, float | int):
        if not math.isclose(noted, now, rel_tol=CLOSE, abs_tol=1e-12):
            yield f"{place}: {noted} became {now}"
    elif noted != now:
        yield f"{place}: {noted!r} became {now!r}"


#: Sentences, and what the machine measured: their words may improve.
_FREE = (
    "not_covered",
    "assumptions",
    "secret",
    "trust",
    "stated_by",
    "seconds",
    "software",
    "notes",
    "caveats",
)


def figures(statement: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in statement.items() if key not in _FREE}


def test_there_are_samples_of_every_kind_of_run() -> None:
    assert len(RUNS) >= 19
    assert len(STREAMS) >= 7


@pytest.mark.parametrize("sample", [*RUNS, *WRAPPED, *STREAMS], ids=name_of)
def test_a_sample_says_what_it_said(sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, noted = unpacked(sample, tmp_path)
    now = json.loads(output(capsys, "account", str(folder), "--json"))
    assert list(differences(figures(noted["stopped"]), now)) == []


@pytest.mark.parametrize("sample", RUNS, ids=name_of)
def test_a_sample_goes_on_to_the_end_it_had(
    sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, noted = unpacked(sample, tmp_path)
    output(capsys, "simulate", "--resume", str(folder))
    now = json.loads(output(capsys, "account", str(folder), "--json"))
    assert list(differences(figures(noted["ended"]), now)) == []
    if "model" in noted:
        from safetensors.numpy import load_file

        output(capsys, "export", str(folder), "--output", str(tmp_path / "model.safetensors"))
        arrays = load_file(tmp_path / "model.safetensors")
        flat = [float(x) for key in sorted(arrays) for x in arrays[key].reshape(-1)]
        assert flat == pytest.approx(noted["model"], abs=MODEL)


@pytest.mark.parametrize("name", ["secret-key", "b-min-sep", "private-evaluation"])
def test_records_of_0_1_are_published_verified_and_exported(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They hold no commitment to the noise key; all else is checked as in a run of today."""
    monkeypatch.setenv(
        "XDG_STATE_HOME", str(tmp_path / "state")
    )  # another machine: it knows of no later round
    folder, noted = unpacked(HERE / "header-6" / f"{name}.tar.xz", tmp_path)
    assert noted["stopped"]["software"] == "fedmf 0.1.0"
    output(capsys, "account", str(folder), "--publish", str(tmp_path / "public"))
    printed = output(capsys, "verify", str(tmp_path / "public" / "statement.json"), "--run", str(folder))
    assert "every figure and sentence" in printed
    assert "parameters in" in output(
        capsys, "export", str(folder), "--output", str(tmp_path / "m.safetensors")
    )


@pytest.mark.parametrize("sample", STREAMS, ids=name_of)
def test_a_stream_goes_on_to_the_end_it_had(
    sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, noted = unpacked(sample, tmp_path)
    rows = tmp_path / "rows.csv"
    rows.write_text("\n".join(noted["input"]) + "\n")
    printed = output(capsys, "stream", "--input", str(rows), "--state", str(folder), *noted["options"])
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    before = [json.loads(line) for line in noted["second"].splitlines() if line.startswith("{")]
    assert list(differences(before, lines)) == []
    now = json.loads(output(capsys, "account", str(folder), "--json"))
    assert list(differences(figures(noted["ended"]), now)) == []


@pytest.mark.parametrize("sample", SWEEPS, ids=name_of)
def test_a_finished_sweep_goes_on_without_a_run(
    sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, noted = unpacked(sample, tmp_path)
    for name, text in noted["files"].items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedmf.runs.session.Session.start", lambda *_, **__: pytest.fail("a run was made"))
    table = (folder / noted["table"]).read_text()
    output(capsys, "sweep", "sweep.toml", "--out", str(folder))
    assert (folder / noted["table"]).read_text() == table


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_a_published_statement_is_verified_with_the_words_it_has(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = output(capsys, "verify", str(path), "--signed-by", str(path.with_name("operator.pub")))
    assert "signed with the operator's key" in printed
    assert "every figure and sentence" in printed


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_a_sentence_that_no_version_wrote_is_refused(path: Path) -> None:
    document = json.loads(path.read_text())
    for name in ("assumptions", "not_covered", "secret"):
        for place, sentence in enumerate(document[name]):
            changed = [*document[name][:place], f"{sentence} at all", *document[name][place + 1 :]]
            with pytest.raises(StatementRefused, match="contradicts itself"):
                recompute({**document, name: changed})


def test_every_kind_of_sentence_was_published() -> None:
    """But for those of a run that goes on from a backup or shows what is not private."""
    documents = [json.loads(path.read_text()) for path in PUBLISHED]
    assert len(documents) == 4
    written = {text for document in documents for name in _SENTENCES for text in document[name]}
    today = {
        text for document in documents for name in _SENTENCES for text in in_todays_words(document)[name]
    }
    assert len(written - today) >= 15
    assert len(written) == len(today)
