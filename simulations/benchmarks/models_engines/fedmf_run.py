"""A workload as a real run of fedmf: messages, clip, exact sum, Gaussian noise, durable commits.

Prints the seconds of each round as JSON. With ``--products`` it prints instead which share of the time of a
group's gradients is spent in products of matrices, convolutions and attention, on one thread.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import workload

import fedmf
from fedmf.accounting.gaussian.calibration import gaussian_epsilon
from fedmf.data.memory import InMemoryDataset
from fedmf.rounds import RoundReport, run_in_process
from fedmf.runs.run import Run
from fedmf.runs.tables.configuration import run_of
from fedmf.training.batches import groups_of
from fedmf.training.gradients import Accumulation, Batch, aligned_empty
from fedmf.training.kinds import classification, next_token
from fedmf.training.local import LocalTrainer
from fedmf.training.task import Task

PRODUCTS = (
    "mm",
    "addmm",
    "addmm_",
    "bmm",
    "baddbmm",
    "baddbmm_",
    "mkldnn_convolution",
    "convolution_backward",
)
ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"


def task(chosen: workload.Workload) -> Task:
    """The workload's data and model."""
    features, labels = chosen.data()
    dataset = InMemoryDataset(
        features=features,
        labels=labels,
        owned=tuple(np.arange(len(features)).reshape(workload.USERS, -1)),
        user_ids=tuple(f"user-{u:03d}" for u in range(workload.USERS)),
        test_features=features[:10],
        test_labels=labels[:10],
        classes=0 if chosen.positions else chosen.classes,
    )
    if chosen.positions:
        return next_token(dataset, chosen.made(), chosen.classes)
    return classification(dataset, chosen.made())


def described(chosen: workload.Workload, local_engine: str) -> Run:
    """The workload's numbers; ε is the one that makes the noise multiplier 1."""
    run = run_of(
        {
            "data": {"users": workload.USERS},
            "cohorts": {"size": workload.COHORT, "rounds": workload.WARM_UP + workload.ROUNDS},
            "mechanism": {"kind": "identity"},
            "privacy": {
                "epsilon": gaussian_epsilon(workload.NOISE_MULTIPLIER, workload.DELTA),
                "delta": workload.DELTA,
                "clip-norm": workload.CLIP_NORM,
            },
            "local": {
                "batch-size": chosen.batch,
                "learning-rate": workload.LEARNING_RATE,
                "engine": local_engine,
            },
            "optimizer": {"learning-rate": 1.0, "momentum": 0.0},
            "execution": {"evaluate-every": 10**6},
        }
    )
    return dataclasses.replace(run, task=task(chosen))


def rounds(run: Run) -> list[float]:
    """Seconds of each round."""
    seconds: list[float] = []

    def note(report: RoundReport, _row: Mapping[str, Any] | None) -> None:
        assert report.present == workload.COHORT
        assert not report.failures
        seconds.append(report.seconds)

    with tempfile.TemporaryDirectory() as folder, fedmf.start(run, Path(folder) / "run", "cpu") as session:
        run_in_process(session, note)
    return seconds


def share_of_products(chosen: workload.Workload) -> float:
    """Share of the processor's time within the gradients of a group that products take."""
    run = described(chosen, "auto")
    assert run.task is not None
    trainer = LocalTrainer(run.task, run.local)
    sizes = np.full(workload.COHORT, chosen.examples)
    _, members = next(groups_of(sizes, chosen.batch, 1, trainer._grouping.most))
    users, origin = members.size, run.task.model.initial()
    features, labels = (part.unflatten(0, (users, -1))[:, : chosen.batch] for part in chosen.data(users))
    batch = Batch(features, labels, torch.full((users, chosen.batch), 1.0 / chosen.batch))
    models = aligned_empty(origin, users, origin.numel()).copy_(origin)
    into = Accumulation(models, models, beta=1.0, alpha=-0.001)
    gradient = trainer._workers.of_thread
    torch.set_num_threads(1)
    with torch.no_grad():
        gradient.accumulate(batch, into)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            for _ in range(10):
                gradient.accumulate(batch, into)
    spent = {event.key.removeprefix("aten::"): event.self_cpu_time_total for event in profile.key_averages()}
    products = sum(time for name, time in spent.items() if name in PRODUCTS or name.startswith(ATTENTION))
    return products / sum(spent.values())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=workload.WORKLOADS, required=True)
    parser.add_argument("--local-engine", default="auto")
    parser.add_argument("--products", action="store_true")
    options = parser.parse_args()
    chosen = workload.WORKLOADS[options.model]
    if options.products:
        print(json.dumps({"share": share_of_products(chosen)}))
    else:
        print(json.dumps({"seconds": rounds(described(chosen, options.local_engine))}))


if __name__ == "__main__":
    main()
