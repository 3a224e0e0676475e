"""Run directories that exist: one holder, one key, and the last committed state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.directories import create

from fedmf.errors import ConfigError, LedgerError
from fedmf.ledger.durable_files import save_key
from fedmf.noise.key import NoiseKey
from fedmf.runs.directory import KEY, RunDirectory


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
