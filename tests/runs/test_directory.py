"""New run directories: all or nothing, and what they hold is rendered from one run."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from support.directories import ARRAYS, PLAN, RUN, create, fail, same

import fedmf
from fedmf.errors import ConfigError
from fedmf.ledger import durable_files as files
from fedmf.noise.key import NoiseKey
from fedmf.runs import directory
from fedmf.runs.directory import CONFIG, KEY, LEDGER, RunDirectory, RunHeader, read_header
from fedmf.runs.tables.configuration import load_run


def test_a_new_directory_holds_a_complete_run(tmp_path: Path) -> None:
    key = NoiseKey.from_os()
    place = tmp_path / "deep" / "run"
    with create(place, key) as opened:
        assert {CONFIG, KEY, LEDGER} <= set(os.listdir(opened.path))
        header = RunHeader.of(RUN, PLAN, key, ARRAYS)
        assert opened.key == key
        assert same(opened.header, header)
        assert opened.ledger.participation == RUN.participation
        assert same(read_header(opened.path), header)
        assert opened.ledger.state() is None
    assert os.listdir(tmp_path / "deep") == ["run"]
    with RunDirectory.open(place) as again:
        assert again.key == key
        assert same(again.header, header)
    assert fedmf.recorded_run(place).difference(RUN) is None
    assert load_run(place / CONFIG).difference(RUN) is None


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_the_key_is_readable_by_its_owner_alone(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        create(tmp_path / "run").close()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "run" / KEY).stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) & 0o022 == 0


def snapshot(root: Path) -> dict[str, bytes | None]:
    return {
        str(path): path.read_bytes() if path.is_file() else None for path in sorted(root.rglob("*"))
    }


def test_a_directory_with_anything_in_it_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("years of work")
    before = snapshot(tmp_path)
    with pytest.raises(
        ConfigError, match=r"must be new or empty; it contains other files"
    ) as caught:
        create(tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert snapshot(tmp_path) == before


STEPS = {
    "config": (directory, "write_durably"),
    "ledger": (directory.Ledger, "create"),
    "mode": (files.os, "chmod"),
    "rename": (files.os, "replace"),
    "fsync": (files.os, "fsync"),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_creation_that_fails_half_way_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """In particular no key file: a leftover key could be reused with other data."""
    with monkeypatch.context() as patched:
        patched.setattr(*STEPS[step], fail)
        with pytest.raises(
            ConfigError, match=r"output directory .* cannot be created: No space left"
        ):
            create(tmp_path / "run")
    assert os.listdir(tmp_path) == []
    create(tmp_path / "run").close()


def test_the_new_name_is_made_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose rounds are on disk must not vanish with the entry of its directory."""
    synced: list[tuple[Path, bool]] = []
    place = tmp_path / "run"
    monkeypatch.setattr(
        files, "sync_directory", lambda folder: synced.append((folder, place.exists()))
    )
    create(place).close()
    assert synced[-1] == (tmp_path.resolve(), True)
