"""Streams that were stopped or copied: each process draws fresh noise at the plan's level."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from support.covariance import covariance_fits
from support.streams import BUDGET, write_rows

from fedmf.streaming.settings import Settings
from fedmf.streaming.stream_run import open_run

STEPS = 12
DIMENSION = 2000
COPIED = 5
FORMS = ["banded-inverse", "tree"]


@pytest.fixture(autouse=True)
def copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copied and continued on purpose, as on machines that do not know of each other."""
    monkeypatch.setattr("fedmf.ledger.lock.marks_folder", lambda: None)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of zeros, so that what is released is noise."""
    return write_rows(tmp_path_factory.mktemp("input") / "rows.csv", np.zeros((STEPS, DIMENSION)))


@pytest.fixture(scope="module")
def parts(source: Path) -> dict[int, Path]:
    """Its first rows, by how many."""
    lines = source.read_text().splitlines(keepends=True)
    paths = {}
    for stop in (1, 4, COPIED, 9, STEPS):
        paths[stop] = source.with_name(f"first-{stop}.csv")
        paths[stop].write_text("".join(lines[: stop + 1]))
    return paths


def settings(mechanism: str, **more: object) -> Settings:
    public = {
        "seed": None,
        "rounds": STEPS,
        "second_moment": "trace",
        "mechanisms": (mechanism,),
        **more,
    }
    public["columns"] = tuple(f"x{i}" for i in range(DIMENSION))
    return Settings(**{**BUDGET, **public})


def whitened(state: Path, asked: Settings, sources: list[Path]) -> tuple[np.ndarray, np.ndarray]:
    """C⁻¹z of the first moments, a process for every source, and C₁; the workload is undone."""
    released = np.empty(0)
    mechanism = None
    for path in sources:
        with open_run(state, asked, path, state.parent / f"{state.name}.jsonl") as (run, reader):
            run.feed(reader)
            released = run.state.releases(0, run.position.records).numbers[:, :DIMENSION]
            mechanism = run.plan.mechanism
    assert mechanism is not None
    t = np.arange(1, len(released) + 1)[:, None]
    sums = t * released  # the workload is the average of all rows so far
    return np.diff(sums, axis=0, prepend=0) / mechanism.first_std, mechanism.first.materialize()


@pytest.mark.parametrize("form", FORMS)
def test_noise_over_interruptions_is_that_of_the_plan(
    tmp_path: Path, parts: dict[int, Path], form: str
) -> None:
    noise, C = whitened(tmp_path / "state", settings(form), [parts[t] for t in (1, 4, 9, STEPS)])
    assert covariance_fits(noise, C, 1.0)
    assert not covariance_fits(noise * 1.1, C, 1.0), "a wrong sigma must be rejected"


@pytest.mark.parametrize("form", FORMS)
def test_copies_release_through_the_stacked_matrix(
    tmp_path: Path, source: Path, parts: dict[int, Path], form: str
) -> None:
    asked = settings(form)
    T = COPIED
    common, C = whitened(tmp_path / "a", asked, [parts[T]])
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    a, b = (whitened(tmp_path / name, asked, [source])[0] for name in "ab")
    assert np.array_equal(a[:T], common)
    assert np.array_equal(b[:T], common)
    zero = np.zeros((STEPS - T, STEPS - T))
    M = np.block(
        [
            [C[:T, :T], np.zeros((T, 2 * (STEPS - T)))],
            [C[T:, :T], C[T:, T:], zero],
            [C[T:, :T], zero, C[T:, T:]],
        ]
    )
    assert covariance_fits(np.vstack([a, b[T:]]), M, 1.0)
    assert not covariance_fits(np.vstack([a, a[T:]]), M, 1.0), "the same noise twice"
