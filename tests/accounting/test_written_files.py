"""`fedmf account` rejects a directory in which a file and the ledger disagree."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from guarantees.small import random_rows, run_of
from support.streams import run_once, sample, write_rows

import fedmf
from fedmf.cli.app import run as command
from fedmf.errors import LedgerError
from fedmf.ledger.ledger import INLINE, Ledger
from fedmf.ledger.released_integers import FOLDER, INTEGERS, PLAN
from fedmf.noise.key import NoiseKey
from fedmf.participation import Participation
from fedmf.runs.run_statement import account
from fedmf.runs.simulation import run_in_process
from fedmf.statements.written_files import check_contents
from fedmf.streaming import Settings

STATEMENTS = ("statement.json", "statement.txt")


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Directories of a run and a stream, and the statement of the run after four rounds."""
    place = tmp_path_factory.mktemp("honest")
    run = run_of(random_rows(5), execution=fedmf.Execution(keep_releases=True))
    run_up_to_round_4(run, place / "run")
    (place / "earlier").mkdir()
    for name in STATEMENTS:
        shutil.copy(place / "run" / name, place / "earlier")
    with fedmf.resume(run, place / "run") as session:
        run_in_process(session)
    stream = place / "stream"
    stream.mkdir()
    rows = write_rows(stream / "rows.csv", sample(), [f"u{i % 10}" for i in range(30)])
    settings = Settings(
        clip_norm=1.0,
        epsilon=8.0,
        delta=1e-5,
        keep_releases=True,
        user_column="user",
        max_participations=3,
    )
    run_once(stream, settings, rows, raw=True)
    return {"run": place / "run", "stream": stream / "state", "earlier": place / "earlier"}


def run_up_to_round_4(run: fedmf.Run, path: Path) -> None:
    with fedmf.start(run, path) as session:
        assert run_in_process(session, lambda *_: session.server.t == 4)


