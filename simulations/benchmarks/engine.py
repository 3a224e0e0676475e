"""Users trained per second: whole rounds of fedmf against a plain PyTorch loop, on one workload.

    python simulations/benchmarks/engine.py [--models logistic lora mlp cnn] [--repeats R] [--json]

500 users with 20 examples of 1×28×28 each (noisy class prototypes, 10 classes), cohorts of 50 in turn, one
local epoch in batches of 10, learning rate 0.1, clip norm 1, noise multiplier 1, 20 rounds after 3 warm-up.
A round of fedmf includes messages, clip, exact sum, correlated noise and a durable commit; the loop trains,
clips and adds independent noise. Set OMP_NUM_THREADS=1 to compare on one thread.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import fedmf
from fedmf.accounting.gaussian import gaussian_epsilon
from fedmf.data import InMemoryDataset
from fedmf.models import with_lora
from fedmf.optim import Sgd
from fedmf.runs import RoundRecord, run_in_process
from fedmf.training import Task, classification

USERS, EXAMPLES, CLASSES, COHORT, BATCH = 500, 20, 10, 50, 10
LEARNING_RATE, CLIP_NORM, NOISE_MULTIPLIER, DELTA = 0.1, 1.0, 1.0, 1e-5
WARM_UP, ROUNDS = 3, 20


def examples(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noisy class prototypes: features of shape (count, 1, 28, 28) and labels."""
    prototypes = torch.randn(CLASSES, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1 + seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return prototypes[labels] + torch.randn(count, 1, 28, 28, generator=generator), labels


def logistic() -> nn.Module:
    """784-10: 7,850 parameters."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, CLASSES))


def lora() -> nn.Module:
    """784-128-10, frozen, with adapters of rank 8 on the last layer: 1,104 trained parameters."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, CLASSES))
    return with_lora(module, rank=8, alpha=8.0, targets=["3"])


def mlp() -> nn.Module:
    """784-128-64-10: 109,386 parameters."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, CLASSES)
    )


def cnn() -> nn.Module:
    """conv16-pool-conv32-pool-fc128-fc10 with 3×3 kernels and padding 1: 206,922 parameters."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, CLASSES)),
    )


MODELS: dict[str, Callable[[], nn.Module]] = {"logistic": logistic, "lora": lora, "mlp": mlp, "cnn": cnn}


def build(model: str) -> nn.Module:
    """A model with its initial parameters."""
    torch.manual_seed(0)
    return MODELS[model]()


def task(model: str) -> Task:
    """The workload's data and model."""
    features, labels = examples(USERS * EXAMPLES, seed=0)
    owned = tuple(np.arange(len(features)).reshape(USERS, -1))
    names = tuple(f"user-{u:03d}" for u in range(USERS))
    dataset = InMemoryDataset(features, labels, owned, names, *examples(100, seed=1), CLASSES)
    return classification(dataset, build(model))


def fedmf_rounds(model: str, mechanism: str) -> list[float]:
    """Seconds of each round of a run."""
    spent: list[float] = []
    run = fedmf.Run(
        task=task(model),
        cohorts=fedmf.CyclicCohorts(rounds=WARM_UP + ROUNDS, users_per_round=COHORT),
        privacy=fedmf.UserLevel(
            clip_norm=CLIP_NORM, epsilon=gaussian_epsilon(NOISE_MULTIPLIER, DELTA), delta=DELTA
        ),
        client=fedmf.LocalSGD(batch_size=BATCH, learning_rate=LEARNING_RATE),
        mechanism=mechanism,
        server=Sgd(learning_rate=1.0),
    )
    run = dataclasses.replace(run, execution=dataclasses.replace(run.execution, evaluate_every=10**6))

    def note(record: RoundRecord) -> None:
        report = record.report
        assert report is not None
        assert report.present == COHORT, report
        assert not report.failures, report.failures[:1]
        spent.append(report.seconds)

    with tempfile.TemporaryDirectory() as folder, fedmf.start(run, Path(folder) / "run") as session:
        run_in_process(session, note)
    return spent


def loop_rounds(model: str) -> list[float]:
    """Seconds of each round in plain PyTorch: user after user, clipping, Gaussian noise."""
    features, labels = examples(USERS * EXAMPLES, seed=0)
    module, spent = build(model), list[float]()
    parameters = [p for p in module.parameters() if p.requires_grad]
    for t in range(WARM_UP + ROUNDS):
        begun = time.perf_counter()
        start = nn.utils.parameters_to_vector(parameters).detach().clone()
        total = torch.zeros_like(start)
        first = t % (USERS // COHORT) * COHORT
        for user in range(first, first + COHORT):
            nn.utils.vector_to_parameters(start.clone(), parameters)
            optimizer = torch.optim.SGD(parameters, lr=LEARNING_RATE)
            for rows in (user * EXAMPLES + torch.randperm(EXAMPLES)).split(BATCH):
                optimizer.zero_grad()
                nn.functional.cross_entropy(module(features[rows]), labels[rows]).backward()
                optimizer.step()
            update = nn.utils.parameters_to_vector(parameters).detach() - start
            total += update * min(1.0, CLIP_NORM / float(update.norm()))
        total += torch.randn_like(total) * (NOISE_MULTIPLIER * CLIP_NORM)
        nn.utils.vector_to_parameters(start + total / COHORT, parameters)
        spent.append(time.perf_counter() - begun)
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--repeats", type=int, default=3, help="interleaved passes; the median round counts")
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    options = parser.parse_args()
    engines: dict[str, Callable[[str], list[float]]] = {
        "plain PyTorch loop": loop_rounds,
        "fedmf, identity": lambda model: fedmf_rounds(model, "identity"),
        "fedmf, bisr": lambda model: fedmf_rounds(model, "bisr"),
    }
    for model in options.models:
        seconds: dict[str, list[float]] = {name: [] for name in engines}
        for _ in range(options.repeats):
            for name, rounds in engines.items():
                seconds[name] += rounds(model)[WARM_UP:]
        rates = {name: COHORT / statistics.median(spent) for name, spent in seconds.items()}
        for name, rate in rates.items():
            row = {
                "name": f"{model}: {name}",
                "value": rate,
                "unit": "users/s",
                "baseline": next(iter(rates)),
            }
            row["ratio"] = rate / rates["plain PyTorch loop"]
            text = f"{row['name']:<34}{rate:>10,.0f} users/s   {row['ratio']:6.2f} x the loop"
            print(json.dumps(row) if options.json else text, flush=True)


if __name__ == "__main__":
    main()
