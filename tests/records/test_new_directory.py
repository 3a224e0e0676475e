"""Directories that are made whole or not at all, also where their maker is killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedmf.errors import ConfigError, LedgerError
from fedmf.records.new_places import create_directory, scratch_directory

BUILDER = """
import sys, time
from pathlib import Path
from fedmf.records import create_directory
def fill(folder):
    (folder / "part").write_text("half")
    print("building", flush=True)
    time.sleep(600)
create_directory(Path(sys.argv[1]), "output directory", fill)
"""


def content(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def fill(folder: Path) -> None:
    (folder / "file").write_text("whole")


@pytest.mark.parametrize("name", ["run", "run[1]", "*"])
def test_what_a_killed_maker_left_is_removed_and_a_living_one_is_not_disturbed(
    tmp_path: Path, name: str
) -> None:
    place = tmp_path / name
    (tmp_path / ".mine.unfinished").mkdir()
    child = subprocess.Popen([sys.executable, "-c", BUILDER, place], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "building\n"
    create_directory(place, "output directory", fill)
    (building,) = [entry for entry in content(tmp_path) if entry.startswith(f".{name}.")]
    assert content(tmp_path / building) == ["part"]
    child.kill()
    child.wait()
    child.stdout.close()
    create_directory(tmp_path / "later", "output directory", fill, mode=0o750)  # by another name
    assert content(tmp_path) == sorted([".mine.unfinished", name, "later"])
    assert content(place) == ["file"]
    assert (place.stat().st_mode & 0o777, (tmp_path / "later").stat().st_mode & 0o777) == (0o700, 0o750)


def test_what_a_killed_process_kept_for_itself_goes_with_the_next(tmp_path: Path) -> None:
    """A stream without a state directory keeps its key in one."""
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom fedmf.records import scratch_directory\n"
        "with scratch_directory(Path(sys.argv[1]), 'mine') as folder:\n"
        "    (folder / 'key').touch()\n    print(folder.name, flush=True)\n    time.sleep(600)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script, tmp_path], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    theirs = child.stdout.readline().strip()
    with scratch_directory(tmp_path, "mine") as folder:
        assert content(tmp_path) == sorted([theirs, folder.name])
        assert folder.stat().st_mode & 0o777 == 0o700
    child.kill()
    child.wait()
    child.stdout.close()
    assert content(tmp_path) == [theirs]
    with scratch_directory(tmp_path, "other") as folder:
        assert content(tmp_path) == [folder.name]
    assert content(tmp_path) == []


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), LedgerError("no"), KeyError("x")])
def test_a_failure_leaves_nothing(tmp_path: Path, error: Exception) -> None:
    def fail(folder: Path) -> None:
        (folder / "file").touch()
        raise error

    expected = ConfigError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected) as caught:
        create_directory(tmp_path / "deep" / "run", "output directory", fail)
    if isinstance(error, OSError):
        assert str(caught.value) == (
            f"output directory {tmp_path}/deep/run cannot be created: No space left on device."
        )
    assert content(tmp_path / "deep") == []


def test_a_place_that_is_taken_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    create_directory(tmp_path / "empty", "output directory", fill)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("empty", "file", "link"):
        with pytest.raises(LedgerError, match="must be new or empty; it holds something else") as caught:
            create_directory(tmp_path / name, "state directory", fill, error=LedgerError)
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be created: File exists"):
        create_directory(tmp_path / "file" / "run", "output directory", fill)
    assert content(tmp_path) == ["empty", "file", "link"]
