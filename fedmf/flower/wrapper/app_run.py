"""The private server of somebody's own Flower app: plan, directory, noise, commits, statement."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from flwr.app import ArrayRecord
from torch import Tensor

from fedmf.accounting import DifferentialPrivacy, Verdict
from fedmf.errors import ConfigError
from fedmf.flower.wrapper.app_task import FlowerAppTask
from fedmf.flower.wrapper.execution import as_performed
from fedmf.flower.wrapper.layout import ArrayLayout
from fedmf.noise import NoiseKey
from fedmf.runs import (
    LEDGER,
    PrivateEvaluation,
    PrivateServer,
    Run,
    RunDirectory,
    UserBudgets,
    difference,
    plan_run,
    read_header,
    write_statement,
)
from fedmf.statements import PrivacyStatement, build_statement
from fedmf.training import UserFailure


class AppRun:
    """An open run whose task only its clients know; use `open`.

    Args:
        run: what is run.
        directory: its open directory.
        initial: θ_0, shape (d,), float32.
        layout: of the arrays it is made of.
    """

    def __init__(self, run: Run, directory: RunDirectory, initial: Tensor, layout: ArrayLayout) -> None:
        self.run, self.directory, self.plan = run, directory, directory.header.plan
        self.layout = layout
        optimizer = run.optimizer_source.build(layout.trained_shapes, run.cohorts.rounds)
        self.server = PrivateServer(self.plan, directory, initial, optimizer, storage=run.noise.storage)
        seed = directory.key.cohort_seed()
        self.evaluator = directory.evaluator(self.server.t)
        self._schedule = run.cohorts.schedule(self.plan.users, self.plan.participation, seed)
        self._budgets = None
        if isinstance(run.privacy, DifferentialPrivacy) and run.privacy.user_budgets:
            self._budgets = UserBudgets(self.plan, directory.budgets(), directory.ledger)

    @classmethod
    def open(cls, path: Path, run: Run, task: FlowerAppTask, initial: Tensor, lasting: bool) -> Self:
        """Begin a run, or go on with the one that is there.

        Args:
            path: its directory.
            run: what to run.
            task: of the run.
            initial: θ_0.
            lasting: whether users are recognised when nodes come back.

        Raises:
            ConfigError: the place holds another run, or one that cannot be continued.
            LedgerError: a damaged ledger, or another process is running it.
        """
        layout = task.layout
        if (path / LEDGER).is_file():
            other = difference(as_performed(read_header(path).run), run.to_dict())
            if other is not None:
                raise ConfigError(f"{path} holds another run: {other}. Continue it with its own values.")
            if not lasting:
                raise ConfigError(
                    f"{path} holds a run whose users are virtual nodes, which are others after a restart: it "
                    "cannot go on. Use EnrolledUsers, or user_id_mod in the client app and UsersSayWho."
                )
            directory = RunDirectory.open(path)
        else:
            optimizer = run.optimizer_source.build(layout.trained_shapes, run.cohorts.rounds)
            plan = plan_run(run, optimizer, initial.numel(), task.ranges)
            seed = run.privacy.noise_seed
            key = NoiseKey.from_os() if seed is None else NoiseKey.from_seed(seed)
            arrays = tuple((name, shape) for name, shape, _ in layout.trained)
            directory = RunDirectory.create(
                path, run, plan, key, initial.numel(), arrays=arrays, save_whole=layout.whole.save
            )
        try:
            return cls(run, directory, initial, layout)
        except BaseException:
            directory.close()
            raise

    @property
    def arrays(self) -> ArrayRecord:
        """The released model."""
        return self.layout.record(self.server.parameters)

    def cohort(self, t: int, roster: Sequence[str]) -> list[str]:
        """The users to be asked in round t (0-based), those left out who would exceed their budget."""
        planned = [roster[int(user)] for user in self._schedule.cohort(t)]
        admitted = self.directory.admission.admit(t, planned)
        return admitted if self._budgets is None else self._budgets.admit(t, admitted)

    def judges(self, e: int, roster: Sequence[str]) -> list[str]:
        """The users whom private evaluation e asks, those left out whose own budget forbids it."""
        asked, evaluator = self.run.evaluation, self.evaluator
        assert isinstance(asked, PrivateEvaluation)
        assert evaluator is not None
        planned = [roster[user] for user in asked.judges(evaluator.plan, self.plan.users, e)]
        users = self.directory.admission.remaining(planned)
        return users if self._budgets is None else self._budgets.judges(users)

    def note_parts(self) -> None:
        """Keep what parts released in the last round for the statement."""
        if noted := self.server.noted():
            self.directory.ledger.put_metrics(self.server.t, noted)

    def note_failures(self, t: int, failures: Sequence[UserFailure]) -> None:
        """Keep for the operator who failed in round t, in a secret file."""
        self.directory.note_failures(t, failures)

    def statement(self) -> PrivacyStatement:
        """Of what was released so far."""
        records = self.directory.header, self.directory.ledger, self.directory.own_records
        return replace(build_statement(*records), verdict=Verdict())

    def write_statement(self) -> None:
        """Into the run directory."""
        write_statement(self.directory.path, self.statement())

    def close(self) -> None:
        """Let another process have the directory."""
        self.directory.close()


def new_place() -> Path:
    """A directory that no run has."""
    name = f"flower-{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 10**6:06d}"
    return Path.home() / ".fedmf" / "runs" / name
