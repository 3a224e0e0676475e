"""Run directories: all or nothing, one holder, one key, and the last committed state."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fedmf.errors import ConfigError, LedgerError, ParticipationViolation
from fedmf.noise.key import NoiseKey
from fedmf.records import durable
from fedmf.records.ledger import Ledger
from fedmf.runs import directory
from fedmf.runs.config import Config
from fedmf.runs.directory import CHECKPOINTS, CONFIG, KEY, LEDGER, RunDirectory, read_config

CONFIGURATION = Config.from_mapping({"users": 4, "cohort-size": 2, "rounds": 6, "epsilon": 3})


def create(path: Path, key: NoiseKey | None = None, **header: Any) -> RunDirectory:
    key = key or NoiseKey.from_os()
    header = {"key_fingerprint": key.fingerprint, **header}
    return RunDirectory.create(path, CONFIGURATION, CONFIGURATION.participation, key, header)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDirectory]:
    """A new run in ``tmp_path/run``."""
    with create(tmp_path / "run") as opened:
        yield opened


def commit(run: RunDirectory, t: int, value: float) -> None:
    users = [f"u{(2 * t) % 4}", f"u{(2 * t + 1) % 4}"]
    run.commit(t, users, torch.full((3,), value), {"velocity": torch.full((3,), -value)}, {"t": t + 1})


def test_a_new_directory_holds_a_complete_run(tmp_path: Path) -> None:
    key = NoiseKey.from_os()
    with create(tmp_path / "deep" / "run", key) as run:
        assert {CONFIG, KEY, LEDGER, CHECKPOINTS} <= set(os.listdir(run.path))
        assert (run.config, run.key) == (CONFIGURATION, key)
        assert run.ledger.participation == CONFIGURATION.participation
        assert read_config(run.path) == CONFIGURATION
        assert run.restore() is None
    assert os.listdir(tmp_path / "deep") == ["run"]
    with RunDirectory.open(tmp_path / "deep" / "run") as again:
        assert (again.config, again.key) == (CONFIGURATION, key)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_the_key_is_readable_by_its_owner_alone(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        create(tmp_path / "run").close()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "run" / KEY).stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) & 0o022 == 0


def test_an_empty_directory_may_be_used(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    create(tmp_path / "run").close()
    assert read_config(tmp_path / "run") == CONFIGURATION


def test_a_relative_place_is_where_it_was_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with create(Path("run")) as run:
        monkeypatch.chdir("/")
        commit(run, 0, 1.0)
    assert len(os.listdir(tmp_path / "run" / CHECKPOINTS)) == 1


def snapshot(root: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(root.rglob("*"))}


def test_a_directory_with_anything_in_it_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("years of work")
    before = snapshot(tmp_path)
    with pytest.raises(ConfigError, match=r"is not empty: .* choose another directory") as caught:
        create(tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert snapshot(tmp_path) == before


def test_another_runs_directory_is_refused_untouched(tmp_path: Path) -> None:
    create(tmp_path / "run").close()
    before = snapshot(tmp_path)
    with pytest.raises(ConfigError, match=r"belongs to another run; resume it with --resume"):
        create(tmp_path / "run")
    assert snapshot(tmp_path) == before


def test_a_file_in_the_place_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    for place in (tmp_path / "run", tmp_path / "run" / "below"):
        with pytest.raises(ConfigError, match="output directory"):
            create(place)
    assert (tmp_path / "run").read_text() == "a file"
    assert os.listdir(tmp_path) == ["run"]


def test_an_impossible_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot create output directory .*: File name too long"):
        create(tmp_path / ("n" * 300))
    assert os.listdir(tmp_path) == []


def fail(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


STEPS = {
    "config": (directory, "write_durably"),
    "key": (directory.NoiseKey, "save"),
    "ledger": (directory.Ledger, "create"),
    "mode": (directory.os, "chmod"),
    "rename": (directory.os, "replace"),
    "fsync": (durable.os, "fsync"),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_creation_that_fails_half_way_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """In particular no key file: a leftover key could be reused with other data."""
    with monkeypatch.context() as patched:
        patched.setattr(*STEPS[step], fail)
        with pytest.raises(ConfigError, match=r"cannot create output directory .*: No space left on device"):
            create(tmp_path / "run")
    assert os.listdir(tmp_path) == []
    create(tmp_path / "run").close()


def test_a_header_that_cannot_be_stored_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="header"):
        create(tmp_path / "run", bad=object())
    assert os.listdir(tmp_path) == []


def test_an_interrupted_creation_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(directory.NoiseKey, "save", interrupt)
    with pytest.raises(KeyboardInterrupt):
        create(tmp_path / "run")
    assert os.listdir(tmp_path) == []


def test_the_new_name_is_made_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose rounds are on disk must not vanish with the entry of its directory."""
    synced: list[Path] = []
    monkeypatch.setattr(directory, "sync_directory", synced.append)
    create(tmp_path / "run").close()
    assert synced == [tmp_path.resolve()]


