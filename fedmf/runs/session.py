"""A session: one process's hold on a run, from opening its directory to its final reports."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.accounting.rounding import at_least
from fedmf.cohorts import CohortSchedule
from fedmf.data.cells import require_canonical
from fedmf.data.dataset import NumberedUsers
from fedmf.errors import ConfigError
from fedmf.ledger.signals import held_back
from fedmf.noise.key import NoiseKey
from fedmf.optim import ServerOptimizer
from fedmf.release.plan import Plan
from fedmf.release.private_server import PrivateServer
from fedmf.runs.directory import FAILURES, RunDirectory, RunHeader, read_header
from fedmf.runs.kept_releases import kept_releases
from fedmf.runs.outputs import (
    central,
    draw_learning_curve,
    metric_columns,
    shortfall,
    write_metrics,
)
from fedmf.runs.released_model import initial_parameters
from fedmf.runs.run import Run, difference
from fedmf.runs.run_plan import plan_of
from fedmf.runs.run_statement import run_statement
from fedmf.runs.tasks import NamedTask
from fedmf.statements.composition import finite
from fedmf.statements.statement import PrivacyStatement
from fedmf.training import Task, UserFailure, cross_entropy, preflight

_log = logging.getLogger("fedmf")

#: With which the reason of a failed reply begins.
_NODE: Final = re.compile(r"^node -?\d+: ")
#: Cohorts of users that are looked at together until one is full.
_AT_ONCE: Final = 4
#: Of failed contributions, that are logged.
_MOST_REASONS: Final = 5


class Session:
    """A run, its directory and its private server, held by one process, with its task where that is
    known.

    Use :meth:`start` for a new run and :meth:`resume` for one that was stopped, or
    `fedmf.start` and `fedmf.resume`.

    Args:
        run: the run.
        directory: of it, open.
        optimizer: of the run.
        initial: θ_0, shape (d,), float32; a run with releases continues from its checkpoint.
        user_list: ids of all users in their order.
        task: data, model and loss; None where only clients know it, as in a Flower app.
        device: "cpu" or "cuda".
    """

    def __init__(
        self,
        run: Run,
        directory: RunDirectory,
        optimizer: ServerOptimizer,
        initial: Tensor,
        user_list: Sequence[str],
        task: Task | None = None,
        device: str = "cpu",
    ) -> None:
        self.run = run
        self.directory = directory
        self.user_list = user_list
        self._task = None if task is None else task.to(device)
        self.plan: Plan = directory.header.plan
        every = run.execution.checkpoint_every
        if run.execution.keep_releases:
            every = 1
        ledger = directory.ledger
        key = directory.key
        kept = kept_releases(directory, initial)
        self.server = PrivateServer(self.plan, ledger, key, initial, optimizer, device, every, kept)
        self.server.restore()
        self.sums = self.server.sums
        self.metrics: dict[int, dict[str, Any]] = directory.ledger.metrics()
        self._schedule = self.cohort_schedule()
        self._told = set[str]()
        #: Before each warning: which of several runs it means.
        self.label = ""

    @property
    def task(self) -> Task:
        """Data, model, loss and metrics.

        Raises:
            ConfigError: only clients know it.
        """
        return self.run.task_source.build() if self._task is None else self._task

    @classmethod
    @torch.inference_mode(False)
    def start(cls, path: Path, run: Run, device: str = "cpu") -> Self:
        """Plan a run, create its directory and draw its noise key.

        Args:
            path: the run directory; must not exist, or be empty.
            run: what to run.
            device: "cpu" or "cuda".

        Raises:
            ConfigError: the run cannot be executed or the place cannot be used; nothing is left
                there.
        """
        check_device(device)
        task = run.task_source.build()
        if task.dataset.users != run.task_source.users:
            raise ConfigError(
                f"users must be the task's {task.dataset.users}; got {run.task_source.users}."
            )
        preflight(task.to(device), run.client)
        _from_file(run, task)  # only to check it
        optimizer = run.optimizer_source.build(task.model.shapes, run.cohorts.rounds)
        flat = task.model
        model = {"arrays": flat.arrays, "tied": flat.tied, "constants": task.constant_inputs()}
        dataset = task.dataset
        plan = plan_of(run, optimizer, task.model.dimension)
        directory = created(
            path, run, plan, dataset.user_ids, test_owner=dataset.test_owner, **model
        )
        return cls._opened(run, task, optimizer, directory, device)

    @classmethod
    @torch.inference_mode(False)
    def resume(cls, path: Path, run: Run | None = None, device: str = "cpu") -> Self:
        """Open a stopped run where its ledger ends.

        Args:
            path: its directory.
            run: if given, must compute the same as the stored one; needed where objects of the
                user's own are in it.
            device: as for ``start``.

        Raises:
            ConfigError: not a run directory, that of another run, or behind what this machine has
                seen of it.
            LedgerError: a damaged ledger, or another process is running it.
        """
        check_device(device)
        stored = read_header(path).run
        if run is None:
            run = Run.from_dict(stored)
        else:
            require_same(path, stored, run)
        task = run.task_source.build()
        optimizer = run.optimizer_source.build(task.model.shapes, run.cohorts.rounds)
        directory = RunDirectory.open(path)
        return cls._opened(run, task, optimizer, directory, device)

    @classmethod
    def _opened(
        cls, run: Run, task: Task, optimizer: ServerOptimizer, directory: RunDirectory, device: str
    ) -> Self:
        if task.dataset.has_examples and not len(task.dataset.test_labels):
            _log.warning(
                "no test examples: loss and accuracy are not computed; give the data set test rows"
            )
        with contextlib.ExitStack() as held:
            held.enter_context(directory)
            initial = _initial(run, task, directory)
            session = cls(run, directory, optimizer, initial, task.dataset.user_ids, task, device)
            session.evaluate()
            held.pop_all()
        return session

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Keep the state after the last round, whatever ended the run, and let another process
        continue.
        """
        with held_back():
            with contextlib.suppress(Exception):  # what ended the run is what should be seen
                self.server.keep_state()
            self.directory.close()

    @property
    def standing(self) -> str:
        """Where earlier processes left the run, in a sentence; empty for a new one."""
        t = self.server.t
        horizon = self.server.horizon
        if t < horizon:
            return f"Continues after round {t} of {horizon}." if t else ""
        return (
            f"Finished before: all {horizon} rounds are released. A new run needs another"
            " directory."
        )

    def cohort_schedule(self) -> CohortSchedule:
        """Who is asked in which round; random cohorts follow from the run's key, also on
        resuming.
        """
        return self.run.schedule(self.directory.key.cohort_seed())

    def cohort(
        self,
        t: int,
        connected: Callable[[NDArray[np.int64]], Sequence[bool]] = lambda users: (
            [True] * users.size
        ),
    ) -> dict[int, str]:
        """Who is asked in round t, ids by index.

        Of `AvailableCohorts` they are the first m of the round's order that are connected and that
        the contract admits; all of these if they are fewer.

        Args:
            t: 0-based round.
            connected: which users, given by index, are there now; asked for such cohorts alone.
        """
        schedule = self._schedule
        size = self.plan.users_per_round
        users = schedule.cohort(t)
        if not schedule.is_order:
            return {user: self.user_list[user] for user in map(int, users)}
        admits = self.directory.ledger.histories.admits
        chosen: dict[int, str] = {}
        for start in range(0, users.size, _AT_ONCE * size):
            part = users[start : start + _AT_ONCE * size]
            there = map(int, part[np.array(connected(part), dtype=bool)])
            chosen |= {
                user: self.user_list[user] for user in there if admits(self.user_list[user], t)
            }
            if len(chosen) >= size:
                break
        return dict(list(chosen.items())[:size])

    def evaluate(self) -> dict[str, Any] | None:
        """Make the row of metrics of the released model, if this round is due and has none.

        It has what the central test part says, where the task is known here, ε so far, and what
        statistics released. A process that died before it was made is made up for by the next call.

        Returns:
            The row.
        """
        t = self.server.t
        due = t % self.run.execution.evaluate_every == 0 or t == self.server.horizon
        if due and t not in self.metrics:
            row = (
                dict[str, Any]()
                if self._task is None
                else self._task.evaluate(self.server.parameters)
            )
            row = {central(name, self.task.dataset): value for name, value in row.items()}
            row["epsilon"] = finite(self.plan.epsilon_after(t))
            for statistic in self.run.statistics:
                row |= statistic.metrics(self.server.statistics[statistic.name])
            self.directory.ledger.put_metrics(t, row)
            self.metrics[t] = row
            self._warn_of_shortfall()
        return self.metrics.get(t)

    def judge(self, metrics: Mapping[str, Any]) -> None:
        """Add the numbers that an app's evaluation says of the released model to its row of
        metrics.
        """
        t = self.server.t
        said = {
            name: float(value) for name, value in metrics.items() if isinstance(value, int | float)
        }
        self.metrics[t] = {**said, **self.metrics.get(t, {})}
        self.directory.ledger.put_metrics(t, self.metrics[t])
        self._warn_of_shortfall()

    def _warn_of_shortfall(self) -> None:
        """Log once if the model diverged, or is no better than guessing, on a public test part."""
        classes = self._task is not None and self._task.loss is cross_entropy
        labels = (
            self._task.dataset.test_labels.cpu().numpy()
            if self._task is not None and classes
            else None
        )
        line = shortfall(self.metrics, self.server.horizon, labels)
        if line is not None and "shortfall" not in self._told:
            self._told.add("shortfall")
            _log.warning("%s%s", self.label, line)

    def note_failures(self, t: int, failures: Sequence[UserFailure], present: int = 0) -> None:
        """Keep for the operator which users failed in round t (0-based), in a secret file.

        If most contributions of a round failed, two at least, the most frequent reason is logged,
        once for each reason. One user's failure is not logged unless the run has no privacy.

        Args:
            t: of the round.
            failures: in it.
            present: how many contributed.
        """
        self.directory.note_failures(t, failures)
        reasons = Counter(_NODE.sub("", failure.reason) for failure in failures if failure.user)
        failed = reasons.total()
        most = failed > 1 and 2 * failed > present > 0
        if not (most or (failed and not self.run.is_private)):
            return
        reason = reasons.most_common(1)[0][0]
        if reason not in self._told and len(self._told) < _MOST_REASONS:
            self._told.add(reason)
            path = self.directory.path
            spent = at_least(self.plan.epsilon_after(t + 1), 4)
            _log.warning(
                f"{self.label}round {t + 1}: {failed} of {present} contributions could not be used"
                f" and count as zero: {reason.removesuffix('.')}. Invalid replies never stop a run,"
                f" and each round spends epsilon ({spent} so far). Stop it (Ctrl-C or flwr stop),"
                f" fix the clients and start it again: it continues in {path} or, if its nodes were"
                " simulated, starts in another directory with an epsilon of its own. All reasons"
                f" are in {path / FAILURES} (secret)."
            )

    def statement(self) -> PrivacyStatement:
        """The privacy statement of what was released so far, from rows that were whole when
        opened.
        """
        return run_statement(self.directory.header, self.directory.ledger)

    def write_reports(self) -> None:
        """Write metrics table and privacy statement into the run directory.

        Raises:
            ConfigError: the disk failed.
        """
        try:
            columns = metric_columns(self._task, self.run.statistics)
            write_metrics(self.directory.path, self.metrics, columns)
            self.statement().write(self.directory.path)
        except OSError as error:
            raise ConfigError(
                f"cannot write the reports of {self.directory.path}: {error.strerror}. All releases"
                " are recorded; resume the run to write the reports."
            ) from None

    def draw(self) -> None:
        """Draw the learning curve into the run directory, if matplotlib is installed and the task
        is here.
        """
        if self._task is None:
            return
        epsilon = self.run.privacy.requested_epsilon
        title = (
            "no noise"
            if epsilon is None
            else f"{self.plan.mechanism.name}, ε = {at_least(epsilon)}"
        )
        draw_learning_curve(self.directory.path, self.metrics, title, self._task)


