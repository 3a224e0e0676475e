"""Server optimizers on drawn data whose tensors have updates of very different size: runs of the
package.

    python simulations/optimizers/scaled_blocks.py                 # the table; stopped, it goes on
    python simulations/optimizers/scaled_blocks.py --quick --out /tmp/quick

Softmax regression of 20 classes on three groups of features, one example a user. The features of
group g are s_g·U_g(μ_{g,y} + N(0, I)) with random centers and a random orthonormal map U_g; a
group's weights are one tensor. The groups hold equal information and their gradients are as s = 1 :
0.1 : 0.03. The problem is chosen so that adaptivity helps: it shows that there are such problems,
not how common they are.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import track
from scipy import stats

import fedmf
from fedmf import optim
from fedmf.data import InMemoryDataset
from fedmf.training import classification

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
USERS = 10_000
COHORT = 1000
ROUNDS = 60
CLIP_NORM = 1.0
CLASSES = 20
WIDTHS = (20, 60, 120)
SCALES = (1.0, 0.1, 0.03)
RANK = 10
SEPARATION = 3.0
EPSILONS = (8.0, 2.0)
TUNING_SEED = 1000
#: Steps of √10; a rule's search goes outwards until its best rate has worse neighbors.
RATES = tuple(10.0 ** (i / 2) for i in range(-6, 5))

_BLOCKS = {"blocks": "tensor", "relative_eps": 0.1}
#: What is compared, each with the rate its search begins at. The first is what the others are
#: paired with.
METHODS: dict[str, tuple[Any, dict[str, Any], float]] = {
    "momentum": (optim.Sgd, {"momentum": 0.9}, 31.6),
    "FedAdam, post-processing": (
        optim.Adam,
        {"blocks": "coordinate", "relative_eps": 1.0},
        0.1,
    ),
    "Adam debiased, by tensor": (optim.AdamDebiased, _BLOCKS, 0.01),
    "block JME-Adam": (optim.JmeAdam, _BLOCKS, 0.1),
}


class ScaledGroups(torch.nn.Module):
    """The sum of a linear map of each group of features."""

    def __init__(self) -> None:
        super().__init__()
        self.groups = torch.nn.ModuleList(
            torch.nn.Linear(width, CLASSES, bias=False) for width in WIDTHS
        )
        for group in self.groups:
            torch.nn.init.zeros_(group.weight)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Features of shape (…, 200) to logits of shape (…, 20)."""
        parts = features.split(WIDTHS, dim=-1)
        logits = [group(part) for group, part in zip(self.groups, parts, strict=True)]
        return sum(logits)  # type: ignore[return-value]


@cache
def problem(seed: int) -> Any:
    """Data and model of a seed, as a task."""
    generator = torch.Generator().manual_seed(seed)
    count = USERS + 2000
    labels = torch.randint(CLASSES, (count,), generator=generator)
    parts = []
    for width, scale in zip(WIDTHS, SCALES, strict=True):
        centers = torch.nn.functional.normalize(
            torch.randn(CLASSES, RANK, generator=generator), dim=1
        )
        inner = SEPARATION * centers[labels] + torch.randn(count, RANK, generator=generator)
        parts.append(
            scale * inner @ torch.linalg.qr(torch.randn(width, RANK, generator=generator))[0].T
        )
    features = torch.cat(parts, dim=1)
    data = InMemoryDataset(
        features[:USERS],
        labels[:USERS],
        [np.array([u]) for u in range(USERS)],
        [f"u{u:05}" for u in range(USERS)],
        features[USERS:],
        labels[USERS:],
        classes=CLASSES,
    )
    return classification(data, ScaledGroups())


