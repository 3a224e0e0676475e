"""Runs whose clip norm follows a quantile, on users whose updates do not depend on the model."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import torch
from flwr.app import Message

from fedmf.runs.run import Run
from fedmf.runs.session import Session
from fedmf.runs.statistics import QuantileClipping
from fedmf.training import LocalTrainer, Task
from support.small_runs import client_for, linear_task, run_small, small_run, watched

ROUNDS = 12
USERS = 24
RULE = QuantileClipping(quantile=0.4, learning_rate=0.8, rounds_per_update=1, budget_share=0.25)


def uneven_task(dimension: int) -> Task:
    """Users whose updates point anywhere; their norms reach from 0.01 to 10, evenly in the
    logarithm.
    """
    task = linear_task(USERS, dimension)
    features = task.dataset.features.double()
    norms = np.random.default_rng(3).permutation(np.geomspace(0.01, 10.0, USERS))
    scaled = features / features.norm(dim=1, keepdim=True) * torch.from_numpy(norms)[:, None]
    return dataclasses.replace(
        task, dataset=dataclasses.replace(task.dataset, features=scaled.float())
    )


def moving_run(task: Task, rule: QuantileClipping = RULE, **named: object) -> Run:
    """The small run with a server that adds what is released, and this rule."""
    named = {
        "server_momentum": 0.0,
        "server_learning_rate": 1.0,
        "local_learning_rate": 1.0,
        **named,
    }
    return dataclasses.replace(small_run(task, **named), clipping=rule)


def updates_of(run: Run, task: Task) -> np.ndarray:
    """What each user sends before it is clipped, shape (users, d); the same in every round."""
    ids = [str(user) for user in task.dataset.user_ids]
    trainer = LocalTrainer(task, run.client)
    updates = trainer.updates(task.model.initial(), ids, 0)  # type: ignore[attr-defined]
    return updates.double().numpy()


@dataclasses.dataclass
class Watched:
    """What clients were sent: models θ_t, shape (n + 1, d), and clip norms ζ_t; and the cohorts."""

    models: np.ndarray
    norms: np.ndarray
    cohorts: list[list[int]]

    @property
    def increments(self) -> np.ndarray:
        return np.diff(self.models, axis=0)

    def clipped_sums(self, updates: np.ndarray) -> np.ndarray:
        """Σ_u x_u·min(1, ζ_t/‖x_u‖) of each round."""
        lengths = np.linalg.norm(updates, axis=1)
        rows = []
        for cohort, zeta in zip(self.cohorts, self.norms, strict=True):
            factor = np.minimum(1.0, zeta / lengths[cohort])
            rows.append((updates[cohort] * factor[:, None]).sum(axis=0))
        return np.stack(rows)

    def signs(self, updates: np.ndarray) -> np.ndarray:
        """Σ_u s_u of each round."""
        lengths = np.linalg.norm(updates, axis=1)
        return np.array(
            [
                np.where(lengths[cohort] <= zeta, 1, -1).sum()
                for cohort, zeta in zip(self.cohorts, self.norms, strict=True)
            ]
        )


def watch(path: Path, run: Run) -> Watched:
    """Carry a run out and keep what its clients saw."""
    models: dict[int, np.ndarray] = {}
    norms: dict[int, float] = {}
    cohorts: dict[int, list[int]] = {}

    def note(message: Message) -> None:
        if message.metadata.message_type == "train":
            config = message.content.config_records["config"]
            t = int(str(config["round"]))
            models[t] = message.content.array_records["arrays"]["parameters"].numpy().copy()
            norms[t] = float(str(config["clip-norm"]))
            asked = [int(user[1:]) for user in config["users"]]  # type: ignore[union-attr]
            cohorts.setdefault(t, []).extend(asked)

    def client(session: Session):  # type: ignore[no-untyped-def]
        return watched(client_for(session), note)

    final = run_small(path, run, client)
    shown = np.stack([*(models[t] for t in range(ROUNDS)), final]).astype(np.float64)
    return Watched(
        shown, np.array([norms[t] for t in range(ROUNDS)]), [cohorts[t] for t in range(ROUNDS)]
    )
