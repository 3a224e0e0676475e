"""The workload as a real run of fedmf: messages, clip, exact sum, correlated noise, durable commits.

Prints the seconds of each round as JSON. With ``--profile N`` it prints the N costliest functions of the
rounds after the warm-up instead, by processor time; set OMP_NUM_THREADS=1 then, so that there is one thread.
"""

from __future__ import annotations

import argparse
import cProfile
import dataclasses
import json
import pstats
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import workload

import fedmf
from fedmf.accounting.gaussian.calibration import gaussian_epsilon
from fedmf.data.memory import InMemoryDataset
from fedmf.runs.run import Run
from fedmf.runs.tables.configuration import run_of
from fedmf.training.kinds import classification
from fedmf.training.task import Task


def task(model: str) -> Task:
    """The workload's data and model."""
    features, labels = workload.users_data()
    test_features, test_labels = workload.examples(workload.TESTS, seed=1)
    dataset = InMemoryDataset(
        features=features,
        labels=labels,
        owned=tuple(np.arange(features.shape[0]).reshape(workload.USERS, -1)),
        user_ids=tuple(f"user-{u:03d}" for u in range(workload.USERS)),
        test_features=test_features,
        test_labels=test_labels,
        classes=workload.CLASSES,
    )
    return classification(dataset, workload.build(model))


def described(mechanism: str, local_engine: str, task: Task) -> Run:
    """The workload's numbers; ε is the one that makes the noise multiplier 1."""
    run = run_of(
        {
            "data": {"users": workload.USERS},
            "cohorts": {"size": workload.COHORT, "rounds": workload.WARM_UP + workload.ROUNDS},
            "mechanism": {"kind": mechanism, **({"bands": 4} if mechanism == "bisr" else {})},
            "privacy": {
                "epsilon": gaussian_epsilon(workload.NOISE_MULTIPLIER, workload.DELTA),
                "delta": workload.DELTA,
                "clip-norm": workload.CLIP_NORM,
            },
            "local": {
                "batch-size": workload.BATCH,
                "learning-rate": workload.LEARNING_RATE,
                "engine": local_engine,
            },
            "optimizer": {"learning-rate": 1.0, "momentum": 0.0},
            "execution": {"evaluate-every": 10**6},
        }
    )
    return dataclasses.replace(run, task=task)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=workload.MODELS, required=True)
    parser.add_argument("--mechanism", choices=("identity", "bisr"), default="bisr")
    parser.add_argument("--local-engine", default="auto")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--profile", type=int, default=0)
    options = parser.parse_args()
    seconds: list[float] = []
    profile = cProfile.Profile(time.process_time)

    from fedmf.rounds import RoundReport, run_in_process  # users' training alone is timed in older trees too

    def note(report: RoundReport, _row: Mapping[str, Any] | None) -> None:
        assert report.present == workload.COHORT
        assert not report.failures
        seconds.append(report.seconds)
        if options.profile and report.t == workload.WARM_UP - 1:
            profile.enable()
        elif report.t == workload.WARM_UP + workload.ROUNDS - 1:
            profile.disable()

    run = described(options.mechanism, options.local_engine, task(options.model))
    with (
        tempfile.TemporaryDirectory() as folder,
        fedmf.start(run, Path(folder) / "run", options.device) as session,
    ):
        run_in_process(session, note)
    if options.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(options.profile)
    else:
        print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main()
