"""Kept designs and kept machine code, as `simulations/reliability` damages them: some of each."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import fedmf.compiled
from fedmf.kept_files import KeptFiles

FOLDER = Path(__file__).parents[2] / "simulations" / "reliability"
sys.path.insert(0, str(FOLDER))
import cache_faults  # noqa: E402  # pyright: ignore[reportMissingImports]

sys.path.remove(str(FOLDER))
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # fork with idle threads

RACES = {"designs": 10, "machine code": 1}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDMF_CACHE", "")
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")
    return tmp_path / "place"


@pytest.mark.parametrize("fault", cache_faults.FAULTS)
def test_damaged_and_forged_designs_are_found_again(place: Path, fault: str) -> None:
    found = cache_faults.fault_outcomes("designs", fault, place, tries=1)
    assert set(found) <= {"right"}


@pytest.mark.parametrize(
    "fault",
    ["a bit flips", "emptied", "two exchanged", "the folder open to all", "foreign pickles open to all"],
)
def test_damaged_and_foreign_machine_code_is_compiled_again(place: Path, fault: str) -> None:
    assert cache_faults.fault_outcomes("machine code", fault, place, tries=1) == {"right": 1}


@pytest.mark.parametrize("kind", RACES)
def test_processes_that_begin_at_once_and_are_killed(place: Path, kind: str) -> None:
    cache_faults.fault_outcomes(kind, "cut", place, tries=1)
    assert cache_faults.race_outcomes(kind, place, RACES[kind]) == {"right": RACES[kind]}


def test_what_is_not_checked_is_seen(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def believed(files: KeptFiles, name: str) -> bytes | None:
        path = files.folder / name
        return path.read_bytes()[50:] if path.is_file() else None

    monkeypatch.setattr(KeptFiles, "read", believed)
    assert cache_faults.fault_outcomes("designs", "two exchanged", place, tries=1) == {"WRONG": 1}
    monkeypatch.setattr(fedmf.compiled._KeptCode, "_describes", lambda *_: True)
    found = cache_faults.fault_outcomes("machine code", "two exchanged", place, tries=4)
    assert found["right"] < 4
