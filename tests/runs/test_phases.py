"""Where the time of rounds went: written by every process of a run, for the operator alone."""

from __future__ import annotations

from pathlib import Path

from support.small_runs import small_run

import fedmf
from fedmf.runs import PHASES, read_phases


def test_every_round_of_both_processes_has_its_times(tmp_path: Path) -> None:
    run, path = small_run(), tmp_path / "run"
    fedmf.simulate(run, path, on_round=lambda record: record.rounds == 3)
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
