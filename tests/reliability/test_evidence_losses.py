"""What is lost of a copy of records is told by every reader, and nothing is signed then."""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
from pathlib import Path

import pytest
from support.command_line import one_line

from fedmf.accounting import WHOLE
from fedmf.cli.app import run as command
from fedmf.noise import NoiseKey
from fedmf.records import SCHEMA, Guard, Seal, load_key
from fedmf.runs import Session, account

FOLDER = Path(__file__).resolve().parents[2] / "simulations" / "reliability"
sys.path.insert(0, str(FOLDER))
import evidence_losses as losses  # noqa: E402  # pyright: ignore[reportMissingImports]
import forged_records  # noqa: E402  # pyright: ignore[reportMissingImports]

sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> losses.Made:
    """A run of 8 rounds, kept at several moments."""
    folder = tmp_path_factory.mktemp("losses")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_STATE_HOME", str(folder / "state"))
        return losses.make(folder)


@pytest.fixture(autouse=True)
def state(made: losses.Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(made.folder / "state"))


@pytest.fixture
def copy(made: losses.Made, tmp_path: Path) -> Path:
    """Of the directory whose first process had released 4 rounds, without the files of its tail."""
    path = Path(shutil.copytree(made.source("living"), tmp_path / "copy"))
    for file in path.glob("*-tail-*"):
        file.unlink()
    return path


@pytest.mark.parametrize("name", ["--json", "--sign-with", "report --publish"])
def test_no_loss_is_silent_or_signed(made: losses.Made, name: str) -> None:
    """The table of `evidence_losses.py` for the readers that matter most."""
    found = [*losses.cells(made, commands=[name])]
    assert [cell for cell in found if cell.silent] == []
    assert [cell for cell in found if cell.signed] == []
    told = {(cell.loss.name, cell.loss.moment, cell.remembered): cell.verdict for cell in found}
    assert told["nothing", "closed", True] == told["nothing", "closed", False] == ""
    assert told["copied without tail", "living", True] == "behind"
    assert told["copied without tail", "living", False] == "tail missing"
    assert told["copied without tail", "again", False] == "tail missing"
    assert told["evaluations' tail", "living", False] == "tail missing"
    assert told["last frame cut", "living", True] == "behind"
    assert told["rows and metrics cut", "closed", False] in ("last state missing", "tail missing")
    assert told["key", "closed", False] == "unauthenticated"
    assert told["backup restored", "stopped", True] == "behind"
    assert told["backup restored", "stopped", False] == ""  # a whole earlier directory: nobody there can know


def test_every_reader_tells_a_lost_tail(made: losses.Made) -> None:
    found = [*losses.cells(made, only=["evaluations' tail"])]
    assert {cell.command for cell in found} == {*losses.COMMANDS, "load_model", "resume"}
    assert [cell for cell in found if cell.silent or cell.signed] == []
    assert {cell.verdict for cell in found if not cell.remembered} == {"tail missing"}


def test_the_verdict_stands_on_top_and_in_the_json(
    copy: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    page = tmp_path / "page.html"
    assert command(["account", str(copy), "--html", str(page)]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("Record: TAIL MISSING: ledger.sqlite knows of files ledger.sqlite-tail-*")
    assert "tail missing" in shown.err
    assert '<p class="verdict">Record: TAIL MISSING' in page.read_text()
    assert command(["account", str(copy), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["records"]["verdict"] == "tail missing"
    assert set(said["records"]["faults"]) == {"tail missing"}
    assert command(["account", str(copy), "--publish", str(tmp_path / "public")]) == 2
    assert "cannot be published or signed: its record is not whole, tail missing" in one_line(capsys)
    assert not (tmp_path / "public").exists()


def test_without_its_key_a_backup_is_told_by_its_number_of_rounds(
    made: losses.Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(shutil.copytree(made.source("stopped"), tmp_path / "copy"))
    (path / "noise.key").unlink()
    assert command(["account", str(path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["records"]
    assert said["verdict"] == "behind what this machine knows"
    assert "8 rounds of this run were released on this machine, of which it holds 4" in str(said)
    assert "unauthenticated" in said["faults"]


def test_a_reader_leaves_the_guard_as_it_is_and_holds_it_from_nobody(made: losses.Made) -> None:
    path = made.folder / "run"
    folder = made.folder / "state" / "fedmf" / "guards"
    before = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.iterdir()}
    key = load_key(path / "noise.key")
    with Guard.open(key):  # as whoever goes on with the run holds it
        verdict = account(path).verdict
    assert verdict is not None
    assert str(verdict) == WHOLE
    Guard.look(NoiseKey.from_os().fingerprint, None)
    assert {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.iterdir()} == before


def test_records_of_before_openings_named_a_file_are_read_and_gone_on_with(
    made: losses.Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of then that ended before its first round left an opening and no file: it may go on."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    whole = Path(shutil.copytree(made.source("closed"), tmp_path / "whole"))
    _as_before(whole)
    assert account(whole).to_dict()["records"]["verdict"] == WHOLE
    begun = Path(shutil.copytree(made.source("before"), tmp_path / "begun"))
    with Session.resume(begun) as session:
        session.directory.ledger.opening()
    _as_before(begun)
    for file in begun.glob("*-tail-*"):
        file.unlink()
    assert account(begun).to_dict()["records"]["verdict"] == "tail missing"  # it may be so: nothing is signed
    Session.resume(begun).__exit__()


def _as_before(path: Path) -> None:
    """Openings without the number of a file, the chain computed again."""
    own = Seal.of(forged_records.LEDGER, load_key(path / "noise.key"))
    for name in ("ledger.sqlite", "evaluation.sqlite"):
        connection = sqlite3.connect(path / name)
        triggers = [line for line in SCHEMA if line.startswith("CREATE TRIGGER")]
        for trigger in triggers:
            connection.execute("DROP TRIGGER " + trigger.split()[2])
        for number, note in connection.execute("SELECT number, note FROM openings").fetchall():
            old = json.dumps({name: value for name, value in json.loads(note).items() if name != "tail"})
            connection.execute("UPDATE openings SET note = ? WHERE number = ?", (old, number))
        for trigger in triggers:
            connection.execute(trigger)
        connection.commit()
        connection.close()
        forged_records.forge_ledger(path / name, lambda text: text, own)
