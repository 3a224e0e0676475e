"""G8: a stopped run goes on, with the same models if its seed is public, with fresh rows if it is
secret.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedmf
from fedmf.noise.noise_stream import NoiseStream
from guarantees.small import (
    COHORT,
    NAMES,
    ROUNDS,
    aggregator,
    bisr,
    covariance_fits,
    random_rows,
    released_models,
    run_of,
    stream,
)

#: After how many rounds a process ends.
STOPS = (3, 4, 8, ROUNDS)


def brought(
    path: Path, stops: tuple[int, ...], rows: np.ndarray, seed: int | None, **changes: Any
) -> np.ndarray:
    """θ_0 … θ_n of an aggregator, a process for every stop; what a process finds is what was shown
    last.
    """
    models: list[np.ndarray] = []
    for stop in stops:
        model = {"w": np.zeros(rows.shape[1], np.float32)}
        with aggregator(path, noise_seed=seed, **changes).begin(model) as opened:
            found = opened.model["w"].astype(np.float64)
            assert not models or np.array_equal(found, models[-1])
            models = models or [found]
            while opened.t < stop:
                for user in opened.cohort(opened.t):
                    opened.add(user, {"w": rows[NAMES.index(user)]})
                models.append(opened.release()["w"].astype(np.float64))
    return np.stack(models)


def check_public_run(folder: Path) -> None:
    rows = random_rows(9)
    whole = brought(folder / "whole", (ROUNDS,), rows, seed=7)
    assert np.array_equal(brought(folder / "stopped", STOPS, rows, seed=7), whole)
    models = released_models(run_of(-rows), folder / "trained")
    assert np.abs(models - whole).max() < 1e-5  # the same run, trained by clients


def check_memory(folder: Path) -> None:
    """Of the server's rule, and of the clip norm that follows a quantile."""
    changes = {
        "server_optimizer": fedmf.Sgd(learning_rate=0.5, momentum=0.9),
        "clipping": fedmf.QuantileClipping(rounds_per_update=1, learning_rate=0.8),
    }
    rows = random_rows(9)
    whole = brought(folder / "whole", (ROUNDS,), rows, seed=7, **changes)
    assert np.array_equal(brought(folder / "stopped", STOPS, rows, seed=7, **changes), whole)


def check_public_stream(folder: Path) -> None:
    x = np.random.default_rng(2).uniform(-0.5, 0.5, (ROUNDS, 3))
    found = {}
    for name, stops in (("whole", (ROUNDS,)), ("stopped", STOPS)):
        found[name] = []
        for stop in stops:
            with stream(folder / name, ROUNDS, dimension=3) as opened:
                while opened.t < stop:
                    found[name].append(opened.push(x[opened.t], user=f"u{opened.t}").to_dict())
    assert found["stopped"] == found["whole"]


def check_secret_run(folder: Path) -> None:
    """The noise of all rounds, those before a stop included, is that of the plan: no row counts
    twice.
    """
    models = brought(
        folder / "secret", STOPS, np.zeros((len(NAMES), 10_000), np.float32), seed=None
    )
    said = fedmf.account(folder / "secret").to_dict()
    std = said["clip_norm"] * said["noise_multiplier"] * said["sensitivity"]
    noise = np.diff(models, axis=0) * COHORT
    assert covariance_fits(noise, bisr(ROUNDS, said["params"]["bands"]), std)
    assert not np.array_equal(
        models, brought(folder / "other", STOPS[-1:], np.zeros((24, 10_000)), None)
    )


CHECKS = {
    "public run": check_public_run,
    "memory": check_memory,
    "public stream": check_public_stream,
    "secret": check_secret_run,
}


@pytest.mark.parametrize("what", CHECKS)
def test_it_goes_on(what: str, tmp_path: Path) -> None:
    CHECKS[what](tmp_path)


@pytest.mark.parametrize("what", CHECKS)
def test_a_row_that_is_drawn_twice_is_seen(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of a stream of noise that was loaded are those of the rounds before."""
    loaded = NoiseStream.load_state
    resumed: list[NoiseStream] = []

    def load(self, state):
        loaded(self, state)
        resumed.append(self)

    release = NoiseStream.release_rows

    def shifted(self, totals):
        behind = self.t > 0 and any(each is self for each in resumed)
        self.seek(self.t - behind)
        release(self, totals)
        self.seek(self.t + behind)

    monkeypatch.setattr(NoiseStream, "load_state", load)
    monkeypatch.setattr(NoiseStream, "release_rows", shifted)
    with pytest.raises(AssertionError):
        CHECKS[what](tmp_path)