def edited(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        text = (directory / name).read_text()
        assert old in text
        (directory / name).write_text(text.replace(old, new, 1))

    return change


def with_value(name: str, value: Any) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        file = directory / "statement.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), name: value}))

    return change


def of_earlier_rounds(directory: Path) -> None:
    """A statement of fewer rounds with another ε."""
    with_value("rounds_released", 3)(directory)
    with_value("epsilon", 4.0)(directory)


def other_bit(name: str) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        content = bytearray((directory / FOLDER / name).read_bytes())
        content[3] ^= 1
        (directory / FOLDER / name).write_bytes(content)

    return change


def shorter(directory: Path) -> None:
    """The file lacks the last two releases; one may be missing for a moment."""
    file = directory / FOLDER / INTEGERS
    file.write_bytes(file.read_bytes()[: -2 * 5 * 8])


def ledger_with(query: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    """A value in the ledger that no participation depends on is another one.

    Args:
        query: table and column.
        change: of the value.
    """

    def edit(directory: Path) -> None:
        table, column = query.split(".")
        [file] = directory.glob("*.sqlite")
        with contextlib.closing(sqlite3.connect(file)) as ledger, ledger:
            (row, value) = ledger.execute(
                f"SELECT rowid, {column} FROM {table} WHERE length({column}) > 0"
            ).fetchone()
            ledger.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (change(value), row))

    return edit


def last_bit(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


EDITS: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "epsilon": ("run", with_value("epsilon", 4.0), "epsilon in {}/statement.json must be 7.99"),
    "unknown key": ("run", with_value("epsilon_total", 4.0), "epsilon_total in {}"),
    "rounds": ("run", with_value("rounds_released", 13), "rounds_released in {}"),
    "epsilon of fewer rounds": (
        "run",
        of_earlier_rounds,
        "epsilon in {}/statement.json must be 7.99",
    ),
    "statement that is none": (
        "run",
        lambda path: (path / "statement.json").write_text("[1]"),
        "{}/statement.json must be as fedmf wrote it",
    ),
    "text": ("run", edited("statement.txt", "epsilon", "ε"), "{}/statement.txt must say the same"),
    "configuration": (
        "run",
        edited("config.toml", "epsilon = 8.0", "epsilon = 4.0"),
        "privacy.epsilon in {}/config.toml must be 8.0, as the ledger says; got 4.0",
    ),
    "integers": (
        "run",
        other_bit(INTEGERS),
        f"{{}}/{FOLDER}/{INTEGERS} must be as it was released",
    ),
    "missing integers": ("run", shorter, f"{{}}/{FOLDER}/{INTEGERS} must be as it was released"),
    "plan": ("run", other_bit(PLAN), f"{{}}/{FOLDER}/{PLAN} must be as it was released"),
    "no plan": ("run", lambda path: (path / FOLDER / PLAN).unlink(), f"{PLAN} is missing"),
    "no folder": ("run", lambda path: shutil.rmtree(path / FOLDER), f"{PLAN} is missing"),
    "stream": ("stream", with_value("delta", 1e-6), "delta in {}/statement.json must be 1e-05"),
    "model": ("run", ledger_with("state.content", last_bit), "differs from its SHA-256"),
    "metrics": ("run", ledger_with("metrics.json", lambda text: text + " "), "metrics of round"),
    "release of a stream": (
        "stream",
        ledger_with("commits.content", last_bit),
        "differs from its SHA-256",
    ),
    "integers of a stream": ("stream", other_bit(INTEGERS), f"{{}}/{FOLDER}/{INTEGERS} must be as"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_file_is_named(
    edit: str, honest: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, change, message = EDITS[edit]
    directory = tmp_path / "copy"
    shutil.copytree(honest[kind], directory)
    assert command(["account", str(directory)]) == 0
    capsys.readouterr()
    change(directory)
    assert command(["account", str(directory)]) == 3
    said = capsys.readouterr().err
    assert message.format(directory) in said
    assert said.count("\n") == 1


def test_other_files_among_the_released_are_named(
    honest: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(honest["run"], tmp_path / "run")
    account(tmp_path / "run")
    assert not caplog.records
    (tmp_path / "run" / FOLDER / "exact.bin").write_bytes(b"sums")
    account(tmp_path / "run")
    assert "it also holds exact.bin" in caplog.text


def test_a_state_that_a_writer_replaces_meanwhile_is_accepted(tmp_path: Path) -> None:
    """The files of two large states are used by turns, and a reader has the older row."""
    path = tmp_path / "ledger.sqlite"
    key = NoiseKey.from_seed(1)
    Ledger.create(path, Participation(9, 1, 1), {}, key)
    with Ledger.open(path, key) as writer:
        writer.opening()
        writer.commit_round(0, ["a"], bytes(INLINE + 1))
        with Ledger.open(path, key, read_only=True) as reader:
            for t in (1, 2):
                writer.commit_round(t, [f"u{t}"], bytes([t]) * (INLINE + 1))
            with pytest.raises(LedgerError, match="differs from its SHA-256"):
                reader.state()
            check_contents(reader)


def test_every_directory_of_several_is_checked(
    honest: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(honest["stream"], tmp_path / "copy")
    assert command(["account", str(tmp_path / "copy"), str(honest["run"])]) == 0
    with_value("epsilon", 4.0)(tmp_path / "copy")
    assert command(["account", str(honest["run"]), str(tmp_path / "copy")]) == 3
    assert "epsilon in" in capsys.readouterr().err


def test_reports_that_are_missing_or_older_are_accepted(
    honest: dict[str, Path], tmp_path: Path
) -> None:
    """So are integers of the last commit that another process is writing just now."""
    directory = tmp_path / "copy"
    shutil.copytree(honest["run"], directory)
    file = directory / FOLDER / INTEGERS
    content = file.read_bytes()
    file.write_bytes(content[:-8])
    account(directory)
    file.write_bytes(content + np.arange(5).tobytes())
    account(directory)
    for name in STATEMENTS:
        shutil.copy(honest["earlier"] / name, directory)
    assert json.loads((directory / "statement.json").read_text())["rounds_released"] == 4
    account(directory)
    for name in (*STATEMENTS, "config.toml"):
        (directory / name).unlink()
    account(directory)


def test_a_run_continues_only_with_the_integers_that_it_released(tmp_path: Path) -> None:
    run = run_of(random_rows(5), execution=fedmf.Execution(keep_releases=True))
    run_up_to_round_4(run, tmp_path / "run")
    other_bit(INTEGERS)(tmp_path / "run")
    with pytest.raises(LedgerError, match="must be as they were released"):
        fedmf.resume(run, tmp_path / "run")
