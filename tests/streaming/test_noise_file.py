"""Going on with vectors of noise of an earlier step: the same bits, few rows drawn again, never another's."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.streams import BUDGET, run_once, sample, write_rows

from fedmf.noise.rows import FeedbackRows, RowRule, StateRows
from fedmf.noise.stream import NoiseStream
from fedmf.streaming import Settings, open_run
from fedmf.streaming import state as state_module

N, STOP, D = 24, 17, 3
NAME = state_module.VECTORS
FORMS: dict[str, dict[str, Any]] = {
    "bounded": {"rounds": N},
    "decaying sums": {"rounds": N, "mechanisms": ("blt",), "bands": None},
    "users": {"rounds": N, "user_column": "user", "max_participations": 3, "min_separation": 4},
}


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits of 2 rows, vectors after 6."""
    monkeypatch.setattr("fedmf.streaming.run._MOST_ROWS", 2)
    monkeypatch.setattr("fedmf.streaming.run._MOST_DRAWN_ROWS", 6)


def asked(form: str) -> Settings:
    return Settings(**{**BUDGET, "bands": 3, **FORMS[form]})


@contextmanager
def replays(monkeypatch: pytest.MonkeyPatch, kind: type[RowRule[Any]]) -> Iterator[list[int]]:
    """Rows made one by one, which is how earlier ones are made again."""
    made: list[int] = []
    real = kind.row_

    def counted(self: RowRule[Any], *arguments: Any) -> None:
        made.append(arguments[-2])
        real(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(kind, "row_", counted)
        yield made


def begun(folder: Path, settings: Settings) -> tuple[Path, bytes]:
    """The whole input, and what the stream says of it, in `folder`/whole; `folder` has its first rows."""
    users = [f"u{i % 10}" for i in range(N)] if settings.user_column else None
    source = write_rows(folder / "rows.csv", sample(N, D), users)
    (folder / "whole").mkdir()
    run_once(folder / "whole", settings, source)
    part = folder / "part.csv"
    part.write_text("".join(source.read_text().splitlines(keepends=True)[: STOP + 1]))
    with open_run(folder / "state", settings, part, folder / "out.jsonl") as (run, reader):
        run.feed(reader)
    return source, (folder / "whole/out.jsonl").read_bytes()


def altered(folder: Path, source: Path, settings: Settings) -> dict[str, Callable[[Path], object]]:
    """What may have become of the file."""
    other = folder / "other"
    other.mkdir()
    run_once(other, replace(settings, seed=99), source)

    def flipped(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    return {
        "as it was": lambda path: None,
        "missing": Path.unlink,
        "cut short": lambda path: path.write_bytes(path.read_bytes()[:-9]),
        "only its code": lambda path: path.write_bytes(path.read_bytes()[:32]),
        "empty": lambda path: path.write_bytes(b""),
        "flipped": flipped,
        "of a later step": lambda path: shutil.copy(folder / "whole/state" / NAME, path),
        "of another stream": lambda path: shutil.copy(other / "state" / NAME, path),
    }


@pytest.mark.parametrize("form", FORMS)
def test_whatever_became_of_the_file_the_stream_goes_on_with_the_same_bits(form: str, tmp_path: Path) -> None:
    settings = asked(form)
    source, expected = begun(tmp_path, settings)
    state = tmp_path / "state" / NAME
    assert state.stat().st_mode & 0o777 == 0o600
    for fate, happen in altered(tmp_path, source, settings).items():
        folder = tmp_path / fate
        shutil.copytree(tmp_path / "state", folder / "state")
        happen(folder / "state" / NAME)
        run_once(folder, settings, source)
        assert (folder / "out.jsonl").read_bytes() == expected, fate


@pytest.mark.parametrize(("form", "kind"), [("bounded", FeedbackRows), ("decaying sums", StateRows)])
def test_few_rows_are_drawn_again(
    form: str, kind: type[RowRule[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = asked(form)
    source, expected = begun(tmp_path, settings)
    with replays(monkeypatch, kind) as made:
        run_once(tmp_path, settings, source)
    assert (tmp_path / "out.jsonl").read_bytes() == expected
    # Vectors of step 12 (commits end at 2, 4, …): of the 17 steps before, 12 are not made again.
    assert min(made) == 12, sorted(set(made))


def test_a_disk_that_has_no_room_for_the_file_costs_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, *_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", str(path))

    settings = asked("bounded")
    with monkeypatch.context() as patch:
        patch.setattr(state_module, "replace_durably", full)
        source, expected = begun(tmp_path, settings)
    assert not (tmp_path / "state" / NAME).exists()
    run_once(tmp_path, settings, source)
    assert (tmp_path / "out.jsonl").read_bytes() == expected
    assert (tmp_path / "state" / NAME).exists()


def test_vectors_of_rows_under_other_keys_are_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that went on by itself has drawn its rows with another key."""
    monkeypatch.setattr("fedmf.records.mark.marks_folder", lambda: None)
    settings = replace(asked("bounded"), seed=None)
    source = write_rows(tmp_path / "rows.csv", sample(N, D))
    lines = source.read_text().splitlines(keepends=True)
    for name, stop in (("common", 5), ("mine", STOP), ("other", STOP)):
        folder = tmp_path / name
        if name == "common":
            folder.mkdir()
        else:
            shutil.copytree(tmp_path / "common", folder)
        part = tmp_path / "part.csv"
        part.write_text("".join(lines[: stop + 1]))
        out = tmp_path / f"{name}-{stop}"
        with open_run(folder / "state", settings, part, out) as (run, reader):
            run.feed(reader)
    shutil.copy(tmp_path / "other/state" / NAME, tmp_path / "mine/state" / NAME)
    rows = [noise_after(tmp_path / "mine/state")]
    (tmp_path / "mine/state" / NAME).unlink()
    rows.append(noise_after(tmp_path / "mine/state"))
    assert np.array_equal(*rows)
    assert not np.array_equal(rows[0], noise_after(tmp_path / "other/state"))


def noise_after(directory: Path) -> np.ndarray:
    """What the noise keeps before the next row."""
    with state_module.StreamState.open(directory) as state:
        _, stream = state.moments()
        noise: NoiseStream = stream._first_noise
        kept = noise.state_dict(kept_vectors=True)["kept"]
    assert isinstance(kept, torch.Tensor)
    return kept.numpy()
