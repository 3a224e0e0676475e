"""The pictures of docs/concepts.md: noise of a round and in the model, and what an attacker can tell.

python simulations/noise/start_pictures.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib import pyplot as plt

from fedmf.accounting import gaussian_sigma
from fedmf.accounting.gaussian import gaussian_mu
from fedmf.mechanisms.choice import NamedMechanism
from fedmf.mechanisms.sensitivity import stated_sensitivity
from fedmf.noise import GaussianSource, NoiseKey, NoiseStream
from fedmf.participation import Participation

CONTRACT = Participation(rounds=240, max_participations=24, min_separation=10)
SIGMA = gaussian_sigma(epsilon=8.0, delta=1e-5)
COLOURS = {"identity": "#D55E00", "banded-toeplitz": "#0072B2"}
LABELS = {"identity": "independent", "banded-toeplitz": "correlated"}
COORDINATES = 40
PLACE = Path(__file__).parents[2] / "docs" / "pictures"


def noise(name: str) -> np.ndarray:
    """Rows of noise at ε = 8 for clip norm 1: a row a round, a column a coordinate."""
    C = NamedMechanism(name).build(CONTRACT).factorization
    scale = SIGMA * stated_sensitivity(C, CONTRACT).value
    source = GaussianSource(NoiseKey.from_seed(3), COORDINATES)
    stream = NoiseStream(source, C.recurrence(), rounds=CONTRACT.rounds)
    rows = torch.zeros(CONTRACT.rounds, COORDINATES, dtype=torch.float64)
    for row in rows:
        stream.add_(row, scale=scale)
    return rows.numpy()


def draw_noise() -> None:
    """Noise of single rounds on the left, its running sum on the right."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    rounds = np.arange(1, CONTRACT.rounds + 1)
    for name, colour in COLOURS.items():
        rows = noise(name)
        left.plot(rounds[:60], rows[:60, 0], color=colour, lw=1.2, label=LABELS[name])
        right.plot(rounds, rows[:, :12].cumsum(axis=0), color=colour, lw=0.7, alpha=0.5)
    left.set(title="noise added in each round", xlabel="round", ylabel="one parameter, units of ζ")
    right.set(title="noise in the model: the sum so far", xlabel="round")
    left.set_ylim(-24, 16)
    left.legend(frameon=False, loc="lower left", ncols=2)
    for axes in (left, right):
        axes.axhline(0, color="0.7", lw=0.6, zorder=0)
    figure.savefig(PLACE / "noise.png", dpi=130)


def draw_worlds() -> None:
    """What the best test sees in both worlds: normal laws μ apart."""
    mu = gaussian_mu(SIGMA)
    x = np.linspace(-3.5, mu + 3.5, 400)
    figure, axes = plt.subplots(figsize=(6.5, 2.8), layout="constrained")
    for centre, colour, label in ((0.0, "#0072B2", "without you"), (mu, "#D55E00", "with you")):
        axes.fill_between(x, np.exp(-((x - centre) ** 2) / 2), color=colour, alpha=0.35, label=label)
    axes.axvline(1.6449, color="0.2", lw=1, ls="--")
    axes.annotate('5 % false alarms: says "with"\nto the right of this line', (1.75, 1.03), fontsize=9)
    axes.set(
        yticks=[], xlabel="what the best possible attack computes from all released models (ε = 8, δ = 1e-5)"
    )
    axes.set_ylim(0, 1.25)
    axes.legend(frameon=False, loc="upper left")
    figure.savefig(PLACE / "worlds.png", dpi=130)


def main() -> None:
    """Draw both."""
    mpl.use("Agg")
    mpl.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    PLACE.mkdir(exist_ok=True)
    draw_noise()
    draw_worlds()


if __name__ == "__main__":
    main()
