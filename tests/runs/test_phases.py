"""Where the time of rounds went: written by every process of a run, for the operator alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.small_runs import small_run

import fedmf
from fedmf.runs import PHASES, Standing, read_phases


class _Stop(Exception):
    pass


def _stop(standing: Standing) -> None:
    if standing.rounds == 3 and not standing.opening:
        raise _Stop


def test_every_round_of_both_processes_has_its_times(tmp_path: Path) -> None:
    run, path = small_run(), tmp_path / "run"
    with pytest.raises(Exception, match="observer"):
        fedmf.simulate(run, path, observers=[_stop])
    rounds = max(fedmf.simulate(run, path).metrics)
    phases = read_phases(path)
    assert sorted(phases) == [*range(rounds + 1)]
    for t in range(1, rounds + 1):
        assert {"clients", "noise and step", "commit"} <= phases[t].keys() <= PHASES.keys()
        assert all(0 < phases[t][name] < 600 for name in ("clients", "noise and step", "commit"))
    assert phases[0].keys() == {"evaluation"}
    file = path / "phases.parquet"
    assert file.stat().st_mode & 0o077 == 0
    content = file.read_bytes()
    for broken in (b"", b"PAR1 and more", content[: len(content) // 2]):
        file.write_bytes(broken)
        assert read_phases(path) == {}