@dataclass(frozen=True)
class Comparison:
    """Runs in directories below a folder; a finished one is not made again.

    Args:
        folder: where the runs are.
        rounds: of each.
        seeds: that are reported.
    """

    folder: Path
    rounds: int
    seeds: int

    def accuracy(self, method: str, epsilon: float, rate: float, seed: int) -> float:
        """In percent, after the last round."""
        kind, fields, _ = METHODS[method]
        place = self.folder / f"{method.replace(' ', '-')}-{epsilon:g}-{rate:.3g}-{seed}"
        finished = place.with_name(place.name + ".json")  # a rate has a dot
        if not finished.exists():
            run = fedmf.Run(
                task=problem(seed),
                cohorts=fedmf.CyclicCohorts(rounds=self.rounds, users_per_round=COHORT),
                privacy=fedmf.UserLevel(epsilon=epsilon, clip_norm=CLIP_NORM, noise_seed=seed),
                server=kind(learning_rate=rate, **fields),
                client=fedmf.LocalSGD(batch_size=1, learning_rate=1.0),
                execution=fedmf.Execution(evaluate_every=self.rounds, checkpoint_every=self.rounds),
            )
            result = fedmf.simulate(run, place)
            finished.write_text(json.dumps(100 * result.metrics[self.rounds]["accuracy"]))
        return json.loads(finished.read_text())

    def tuned(self, method: str, epsilon: float) -> float:
        """The rate with the best accuracy on the tuning seed."""
        found: dict[int, float] = {}

        def score(i: int) -> float:
            if i not in found:
                found[i] = self.accuracy(method, epsilon, RATES[i], TUNING_SEED)
            return found[i]

        at = min(range(len(RATES)), key=lambda i: abs(np.log(RATES[i] / METHODS[method][2])))
        while True:
            near = [i for i in (at - 1, at, at + 1) if 0 <= i < len(RATES)]
            best = max(near, key=lambda i: (score(i), i == at))
            if best == at:
                return RATES[at]
            at = best

    def rows(self) -> list[dict[str, Any]]:
        """A row a method and budget."""
        rows = []
        for epsilon, method in track([(e, m) for e in EPSILONS for m in METHODS], "methods"):
            rate = self.tuned(method, epsilon)
            values = [self.accuracy(method, epsilon, rate, seed) for seed in range(self.seeds)]
            rows.append({"method": method, "epsilon": epsilon, "rate": rate, "accuracies": values})
            print(method, epsilon, f"{rate:.3g}", [round(v, 1) for v in values], flush=True)
        return rows


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Markdown."""
    baseline = next(iter(METHODS))
    lines = [
        f"| ε | method | accuracy (%), median and range | gain over {baseline} by seed, 95 % | η |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        values = row["accuracies"]
        base = next(
            r["accuracies"]
            for r in rows
            if r["method"] == baseline and r["epsilon"] == row["epsilon"]
        )
        gain = "" if row["method"] == baseline else _interval(np.subtract(values, base))
        lines.append(
            f"| {row['epsilon']:g} | {row['method']} | {statistics.median(values):.1f} "
            f"({min(values):.1f} to {max(values):.1f}) | {gain} | {row['rate']:.3g} |"
        )
    return lines


def _interval(differences: np.ndarray) -> str:
    mean = differences.mean()
    count = differences.size
    if count < 2:
        return f"{mean:+.1f}"
    half = stats.t.ppf(0.975, count - 1) * differences.std(ddof=1) / count**0.5
    return f"{mean:+.1f} [{mean - half:+.1f}, {mean + half:+.1f}]"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/scaled-blocks"), help="run directories"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the table goes")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="20 rounds, one seed")
    given = parser.parse_args()
    given.runs.mkdir(parents=True, exist_ok=True)
    given.out.mkdir(parents=True, exist_ok=True)
    compared = Comparison(
        given.runs, 20 if given.quick else ROUNDS, 1 if given.quick else given.seeds
    )
    heading = [
        "# Tensors of very different size",
        "",
        (
            f"Softmax regression of {CLASSES} classes on three groups of features of scale 1 : 0.1"
            f" : 0.03, d = {CLASSES * sum(WIDTHS):,},"
        ),
        (
            f"{USERS:,} users with one example each, {compared.rounds} rounds of {COHORT:,}, "
            f"ζ = {CLIP_NORM:g}; rates tuned on a seed of"
        ),
        "their own, by steps of √10, inside their list. [What it means](../jme-adam.md).",
        "",
    ]
    text = "\n".join([*heading, *table(compared.rows())])
    (given.out / "optimizers-scaled-blocks.md").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
