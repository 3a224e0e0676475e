"""Where the time of rounds went: written by every process of a run, shown to the operator alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.small_runs import small_run

import fedmf
from fedmf.report import read_run, render_report
from fedmf.runs import PHASES, Standing


class _Stop(Exception):
    pass


def _stop(standing: Standing) -> None:
    if standing.rounds == 3 and not standing.opening:
        raise _Stop


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run that two processes made."""
    path = tmp_path_factory.mktemp("phases") / "run"
    run = small_run()
    with pytest.raises(Exception, match="observer"):
        fedmf.simulate(run, path, observers=[_stop])
    fedmf.simulate(run, path)
    return path


def test_every_round_of_both_processes_has_its_times(path: Path) -> None:
    phases = read_run(path).phases
    rounds = read_run(path).statement.recorded.rounds
    assert sorted(phases) == [*range(rounds + 1)]
    for t in range(1, rounds + 1):
        assert {"clients", "noise and step", "commit"} <= phases[t].keys() <= PHASES.keys()
        assert all(0 < phases[t][name] < 600 for name in ("clients", "noise and step", "commit"))
    assert phases[0].keys() == {"evaluation"}


def test_the_file_is_the_operators(path: Path) -> None:
    assert (path / "phases.parquet").stat().st_mode & 0o077 == 0
    assert "Seconds spent: commit" in render_report([read_run(path)])
    assert "Seconds spent" not in render_report([read_run(path)], public=True)


def test_a_file_that_cannot_be_read_is_no_file(path: Path) -> None:
    file = path / "phases.parquet"
    content = file.read_bytes()
    try:
        for broken in (b"", b"PAR1 and more", content[: len(content) // 2]):
            file.write_bytes(broken)
            assert read_run(path).phases == {}
            assert "Seconds spent" not in render_report([read_run(path)])
    finally:
        file.write_bytes(content)