def test_a_second_holder_in_this_process_is_refused(run: RunDirectory) -> None:
    with pytest.raises(LedgerError):
        RunDirectory.open(run.path)
    commit(run, 0, 1.0)
    run.close()
    RunDirectory.open(run.path).close()


def test_a_second_process_is_refused_and_reading_is_not(run: RunDirectory) -> None:
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from fedmf.records.ledger import Ledger\n"
        "from fedmf.runs.directory import LEDGER, RunDirectory\n"
        "path = Path(sys.argv[1])\n"
        "print(Ledger.open(path / LEDGER, read_only=True).last_round())\n"
        "try:\n"
        "    RunDirectory.open(path)\n"
        "except ValueError as error:\n"
        "    print(type(error).__name__)\n"
    )
    commit(run, 0, 1.0)
    done = subprocess.run(
        [sys.executable, "-c", script, str(run.path)], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split() == ["0", "LedgerError"]


def test_opening_refuses_what_is_not_a_run(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for name in ("absent", "empty", "file"):
        with pytest.raises(
            ConfigError, match=rf"{name} is not a run directory: it has no readable config.toml"
        ):
            RunDirectory.open(tmp_path / name)


@pytest.mark.parametrize("content", [b"epsilon =", b"\xff", b"epsilon = 1" + b"0" * 5000])
def test_opening_refuses_a_damaged_configuration(run: RunDirectory, content: bytes) -> None:
    run.close()
    (run.path / CONFIG).write_bytes(content)
    with pytest.raises(ConfigError, match=r"is not a run directory: it has no readable config.toml"):
        RunDirectory.open(run.path)


def test_opening_refuses_a_configuration_of_another_version(run: RunDirectory) -> None:
    run.close()
    (run.path / CONFIG).write_text("epsilon = 1.0\nfuture-key = 3\n")
    with pytest.raises(ConfigError, match="unknown configuration key 'future-key'"):
        RunDirectory.open(run.path)


def replace_key(path: Path, key: NoiseKey) -> None:
    (path / KEY).unlink()
    key.save(path / KEY)


def test_opening_refuses_another_runs_key_and_frees_the_lock(run: RunDirectory) -> None:
    """Going on with another key would add noise that does not cancel, at the cost of privacy."""
    key = run.key
    run.close()
    replace_key(run.path, NoiseKey.from_os())
    with pytest.raises(ConfigError, match=r"is not the key of this run: its fingerprint is [0-9a-f]{16}"):
        RunDirectory.open(run.path)
    replace_key(run.path, key)
    RunDirectory.open(run.path).close()


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_opening_refuses_a_key_that_others_can_read(run: RunDirectory, mode: int) -> None:
    run.close()
    os.chmod(run.path / KEY, mode)
    with pytest.raises(ConfigError, match=r"cannot use noise key .* must be 0600"):
        RunDirectory.open(run.path)


def test_opening_refuses_a_missing_or_damaged_key(run: RunDirectory) -> None:
    run.close()
    text = (run.path / KEY).read_text()
    (run.path / KEY).write_text(text[:-3])
    with pytest.raises(ValueError, match="Restore it from a copy"):
        RunDirectory.open(run.path)
    (run.path / KEY).unlink()
    with pytest.raises(ConfigError, match=r"cannot use noise key .*: No such file"):
        RunDirectory.open(run.path)


def test_no_error_shows_the_key(run: RunDirectory) -> None:
    run.close()
    secret = (run.path / KEY).read_text().rsplit("key: ", 1)[1].strip()
    replace_key(run.path, NoiseKey.from_seed(1))
    with pytest.raises(ConfigError) as caught:
        RunDirectory.open(run.path)
    assert secret not in str(caught.value)
    assert secret not in (run.path / CONFIG).read_text()


def test_restoring_returns_the_last_committed_state(run: RunDirectory) -> None:
    for t in range(3):
        commit(run, t, t + 0.5)
        restored = run.restore()
        assert restored is not None
        rounds, parameters, state, noise = restored
        assert rounds == t + 1
        assert noise == {"t": t + 1}
        assert torch.equal(parameters, torch.full((3,), t + 0.5))
        assert torch.equal(state["velocity"], torch.full((3,), -t - 0.5))
        assert len(os.listdir(run.path / CHECKPOINTS)) == 1
    run.close()
    with RunDirectory.open(run.path) as again:
        restored = again.restore()
        assert restored is not None
        assert restored[0] == 3
        assert torch.equal(restored[1], torch.full((3,), 2.5))


def test_a_crash_between_checkpoint_and_ledger_goes_back_to_the_committed_round(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise SystemExit

    commit(run, 0, 0.5)
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "commit_round", crash)
        with pytest.raises(SystemExit):
            commit(run, 1, 1.5)
    assert len(os.listdir(run.path / CHECKPOINTS)) == 2
    run.close()
    with RunDirectory.open(run.path) as again:
        restored = again.restore()
        assert restored is not None
        assert (restored[0], restored[1][0].item()) == (1, 0.5)
        commit(again, 1, 7.5)
        restored = again.restore()
        assert restored is not None
        assert (restored[0], restored[1][0].item()) == (2, 7.5)
        assert len(os.listdir(again.path / CHECKPOINTS)) == 1


def test_a_disk_that_fails_before_the_commit_releases_nothing(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(run, 0, 0.5)
    with monkeypatch.context() as patched:
        patched.setattr(durable.os, "fsync", fail)
        with pytest.raises(
            ConfigError, match=r"cannot write checkpoint of round 2: .*; nothing was released"
        ):
            commit(run, 1, 1.5)
    assert run.ledger.last_round() == 0
    commit(run, 1, 2.5)
    restored = run.restore()
    assert restored is not None
    assert restored[1][0].item() == 2.5


def test_a_disk_that_fails_after_the_commit_does_not_make_the_round_look_failed(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the server would release the same round a second time, with other contents."""
    commit(run, 0, 0.5)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", fail)
        commit(run, 1, 1.5)
    assert run.ledger.last_round() == 1
    commit(run, 2, 2.5)
    assert len(os.listdir(run.path / CHECKPOINTS)) == 1


def test_a_round_that_breaks_the_contract_is_not_committed(run: RunDirectory) -> None:
    commit(run, 0, 0.5)
    with pytest.raises(ParticipationViolation):
        run.commit(1, ["u0"], torch.ones(3), {}, {"t": 1})
    restored = run.restore()
    assert restored is not None
    assert (restored[0], restored[1][0].item()) == (1, 0.5)


def test_a_round_in_which_nobody_took_part_counts(run: RunDirectory) -> None:
    run.commit(0, [], torch.ones(3), {}, {"t": 1})
    restored = run.restore()
    assert restored is not None
    assert restored[0] == 1
    assert run.ledger.last_round() == 0
    assert run.ledger.pattern_counts() == {}


def test_a_checkpoint_swapped_on_disk_is_refused(run: RunDirectory, tmp_path: Path) -> None:
    commit(run, 0, 0.5)
    (name,) = os.listdir(run.path / CHECKPOINTS)
    with create(tmp_path / "other") as other:
        commit(other, 0, 99.0)
        shutil.copy(other.path / CHECKPOINTS / name, run.path / CHECKPOINTS / name)
    with pytest.raises(ValueError, match="is not the one the ledger committed"):
        run.restore()


def test_runs_without_privacy_are_not_bound_to_a_key(tmp_path: Path) -> None:
    create(tmp_path / "run", key_fingerprint=None).close()
    replace_key(tmp_path / "run", NoiseKey.from_os())
    RunDirectory.open(tmp_path / "run").close()
