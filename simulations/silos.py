"""Accuracy with a trusted server, and where each silo adds its own noise (fedmf.flower.Silo).

    python simulations/silos.py digits > digits.jsonl
    python simulations/silos.py fashion --data DIR --seeds 5 --tuning-seeds 2 > fashion.jsonl
    python simulations/silos.py table digits.jsonl fashion.jsonl

3,000 people, in 5, 10 or 20 silos of equal size, train a linear model in 100 rounds; DIR has the
files of ``fetch_data.py fashion-mnist``. Every silo plans for its own people as `Silo` does, with
the same `plan_of`, and its t-th release has the t-th row of its own C⁻¹Z. The server's
learning rate (momentum is 0.9) is tuned for every setting on other images, people and seeds.
Intervals are of differences on equal seeds (people, cohorts of the cyclic order, absences).
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from sklearn.datasets import load_digits
from torch import Tensor

from fedmf.cohorts import BallsInBinsCohorts, Cohorts, CyclicCohorts, CyclicPoissonCohorts
from fedmf.mechanisms.choice import NamedMechanism
from fedmf.optim import Sgd
from fedmf.runs.aggregator import ExternalTask
from fedmf.runs.model_layout import ModelLayout
from fedmf.runs.run import MechanismConfig, Run
from fedmf.runs.run_plan import plan_of
from fedmf.statements.privacy import UserLevel

PEOPLE = 3000
ROUNDS = 100
BINS = 10
DELTA = 1e-5
STEPS = 2
SILOS = (5, 10, 20)
EPSILONS = (2.0, 8.0)
RATES = (0.03, 0.06, 0.125, 0.25, 0.5, 1.0)
MOMENTUM = 0.9
FIRST_TUNING = 1001
AWAY = 0.3
#: Name, absences, division by who came, and the numbers of silos for which it is tried.
CASES = (
    ("all present", 0.0, False, (1, *SILOS)),
    ("30 % away", AWAY, False, SILOS),
    ("30 % away, by who came", AWAY, True, (10,)),
)


@dataclass(frozen=True)
class Way:
    """A mechanism with the cohorts of each release.

    Args:
        mechanism: its name.
        sampling: "cyclic", "poisson" or "bins".
        bands: p, for amplified bands; 0 to leave it to the mechanism.
    """

    mechanism: str
    sampling: str
    bands: int = 0

    def cohorts(self, size: int) -> Cohorts:
        """The cohorts of a silo with so many users a round."""
        if self.sampling == "poisson":
            return CyclicPoissonCohorts(ROUNDS, size, min_separation=1)
        if self.sampling == "bins":
            return BallsInBinsCohorts(ROUNDS, size)
        return CyclicCohorts(ROUNDS, size)


#: By the name in the tables; the bands of the last are chosen by the error of prefix sums.
WAYS = {
    "independent": Way("identity", "cyclic"),
    "independent, amplified": Way("identity", "poisson"),
    "lambda-cgd": Way("lambda-cgd", "cyclic"),
    "blt": Way("blt", "cyclic"),
    "banded-toeplitz": Way("banded-toeplitz", "cyclic"),
    "banded, Balls-in-Bins": Way("banded-toeplitz", "bins"),
}
SERVER = "trusted server, "


@dataclass(frozen=True)
class Seeds:
    """How many seeds are compared, and how many others choose the learning rate."""

    count: int
    tuning: int


@dataclass(frozen=True)
class Noise:
    """The noise of one silo: its rows are ``rows`` @ standard normals, in units of ζ."""

    rows: Tensor
    prefix_errors: Tensor
    bands: int


@cache
def planned(way: Way, epsilon: float, dimension: int) -> Noise:
    """The rows of a silo's own plan: of one of 10 silos, since they depend on N/m alone."""
    choices = [0]
    if way.sampling == "bins":
        choices = [1, 2, 3, 4, 6, 8, 10]
    return min(
        (_planned(way, epsilon, PEOPLE // 10, dimension, bands) for bands in choices),
        key=lambda noise: float(noise.prefix_errors.square().mean()),
    )


def _planned(way: Way, epsilon: float, users: int, dimension: int, bands: int) -> Noise:
    layout = ModelLayout(("w",), ((dimension,),), ("float32",), {})
    params = {"bands": bands} if bands else {}
    run = Run(
        task=ExternalTask(layout, [str(user) for user in range(users)]),
        cohorts=way.cohorts(users // BINS),
        privacy=UserLevel(
            epsilon=epsilon,
            delta=DELTA,
            clip_norm=1.0,
            amplified=way.sampling != "cyclic",
            noise_seed=1,
        ),
        mechanism=MechanismConfig(NamedMechanism(way.mechanism, params)),
        server=Sgd(learning_rate=1.0, momentum=0.0),
    )
    plan = plan_of(run, run.optimizer_source.build([(dimension,)], ROUNDS), dimension)
    C = plan.mechanism.factorization.materialize()
    rows = np.linalg.inv(np.asarray(C)) * plan.noise_std
    errors = np.linalg.norm(np.cumsum(rows, axis=0), axis=1)
    return Noise(torch.tensor(rows).float(), torch.tensor(errors), bands)


@dataclass(frozen=True, eq=False)
class Images:
    """People with images, each pixels and a 1, shape (people, images, pixels), and labels."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor

    @cached_property
    def products(self) -> Tensor:
        """Inner products of the images of each person, shape (people, images, images)."""
        return torch.bmm(self.x, self.x.transpose(1, 2))

    @cached_property
    def targets(self) -> Tensor:
        """Labels as vectors, shape (people, images, 10)."""
        return torch.nn.functional.one_hot(self.y, 10).float()


def with_ones(pixels: np.ndarray) -> Tensor:
    """Images with a constant pixel, whose weights are the offsets."""
    values = torch.tensor(pixels).float()
    return torch.cat([values, torch.ones(*values.shape[:-1], 1)], dim=-1)


def images_of(name: str, folder: Path | None, seed: int, tuning: bool) -> Images:
    """The people of a seed: of other images for tuning than for the comparison."""
    rng = np.random.default_rng([seed, 7])
    if name == "digits":
        return _digits(rng, tuning)
    assert folder is not None
    return _fashion(rng, folder, tuning)


def _digits(rng: np.random.Generator, tuning: bool) -> Images:
    """Each person has five images drawn from the training part, shifted by up to one pixel."""
    data: Any = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    part = order[:897] if tuning else order[897:]
    train = part[: 3 * len(part) // 4]
    test = part[3 * len(part) // 4 :]
    chosen = rng.choice(train, (PEOPLE, 5))
    pixels = data.images[chosen].reshape(-1, 8, 8) / 16
    shifted = np.stack([np.roll(each, rng.integers(-1, 2), axis=1) for each in pixels])
    return Images(
        with_ones(shifted.reshape(PEOPLE, 5, 64)),
        torch.tensor(data.target[chosen]),
        with_ones(data.images[test].reshape(-1, 64) / 16),
        torch.tensor(data.target[test]),
    )


_READ: dict[str, np.ndarray] = {}


def _idx(path: Path) -> np.ndarray:
    if str(path) not in _READ:
        head = 16 if "images" in path.name else 8
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        _READ[str(path)] = np.frombuffer(content, np.uint8, offset=head)
    return _READ[str(path)]


def _fashion(rng: np.random.Generator, folder: Path, tuning: bool) -> Images:
    """Each person has five images of 14 x 14 pixels, of one half of the training part."""
    ending = ".gz" if (folder / "train-images-idx3-ubyte.gz").exists() else ""
    if "pixels" not in _READ:
        for part in ("train", "t10k"):
            images = _idx(folder / f"{part}-images-idx3-ubyte{ending}").reshape(-1, 14, 2, 14, 2)
            _READ[f"{part} pixels"] = images.mean(axis=(2, 4)).reshape(-1, 196) / 255 - 0.3
        _READ["pixels"] = np.zeros(0)
    labels = _idx(folder / f"train-labels-idx1-ubyte{ending}")
    half = slice(0, 30_000) if tuning else slice(30_000, 60_000)
    chosen = rng.permutation(np.arange(60_000)[half])[: PEOPLE * 5].reshape(PEOPLE, 5)
    test = slice(0, 3000) if tuning else slice(3000, 10_000)
    return Images(
        with_ones(_READ["train pixels"][chosen]),
        torch.tensor(labels[chosen].astype(np.int64)),
        with_ones(_READ["t10k pixels"][test]),
        torch.tensor(_idx(folder / f"t10k-labels-idx1-ubyte{ending}")[test].astype(np.int64)),
    )


def clipped_sum(weights: Tensor, images: Images, people: np.ndarray) -> Tensor:
    """The sum of the clipped updates of people after `STEPS` steps on all their images, (d,).

    A step adds a combination of a person's images, so that logits and norms follow from their
    inner products.
    """
    x = images.x[people]
    count = x.shape[1]
    products = images.products[people]
    target = images.targets[people]
    logits = x @ weights
    combination = torch.zeros_like(logits)
    for _ in range(STEPS):
        moved = torch.bmm(products, combination)
        combination += (target - torch.softmax(logits + moved, dim=2)) / count
    squares = (combination * torch.bmm(products, combination)).sum(dim=(1, 2))
    combination /= squares.sqrt().clamp(min=1.0)[:, None, None]
    return (x.flatten(0, 1).T @ combination.flatten(0, 1)).reshape(-1)


def trained(
    images: Images,
    noises: Noise,
    sampling: str,
    silos: int,
    seed: int,
    rate: float,
    away: float = 0.0,
    present: bool = False,
) -> float:
    """The accuracy in percent after all rounds; ``present``: divide by who came."""
    rng = np.random.default_rng([seed, silos])
    dimension = images.x.shape[2] * 10
    size = PEOPLE // silos
    orders = [rng.permutation(size) for _ in range(silos)]
    bins = [rng.integers(0, BINS, size) for _ in range(silos)]
    absent = np.random.default_rng([seed, silos, 1]).random((ROUNDS, silos)) < away
    generator = torch.Generator().manual_seed(seed * 100 + silos)
    drawn = torch.randn(silos, ROUNDS, dimension, generator=generator)
    rows = torch.einsum("ts,jsd->jtd", noises.rows, drawn)
    clock = [0] * silos
    weights = torch.zeros(images.x.shape[2], 10)
    velocity = torch.zeros(dimension)
    for t in range(ROUNDS):
        people = list[np.ndarray]()
        total = torch.zeros(dimension)
        came = 0
        for silo in range(silos):
            if absent[t, silo]:
                continue
            own = clock[silo]
            clock[silo] += 1
            came += 1
            if sampling == "poisson":
                cohort = np.flatnonzero(rng.random(size) < 1 / BINS)
            elif sampling == "bins":
                cohort = np.flatnonzero(bins[silo] == own % BINS)
            else:
                cohort = orders[silo][own % BINS :: BINS]
            people.append(silo * size + cohort)
            total += rows[silo, own]
        if people and sum(map(len, people)):
            chosen = np.concatenate(people)
            total += clipped_sum(weights, images, chosen)
        planned_users = PEOPLE / BINS * (came / silos if present else 1)
        if came:
            velocity = MOMENTUM * velocity + total / planned_users
        weights = weights + rate * velocity.reshape(weights.shape)
    hits = (images.test_x @ weights).argmax(dim=1) == images.test_y
    return 100 * float(hits.float().mean())


def tuned(name: str, folder: Path | None, noise: Noise, way: Way, silos: int, seeds: int) -> float:
    """The learning rate of the server, by the mean accuracy on the tuning images."""
    tuning = range(FIRST_TUNING, FIRST_TUNING + seeds)
    people = {seed: images_of(name, folder, seed, tuning=True) for seed in tuning}

    def accuracy(rate: float) -> float:
        scores = [
            trained(images, noise, way.sampling, silos, seed, rate)
            for seed, images in people.items()
        ]
        return sum(scores) / len(scores)

    return max(RATES, key=accuracy)


def interval(values: list[float]) -> tuple[float, float]:
    """Mean, and half the width of its 95 % interval."""
    if len(values) < 2:
        return float(np.mean(values)), math.nan
    spread = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return float(np.mean(values)), float(stats.t.ppf(0.975, len(values) - 1)) * spread


def prefix_rmse(noise: Noise, silos: int, away: float, draws: int = 20) -> float:
    """Root of the mean square error of prefix sums, in ζ, over rounds and absences."""
    squares = torch.cat([torch.zeros(1), noise.prefix_errors.float().square()])
    rng = np.random.default_rng(5)
    present = rng.random((draws, silos, ROUNDS)) >= away
    own = torch.tensor(np.cumsum(present, axis=2))
    return float(squares[own].sum(dim=1).mean().sqrt())


def ways_of(silos: int, names: Sequence[str]) -> list[str]:
    """The ways that are compared; a trusted server is one silo of all people."""
    if silos == 1:
        return [SERVER + name for name in ("banded-toeplitz", "banded, Balls-in-Bins")]
    return list(names)


def compared(
    label: str, silos: int, epsilon: float, name: str, folder: Path | None, seeds: Seeds
) -> dict[str, Any]:
    """A way, with and without absences: accuracies on equal seeds."""
    way = WAYS[label.removeprefix(SERVER)]
    noise = planned(way, epsilon, 650 if name == "digits" else 1970)
    rate = tuned(name, folder, noise, way, silos, seeds.tuning)
    row: dict[str, Any] = {
        "data": name,
        "epsilon": epsilon,
        "mechanism": label,
        "silos": silos,
        "rate": rate,
        "bands": noise.bands,
        "prefix_rmse": prefix_rmse(noise, silos, 0.0),
        "prefix_rmse_away": prefix_rmse(noise, silos, AWAY),
    }
    people = {seed: images_of(name, folder, seed, tuning=False) for seed in range(seeds.count)}
    for key, away, present, counted in CASES:
        if silos in counted:
            row[key] = [
                trained(images, noise, way.sampling, silos, seed, rate, away, present)
                for seed, images in people.items()
            ]
    return row


def cell(values: list[float], base: list[float]) -> str:
    """A mean, and its difference from the base on equal seeds."""
    mean, _ = interval(values)
    difference, half = interval([a - b for a, b in zip(values, base, strict=True)])
    if values == base:
        return f"{mean:.1f}"
    return f"{mean:.1f} ({difference:+.1f} ± {half:.1f})"


def table(rows: Sequence[Mapping[str, Any]], key: str) -> str:
    """A table in Markdown; differences are from amplified independent noise of as many silos."""
    columns = sorted({(row["data"], row["epsilon"], row["silos"]) for row in rows if key in row})
    cells = {
        (row["mechanism"], row["data"], row["epsilon"], row["silos"]): row[key]
        for row in rows
        if key in row
    }
    titles = [f"{data}, ε = {epsilon:g}, J = {silos}" for data, epsilon, silos in columns]
    lines = [f"| {key} | {' | '.join(titles)} |", "|---" * (len(columns) + 1) + "|"]
    for name in dict.fromkeys(row["mechanism"] for row in rows):
        shown = list[str]()
        for column in columns:
            if (name, *column) not in cells:
                shown.append("")
                continue
            values = cells[name, *column]
            shown.append(cell(values, cells.get(("independent, amplified", *column), values)))
        lines.append(f"| {name} | {' | '.join(shown)} |")
    return "\n".join(lines)


def main() -> None:
    """Train and print a line of JSON for each setting, or print tables of such lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=["digits", "fashion", "table"])
    parser.add_argument("files", type=Path, nargs="*", help="of lines, for table")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--tuning-seeds", type=int, default=3)
    parser.add_argument("--silos", type=int, nargs="+", default=[1, *SILOS])
    parser.add_argument("--epsilon", type=float, nargs="+", default=EPSILONS)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    chosen = parser.parse_args()
    if chosen.name == "table":
        rows = [json.loads(line) for file in chosen.files for line in file.open()]
        for key, *_ in CASES:
            print(table(rows, key), end="\n\n")
        return
    torch.set_num_threads(1)
    seeds = Seeds(chosen.seeds, chosen.tuning_seeds)
    for epsilon, silos in itertools.product(chosen.epsilon, chosen.silos):
        for label in ways_of(silos, chosen.ways):
            row = compared(label, silos, epsilon, chosen.name, chosen.data, seeds)
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
