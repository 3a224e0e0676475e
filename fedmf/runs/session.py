"""A session: one process's hold on a run, from opening its directory to its final reports."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch

from fedmf.accounting import PrivacyStatement, RunHeader, build_statement
from fedmf.cohorts import CohortSchedule
from fedmf.errors import ConfigError
from fedmf.noise import NoiseKey
from fedmf.runs.budget import UserBudgets, check_names, read_budgets
from fedmf.runs.config import Config
from fedmf.runs.directory import BUDGETS, RunDirectory
from fedmf.runs.optimizer import server_optimizer
from fedmf.runs.outputs import (
    FEDERATED_ACCURACY,
    FEDERATED_LOSS,
    draw_learning_curve,
    write_metrics,
    write_statement,
)
from fedmf.runs.plan import Plan, cohort_seed, plan_run
from fedmf.runs.server import PrivateServer
from fedmf.runs.tasks import task_of
from fedmf.training import Task

__all__ = ["Session"]


class Session:
    """Configuration, task, plan, directory and private server of one run, opened together.

    Use :meth:`start` for a new run and :meth:`resume` for one that was stopped.
    """

    def __init__(self, task: Task, plan: Plan, directory: RunDirectory, device: str) -> None:
        self.task, self.plan, self.directory = task.to(device), plan, directory
        self.config = directory.config
        optimizer = server_optimizer(self.config, task.model.shapes)
        self.server = PrivateServer(plan, directory, task.model.initial(), optimizer, device)
        self.sums = self.server.sums
        self._budgets = None
        if self.config.user_budgets:
            self._budgets = UserBudgets(plan, read_budgets(directory.path / BUDGETS), directory.ledger)
        self.metrics: dict[int, dict[str, Any]] = directory.ledger.metrics()
        self.evaluate()

    @classmethod
    def start(cls, path: Path, config: Config, task: Task | None = None, device: str = "cpu") -> Self:
        """Plan a run, create its directory and draw its noise key.

        Args:
            path: the run directory; must not exist, or be empty.
            config: what to run.
            task: data and model; default: those the configuration names.
            device: "cpu" or "cuda".

        Raises:
            ConfigError: the configuration cannot be run or the place cannot be used.
        """
        check_device(device)
        task = task or task_of(config)
        if task.dataset.users != config.users:
            raise ConfigError(f"users must be the task's {task.dataset.users}; got {config.users}.")
        plan = plan_run(config, server_optimizer(config, task.model.shapes))
        if config.user_budgets:
            budgets = read_budgets(Path(config.user_budgets).expanduser())
            check_names(budgets, task.dataset.user_ids)
        key = NoiseKey.from_os() if config.noise_seed < 0 else NoiseKey.from_seed(config.noise_seed)
        header = plan.header(key, task.model.dimension).to_dict()
        return cls._opened(
            RunDirectory.create(path, config, plan.participation, key, header), plan, task, device
        )

    @classmethod
    def resume(
        cls, path: Path, config: Config | None = None, task: Task | None = None, device: str = "cpu"
    ) -> Self:
        """Open a stopped run where its ledger ends.

        Args:
            path: its directory.
            config: if given, must describe the same computation as the stored one.
            task: as for ``start``.
            device: as for ``start``.

        Raises:
            ConfigError: not a run directory, or that of another configuration.
            LedgerError: a damaged ledger, or another process is running it.
        """
        check_device(device)
        directory = RunDirectory.open(path)
        try:
            if config is not None and not config.computes_the_same_as(directory.config):
                raise ConfigError(
                    f"{path} holds another run: {directory.config.difference(config)}. "
                    "A run is resumed with its own configuration."
                )
            plan = Plan.from_header(directory.config, directory.ledger.header)
            return cls(task or task_of(directory.config), plan, directory, device)
        except BaseException:
            directory.close()
            raise

    @classmethod
    def _opened(cls, directory: RunDirectory, plan: Plan, task: Task, device: str) -> Self:
        try:
            return cls(task, plan, directory, device)
        except BaseException:
            directory.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.directory.close()

    def cohort_schedule(self) -> CohortSchedule:
        """Who is asked in which round; random cohorts follow from the run's key, also on resuming."""
        return self.config.cohort_schedule(cohort_seed(self.directory.key))

    def admit(self, t: int, users: Sequence[str]) -> list[str]:
        """Those of round t's cohort that may be asked: the others would exceed their own budget."""
        return list(users) if self._budgets is None else self._budgets.admit(t, users)

    def evaluation_due(self, t: int) -> bool:
        """Whether the model after t rounds is evaluated."""
        return t % self.config.evaluate_every == 0 or t in (self.plan.allowed_rounds, self.server.horizon)

    def examples_of(self, users: Sequence[str]) -> int:
        """How many examples these users own together, which is public."""
        dataset = self.task.dataset
        return int(dataset.sizes(dataset.indices(users)).sum())

    def evaluate(self, federated: Mapping[str, float] | None = None) -> dict[str, Any] | None:
        """Evaluate the released model if this round is due and not yet evaluated; returns its metrics.

        Args:
            federated: what a federated evaluation of the same model found; it goes into the same row.
        """
        t = self.server.t
        if self.evaluation_due(t) and t not in self.metrics:
            epsilon = self.plan.epsilon_after(t)
            row = {
                **self.task.evaluate(self.server.parameters),
                "epsilon": epsilon if math.isfinite(epsilon) else None,
                **(federated or {}),
            }
            self.directory.ledger.put_metrics(t, row)
            self.metrics[t] = row
        return self.metrics.get(t)

    def statement(self) -> PrivacyStatement:
        """The privacy statement of what was released so far, computed from the ledger's rows."""
        ledger = self.directory.ledger
        return build_statement(RunHeader.from_dict(ledger.header), ledger)

    def write_reports(self) -> None:
        """Write metrics table and privacy statement into the run directory."""
        further = (FEDERATED_LOSS, FEDERATED_ACCURACY) if self.config.federated_evaluation else ()
        write_metrics(self.directory.path, self.metrics, further)
        write_statement(self.directory.path, self.statement())

    def draw(self) -> None:
        """Draw the learning curve into the run directory, if matplotlib is installed."""
        config = self.config
        title = (
            f"{config.dataset}: {self.plan.mechanism.name}, ε = {config.epsilon:g}"
            if config.private
            else "no noise"
        )
        draw_learning_curve(self.directory.path, self.metrics, title)


def check_device(device: str) -> None:
    """Refuse a CUDA device where there is none."""
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(
            "--device cuda needs an NVIDIA GPU and a CUDA build of torch; none is available here."
        )
