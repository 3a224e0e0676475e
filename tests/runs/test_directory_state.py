"""Run directories that exist: one holder, one key, and the last committed state."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.directories import create
from support.small_runs import small_run

import fedmf
from fedmf.errors import ConfigError, LedgerError
from fedmf.noise.key import NoiseKey
from fedmf.records.key_file import save_key
from fedmf.runs.directory import DATA_CHANGED, KEY, RunDirectory, opened_record
from fedmf.runs.session import Session


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[RunDirectory]:
    """A new run in ``tmp_path/run``."""
    with create(tmp_path / "run") as directory:
        yield directory


def replace_key(path: Path, key: NoiseKey) -> None:
    (path / KEY).unlink()
    save_key(path / KEY, key)


def test_opening_refuses_another_runs_key_and_frees_the_lock(opened: RunDirectory) -> None:
    """Going on with another key would add noise that does not cancel, at the cost of privacy."""
    key = opened.key
    opened.close()
    replace_key(opened.path, NoiseKey.from_os())
    with pytest.raises(LedgerError, match="authentication code"):
        RunDirectory.open(opened.path)
    replace_key(opened.path, key)
    RunDirectory.open(opened.path).close()


def test_opening_refuses_a_missing_or_damaged_key(opened: RunDirectory) -> None:
    opened.close()
    text = (opened.path / KEY).read_text()
    (opened.path / KEY).write_text(text[:-3])
    with pytest.raises(ValueError, match="Restore it from a copy"):
        RunDirectory.open(opened.path)
    (opened.path / KEY).unlink()
    with pytest.raises(ConfigError, match=r"cannot use noise key .*: No such file"):
        RunDirectory.open(opened.path)


def test_changed_data_are_told_to_the_operator_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A user has more examples when the run goes on: in the secret file and the ledger, on no screen."""
    run = small_run(noise_seed=-1, rounds=3, users=8, cohort_size=2)
    path = tmp_path / "run"

    def one_round(session: Session) -> None:
        total = session.server.new_sum()
        session.server.release(total, [])

    with fedmf.start(run, path) as session:
        one_round(session)
    with fedmf.resume(run, path) as session:
        one_round(session)
    assert (path / "failures.jsonl").read_text() == ""
    with pytest.MonkeyPatch.context() as other:
        sizes = type(session.task.dataset).sizes
        other.setattr(
            type(session.task.dataset), "sizes", lambda self, users: sizes(self, users) + (users == 3)
        )
        capfd.readouterr()
        with fedmf.resume(run, path) as session:
            one_round(session)
    (line,) = (path / "failures.jsonl").read_text().splitlines()
    assert json.loads(line) == {"round": 3, "notice": DATA_CHANGED}
    assert capfd.readouterr() == ("", "")
    assert not caplog.records
    with opened_record(path) as (_, ledger):
        first, second, third = (opening.note["data"] for opening in ledger.openings())
    assert first == second != third
