"""``fedmf compile``: what it keeps, and that a run then compiles nothing."""

import re
from pathlib import Path

import pytest
from support.command_line import one_line
from support.small_runs import write_config

from fedmf.cli.app import run
from fedmf.compiled import kept_code

SAID = re.compile(r"compiled in \d+ s; kept in (.+)")


def test_programs_are_compiled_once_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(tmp_path / "run.toml")
    files = kept_code()
    assert files is not None
    kept = []
    for _ in range(2):
        assert run(["compile", str(config)]) == 0
        said = SAID.fullmatch(capsys.readouterr().out.strip())
        assert said is not None
        assert said[1] == str(files.folder)
        kept.append({entry.name: entry.stat().st_mtime_ns for entry in files.folder.iterdir()})
    assert kept[0] == kept[1] != {}
    assert list(tmp_path.iterdir()) == [config]


def test_nothing_is_compiled_for_a_cache_that_is_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("FEDMF_CACHE", "off")
    assert run(["compile"]) == 2
    assert "FEDMF_CACHE" in one_line(capsys)
