"""The pictures of docs/concepts.md: noise of a round and in the model, and what an attacker can
tell.

python simulations/noise/start_pictures.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from fedmf.accounting.gaussian import gaussian_mu, gaussian_sigma
from fedmf.figures import COLORS, new_figure, style
from fedmf.matrices.sensitivity import sensitivity_of
from fedmf.mechanisms.choice import NamedMechanism
from fedmf.noise.key import Domain, NoiseKey
from fedmf.noise.noise_stream import NoiseStream
from fedmf.noise.units import Part, calibrated
from fedmf.participation import Participation

CONTRACT = Participation(rounds=240, max_participations=24, min_separation=10)
SIGMA = gaussian_sigma(epsilon=8.0, delta=1e-5)
SHOWN = {"identity": (COLORS[1], "independent"), "banded-toeplitz": (COLORS[0], "correlated")}
COORDINATES = 40
PLACE = Path(__file__).parents[2] / "docs" / "pictures"


def noise(name: str) -> np.ndarray:
    """Rows of noise at ε = 8 for clip norm 1: a row a round, a column a coordinate."""
    C = NamedMechanism(name).build(CONTRACT).factorization
    part = Part(C, COORDINATES, users=1)
    _, rounding = calibrated([part], sensitivity_of(C, CONTRACT).value, SIGMA)
    unit = rounding.parts[0]
    stream = NoiseStream(
        NoiseKey.from_seed(3),
        Domain.TRAINING,
        C.streaming_inverse(),
        CONTRACT.rounds,
        COORDINATES,
        unit.std,
    )
    rows = torch.zeros(CONTRACT.rounds, COORDINATES, dtype=torch.int64)
    stream.release_rows(rows)
    return rows.numpy() * 2.0**-unit.bits


def draw_noise() -> None:
    """Noise of single rounds, and its running sum below."""
    figure = new_figure(7, 5.6)
    above, below = figure.subplots(2)
    rounds = np.arange(1, CONTRACT.rounds + 1)
    for name, (color, label) in SHOWN.items():
        rows = noise(name)
        above.plot(rounds[:60], rows[:60, 0], color=color, lw=1.2, label=label)
        below.plot(rounds, rows[:, :12].cumsum(axis=0), color=color, lw=0.8, alpha=0.5)
    unit = "in units of the clip norm"
    style(above, title="Noise added to one parameter in each round", xlabel="round", ylabel=unit)
    style(
        below,
        title="Noise in the model: the sum so far, twelve parameters",
        xlabel="round",
        ylabel=unit,
    )
    above.legend(frameon=False, loc="lower left", ncols=2)
    above.set_ylim(-24, 16)
    figure.savefig(PLACE / "noise.png", dpi=150)


def draw_worlds() -> None:
    """What the best test sees in both worlds: normal laws μ apart."""
    mu = gaussian_mu(SIGMA)
    x = np.linspace(-3.5, mu + 3.5, 400)
    figure = new_figure(7, 3.2)
    axes = figure.subplots()
    for center, color, label in ((0.0, COLORS[0], "without you"), (mu, COLORS[1], "with you")):
        axes.fill_between(x, np.exp(-((x - center) ** 2) / 2), color=color, alpha=0.35, label=label)
    axes.axvline(1.6449, color="0.2", lw=1, ls="--")
    axes.annotate(
        '5 % false alarms: says "with"\nto the right of this line', (1.75, 1.06), fontsize=9
    )
    axes.set_yticks([])
    style(
        axes,
        xlabel="what the best possible attack computes from all released models (ε = 8, δ = 10⁻⁵)",
    )
    axes.grid(False)
    axes.set_ylim(0, 1.25)
    axes.legend(frameon=False, loc="upper left")
    figure.savefig(PLACE / "worlds.png", dpi=150)


def main() -> None:
    """Draw both."""
    PLACE.mkdir(exist_ok=True)
    draw_noise()
    draw_worlds()


if __name__ == "__main__":
    main()
