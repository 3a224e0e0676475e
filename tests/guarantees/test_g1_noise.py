"""G1: what is released minus what would be without noise has covariance σ²C⁻¹C⁻ᵀ, and moments
share no noise; σ × 1.1 is rejected.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import fedmf
from fedmf.flower import CorrelatedNoise, InProcessGrid
from fedmf.ledger.released_integers import FOLDER, INTEGERS
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


def moments_fit(first: np.ndarray, second: np.ndarray, said: dict[str, Any]) -> bool:
    """Whether the noise of two moments is as stated, and that of neither tells of the other."""
    white = [
        bisr(len(noise), part["params"]["bands"]) @ noise / part["noise_std"]
        for noise, part in ((first, said), (second, said["second_moment"]))
    ]
    both = np.concatenate(white)
    return covariance_fits(both, np.eye(len(both)), 1.0)


def check_pair(folder: Path) -> None:
    """Users bring zeros, so that the integers of both moments are noise."""
    run = run_of(
        np.zeros((USERS, DIMENSION)),
        server=fedmf.JmeAdam(blocks="coordinate"),
        execution=fedmf.Execution(keep_releases=True),
    )
    fedmf.simulate(run, folder / "run")
    said = json.loads((folder / "run" / "statement.json").read_text())
    integers = np.fromfile(folder / "run" / FOLDER / INTEGERS, "<i8").reshape(ROUNDS, -1)
    first, second = np.split(integers, [DIMENSION], axis=1)
    units = [CLIP ** (i + 1) * 2.0**-bits for i, bits in enumerate(said["unit_bits"])]
    assert moments_fit(first * units[0], second * units[1], said)


def check_stream(folder: Path) -> None:
    """Of one row a user: its sums and sums of squares."""
    x = np.random.default_rng(1).standard_normal((STEPS, DIMENSION))
    x /= 2 * np.linalg.norm(x, axis=1, keepdims=True)
    with stream(folder / "stream", STEPS, dimension=DIMENSION, second_moment="diagonal") as opened:
        released = [opened.push(row, user=f"u{i}") for i, row in enumerate(x)]
    said = json.loads((folder / "stream" / "statement.json").read_text())
    noises = [
        np.diff(np.stack(sums) - np.cumsum(exact, axis=0), axis=0, prepend=0.0)
        for sums, exact in (
            ([release.sum for release in released], x),
            ([release.sum_of_squares for release in released], x**2),
        )
    ]
    assert moments_fit(*noises, said)


CHECKS: dict[str, Callable[[Path], None]] = {
    "run": check_run,
    "pair of moments": check_pair,
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
