"""G1: what is released minus what would be without noise has covariance σ²C⁻¹C⁻ᵀ; σ × 1.1 is
rejected.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import fedmf
from fedmf.flower import CorrelatedNoise, InProcessGrid
from fedmf.noise.noise_stream import NoiseStream
from guarantees.small import (
    CLIP,
    COHORT,
    ROUNDS,
    USERS,
    bisr,
    covariance_fits,
    random_rows,
    released_models,
    run_of,
    stream,
)

DIMENSION = 10_000
STEPS = 8


def stated(path: Path) -> tuple[np.ndarray, float]:
    """C and the standard deviation of what is streamed through C⁻¹, by statement.json alone."""
    said = json.loads((path / "statement.json").read_text())
    std = said["clip_norm"] * said["noise_multiplier"] * said["sensitivity"]
    assert said["mechanism"] == "bisr"
    return bisr(said["rounds"], said["params"]["bands"]), std


def check_run(folder: Path) -> None:
    rows = random_rows(DIMENSION)
    noisy = released_models(run_of(rows), folder / "run")
    exact = released_models(
        run_of(rows, privacy=fedmf.NoPrivacy(clip_norm=CLIP), mechanism="identity"),
        folder / "exact",
    )
    assert np.abs(np.diff(exact, axis=0)).max() > 0
    noise = np.diff(noisy - exact, axis=0) * COHORT
    assert covariance_fits(noise, *stated(folder / "run"))


def returning() -> ClientApp:
    """Clients that return what they got."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)

    return app


def check_wrapper(folder: Path) -> None:
    start = ArrayRecord(
        {"a": Array(np.zeros((90, 100), np.float32)), "b": Array(np.zeros(1000, np.float32))}
    )
    strategy = CorrelatedNoise(
        FedAvg(),
        fedmf.UserLevel(epsilon=8.0, delta=1e-5, clip_norm=CLIP, noise_seed=3),
        fedmf.CyclicCohorts(rounds=ROUNDS, users_per_round=COHORT),
        users=USERS,
        mechanism="bisr",
        run_dir=folder / "app",
    )
    models: list[np.ndarray] = []
    strategy.start(
        grid=InProcessGrid(returning(), nodes=USERS),
        initial_arrays=start,
        num_rounds=ROUNDS,
        evaluate_fn=lambda _, arrays: models.append(
            np.concatenate([array.numpy().astype(np.float64).ravel() for array in arrays.values()])
        ),
    )
    noise = np.diff(np.stack(models), axis=0) * COHORT
    assert noise.shape == (ROUNDS, DIMENSION)
    assert covariance_fits(noise, *stated(folder / "app"))


def check_stream(folder: Path) -> None:
    x = np.random.default_rng(1).standard_normal((STEPS, DIMENSION))
    x /= 2 * np.linalg.norm(x, axis=1, keepdims=True)
    with stream(folder / "stream", STEPS, dimension=DIMENSION) as opened:
        sums = np.stack([np.asarray(opened.push(row, user=f"u{i}").sum) for i, row in enumerate(x)])
    said = json.loads((folder / "stream" / "statement.json").read_text())
    noise = np.diff(sums - np.cumsum(x, axis=0), axis=0, prepend=0.0)
    # Of one row a user: σ times the joint sensitivity of sums and weighted energies is what the
    # sums get.
    C = bisr(STEPS, said["params"].get("bands", STEPS))
    assert covariance_fits(noise, C, said["noise_multiplier"] * said["sensitivity"])


CHECKS: dict[str, Callable[[Path], None]] = {
    "run": check_run,
    "wrapped app": check_wrapper,
    "stream": check_stream,
}


@pytest.mark.parametrize("where", CHECKS)
def test_released_noise_has_the_stated_covariance(where: str, tmp_path: Path) -> None:
    CHECKS[where](tmp_path)


@pytest.mark.parametrize("where", CHECKS)
@pytest.mark.parametrize("factor", [1.1, 1 / 1.1])
def test_a_wrong_sigma_is_seen(
    where: str, factor: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = NoiseStream.__init__

    def wrong(self, keys, domain, inverse, rounds, dimension, std):
        right(self, keys, domain, inverse, rounds, dimension, factor * std)

    monkeypatch.setattr(NoiseStream, "__init__", wrong)
    with pytest.raises(AssertionError):
        CHECKS[where](tmp_path)