def created(
    path: Path,
    run: Run,
    plan: Plan,
    user_list: Sequence[str],
    save_whole: Callable[[Path], None] | None = None,
    **model: Any,
) -> RunDirectory:
    """The directory of a new run, with a noise key that is drawn for it.

    Args:
        path: where; must not exist, or be empty.
        run: what to run.
        plan: made for it.
        user_list: ids of all users.
        save_whole: as `RunDirectory.create`.
        model: what `RunHeader.of` wants to know of it.

    Raises:
        ConfigError: the place cannot be used.
        ValueError: ids that are not as `canonical_id` writes them.
    """
    if not isinstance(user_list, NumberedUsers):
        require_canonical(user_list)
    seed = run.privacy.noise_seed
    key = NoiseKey.from_os() if seed is None else NoiseKey.from_seed(seed)
    return RunDirectory.create(path, run, RunHeader.of(run, plan, key, **model), key, save_whole)


def require_same(path: Path, stored: Mapping[str, Any], run: Run) -> None:
    """Refuse to continue the run that a directory has stored with another.

    Raises:
        ConfigError: it computes something else than the run that is there.
    """
    other = difference(stored, run.to_dict())
    if other is not None:
        hint = (
            " Call torch.manual_seed before your module is created."
            if "task.parameters" in other
            else ""
        )
        raise ConfigError(
            f"{path} holds another run: {other}. Choose another directory for a new run; to"
            f" continue the one there, give it the values with which it began.{hint}"
        )


def check_device(device: str) -> None:
    """Refuse a CUDA device where there is none."""
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(
            "--device cuda needs an NVIDIA GPU and a CUDA build of torch; none is available here."
        )


def _from_file(run: Run, task: Task) -> Tensor | None:
    """θ_0 from the file that a run names, where it names one.

    Raises:
        ConfigError: the file cannot be used.
    """
    source = run.task_source
    if not isinstance(source, NamedTask) or not source.model.initial:
        return None
    return initial_parameters(Path(source.model.initial).expanduser(), task.model)


def _initial(run: Run, task: Task, directory: RunDirectory) -> Tensor:
    """θ_0: the model's own, or from the file; a run with releases continues from its checkpoint.

    Raises:
        ConfigError: the file cannot be used; or it, the users or the frozen arrays differ from the
            start's.
    """
    given = None if directory.ledger.released else _from_file(run, task)
    known = [*task.constant_inputs(), *(() if given is None else run.task_source.public_inputs())]
    for entry in map(dataclasses.asdict, known):
        if entry not in directory.header.public_inputs:
            raise ConfigError(
                f"{entry['name']} (of the task) must be what the run began with; got"
                f" {entry['value']}."
            )
    return task.model.initial() if given is None else given
