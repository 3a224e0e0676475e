"""G5: two copies of a secret-key run that both go on add independent noise of the stated size."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedmf
from fedmf.ledger.released_integers import FOLDER, INTEGERS
from fedmf.noise.key import NoiseKey
from fedmf.runs.simulation import run_in_process
from guarantees.small import (
    CLIP,
    COHORT,
    ROUNDS,
    aggregator,
    bisr,
    covariance_fits,
    random_rows,
    run_of,
    stream,
)

DIMENSION = 10_000
COPIED = 5


def releases(path: Path, stop: int) -> np.ndarray:
    """θ at the beginning and after every round up to this one, in which nobody brings anything."""
    start = {"w": np.zeros(DIMENSION, np.float32)}
    with aggregator(path, noise_seed=None).begin(start) as opened:
        models = [opened.model["w"]]
        while opened.t < stop:
            opened.cohort(opened.t)
            models.append(opened.release()["w"])
    return np.stack(models).astype(np.float64)


def check(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copies are on two machines: what one remembers of its runs, the other does not know."""
    releases(folder / "run", COPIED)
    noises = []
    for machine in "ab":
        place = folder / machine
        shutil.copytree(folder / "run", place / "run")
        monkeypatch.setenv("XDG_STATE_HOME", str(place / "state"))
        models = releases(place / "run", ROUNDS)
        assert len(models) == ROUNDS - COPIED + 1
        noises.append(np.diff(models, axis=0) * COHORT)
        with aggregator(place / "run", noise_seed=None).begin(
            {"w": models[0].astype(np.float32)}
        ) as opened:
            said = opened.statement().to_dict()
    std = said["clip_norm"] * said["noise_multiplier"] * said["sensitivity"]
    C = bisr(ROUNDS, said["params"]["bands"])[COPIED:, COPIED:]
    # The rows before the copy are common to both and fall out of the difference.
    assert covariance_fits(noises[0] - noises[1], C, math.sqrt(2) * std)


def test_copies_of_a_run_add_independent_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(tmp_path, monkeypatch)


def test_a_reused_sub_key_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opening = NoiseKey.opening
    monkeypatch.setattr(NoiseKey, "opening", lambda self, _: opening(self, bytes(32)))
    with pytest.raises(AssertionError):
        check(tmp_path, monkeypatch)


def trained(path: Path, stop: int, **changes: Any) -> None:
    """Continue a run with a secret key to a round."""
    run = run_of(
        random_rows(5),
        privacy=fedmf.UserLevel(epsilon=8.0, delta=1e-5, clip_norm=CLIP),
        execution=fedmf.Execution(keep_releases=True, checkpoint_every=1),
        **changes,
    )
    opened = fedmf.resume(run, path) if path.exists() else fedmf.start(run, path)
    with opened as session:
        run_in_process(session, lambda record: record.rounds == stop)


def pushed(path: Path, stop: int) -> None:
    """Continue a stream with a secret key to a step."""
    with stream(path, ROUNDS, dimension=5, seed=None, keep_releases=True) as opened:
        while opened.t < stop:
            opened.push(np.full(5, 0.1), user=f"u{opened.t}")


#: Releases with several parts, each of which has noise of its own.
PARTS: dict[str, Callable[[Path, int], None]] = {
    "a model and its clip norm": partial(trained, clipping=fedmf.QuantileClipping()),
    "a model and second moments": partial(trained, server=fedmf.JmeAdam()),
    "two moments of a stream": pushed,
}


@pytest.mark.parametrize("what", PARTS)
def test_copies_share_no_noise_of_any_part(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both copies sum the same, so that equal integers would have equal noise."""
    go_on = PARTS[what]
    go_on(tmp_path / "run", COPIED)
    released = []
    for machine in "ab":
        place = tmp_path / machine
        shutil.copytree(tmp_path / "run", place / "run")
        monkeypatch.setenv("XDG_STATE_HOME", str(place / "state"))
        go_on(place / "run", COPIED + 1)
        integers = np.fromfile(place / "run" / FOLDER / INTEGERS, "<i8")
        released.append(integers.reshape(COPIED + 1, -1))
    equal = released[0] == released[1]
    assert equal[:COPIED].all()
    assert not equal[COPIED].any()
