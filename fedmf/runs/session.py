"""A session: a run opened by one process, from its directory to its final reports."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
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
from fedmf.data.row_counts import OPERATOR
from fedmf.errors import ConfigError
from fedmf.ledger.durable_files import write_durably
from fedmf.ledger.signals import held_back
from fedmf.noise.key import NoiseKey
from fedmf.optim import ServerOptimizer
from fedmf.release.plan import Plan
from fedmf.release.private_server import PrivateServer
from fedmf.runs.directory import FAILURES, SCHEMA, RunDirectory, RunHeader, read_header
from fedmf.runs.kept_releases import released_integers
from fedmf.runs.model_layout import ModelLayout
from fedmf.runs.outputs import (
    central,
    draw_learning_curve,
    metric_columns,
    shortfall,
    write_metrics,
    write_quality,
)
from fedmf.runs.released_model import initial_parameters
from fedmf.runs.run import Run, first_difference
from fedmf.runs.run_plan import plan_of
from fedmf.runs.run_statement import run_statement
from fedmf.runs.statistics import ClientMetric
from fedmf.runs.tasks import NamedTask
from fedmf.statements.composition import finite
from fedmf.statements.statement import PrivacyStatement
from fedmf.training import Task, UserFailure, cross_entropy, preflight
from fedmf.training.final_metrics import final_metrics

_log = logging.getLogger("fedmf")

#: Words of logs about failures in a stage; reasons may hold text of users or of their code.
_FAULTS: Final = {
    "sizes": "examples could not be counted",
    "loading": "examples could not be loaded",
    "training": "training failed",
    "update": "updates hold NaN or infinity (learning rate too large?), or could not be clipped",
    "held-out": "metrics on held-out examples could not be computed",
    "reply": "replies could not be used",
}
#: Users of an order are tried in blocks of this many cohorts, until the cohort is full.
_COHORTS_PER_BLOCK: Final = 4
#: The most users of a round who are named as absent.
_MOST_NAMES: Final = 20
#: The most reasons of failed contributions that are logged.
_MOST_REASONS: Final = 5
#: Seconds between two counts of arrivals, and how many times as long as a count takes, at least.
_BETWEEN_COUNTS: Final = 5.0
_TIMES_A_COUNT: Final = 50


class Session:
    """A run, its directory and its private server, opened by one process.

    Use :meth:`start` for a new run and :meth:`resume` for one that was stopped, or
    `fedmf.start` and `fedmf.resume`.

    Args:
        run: the run.
        directory: its open directory.
        optimizer: its server optimizer.
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
        self._task = task
        if task is not None:
            self._task = task.to(device)
        directory.restore_configuration()
        self.plan: Plan = directory.header.plan
        every = run.execution.checkpoint_every
        if run.execution.keep_releases:
            every = 1
        ledger = directory.ledger
        key = directory.key
        integers = released_integers(directory, initial)
        self.server = PrivateServer(
            self.plan, ledger, key, initial, optimizer, device, every, integers
        )
        self.server.restore()
        self.sums = self.server.sums
        self.metrics: dict[int, dict[str, Any]] = directory.ledger.metrics()
        #: Loss, metrics and final metrics of the model at the last reports, marked as not private
        #: if the test part belongs to users of the run; empty without a test part here.
        self.quality: dict[str, Any] = {}
        self._schedule = self.cohort_schedule()
        self._logged = set[str]()
        self._next_count = 0.0  # when arrivals are counted next
        #: Prefix of warnings, which names the run if there are several.
        self.label = ""

    @property
    def task(self) -> Task:
        """Data, model, loss and metrics.

        Raises:
            ConfigError: only clients know it.
        """
        if self._task is None:
            return self.run.task_source.build()
        return self._task

    @classmethod
    @torch.inference_mode(False)
    def start(cls, path: Path, run: Run, device: str = "cpu", *, simulated: bool = False) -> Self:
        """Plan a run, create its directory and draw its noise key.

        Args:
            path: the run directory; must not exist, or be empty.
            run: the run.
            device: "cpu" or "cuda".
            simulated: whether users will be trained on this machine.

        Raises:
            ConfigError: the run cannot be executed or the place cannot be used; nothing is left
                there.
        """
        check_run(run)
        check_device(device)
        task = run.task_source.build()
        if simulated:
            check_users_here(run, task)
        if task.dataset.users != run.task_source.users:
            raise ConfigError(
                f"users must be the task's {task.dataset.users}; got {run.task_source.users}."
            )
        preflight(task.to(device), run.client, run.users_in_a_call)
        _check_client_metrics(run, task)
        _from_file(run, task)  # only to check it
        optimizer = run.optimizer_source.build(task.model.shapes, run.cohorts.rounds)
        plan = plan_of(run, optimizer, task.model.dimension)
        whole = ModelLayout.of_module(task.model)
        directory = created(
            path,
            run,
            plan,
            task.dataset.user_ids,
            whole.save if whole is not None else None,
            arrays=task.model.arrays,
            test_owner=task.dataset.test_owner,
            constants=task.constant_inputs(),
            tied=task.model.tied,
            whole_model=whole.fingerprint() if whole is not None else "",
        )
        if run.task_source.schema_file is not None:
            schema = run.task_source.schema_file.read_bytes()
            write_durably(directory.path / SCHEMA, schema)
        return cls._opened(run, task, optimizer, directory, device)

    @classmethod
    @torch.inference_mode(False)
    def resume(cls, path: Path, run: Run | None = None, device: str = "cpu") -> Self:
        """Open a stopped run where its ledger ends.

        Args:
            path: the run directory.
            run: if given, must compute the same as the stored run; required if the run has objects
                of the user's own.
            device: as for ``start``.

        Raises:
            ConfigError: not a run directory, that of another run, or an older copy of one that
                this machine has continued.
            LedgerError: a damaged ledger, or another process is running it.
        """
        check_device(device)
        stored = read_header(path).run
        if run is None:
            run = Run.from_dict(stored)
        else:
            check_run(run)
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
        with contextlib.ExitStack() as on_error:
            on_error.enter_context(directory)
            initial = _initial(run, task, directory)
            session = cls(run, directory, optimizer, initial, task.dataset.user_ids, task, device)
            session.evaluate()
            on_error.pop_all()
        return session

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Store the state after the last round, and let another process continue the run."""
        with held_back():
            with contextlib.suppress(Exception):  # the exception that ended the run should be seen
                self.server.keep_state()
            self.directory.close()

    @property
    def standing(self) -> str:
        """A sentence on the rounds of earlier processes; empty for a new run."""
        t = self.server.t
        horizon = self.server.horizon
        if t == horizon:
            return (
                f"Finished before: all {horizon} rounds are released. A new run needs another"
                " directory."
            )
        if t == 0:
            return ""
        return f"Continues after round {t} of {horizon}."

    def cohort_schedule(self) -> CohortSchedule:
        """The schedule of cohorts; random cohorts follow from the run's key, also on resuming."""
        return self.run.schedule(self.directory.key.cohort_seed())

    def cohort(
        self,
        t: int,
        connected: Callable[[NDArray[np.int64]], Sequence[bool]] | None = None,
    ) -> dict[int, str]:
        """The users to train in round t, ids by index.

        For `AvailableCohorts` these are the first m users of the round's order who are connected
        and whom the contract admits, or all of them if there are fewer.

        Args:
            t: the round, from 0.
            connected: which users, given by index, are connected now; default: all.
        """
        users = self._schedule.cohort(t)
        if not self._schedule.is_order:
            return {user: self.user_list[user] for user in map(int, users)}
        admits = self.directory.ledger.histories.admits
        size = self.plan.users_per_round
        block = _COHORTS_PER_BLOCK * size
        cohort = dict[int, str]()
        for start in range(0, users.size, block):
            candidates = users[start : start + block]
            if connected is not None:
                candidates = candidates[np.array(connected(candidates), dtype=bool)]
            for user in map(int, candidates):
                if len(cohort) < size and admits(self.user_list[user], t):
                    cohort[user] = self.user_list[user]
            if len(cohort) == size:
                break
        return cohort

    def next_round(self, user: str) -> int | None:
        """The earliest round, from 0, in which (n, k, b) admit a user; None if none is left."""
        histories = self.directory.ledger.histories
        contract = self.plan.participation
        if user not in histories:
            return 0
        _, count, last = histories.row(user)
        earliest = last + contract.min_separation
        if count >= contract.max_participations or earliest >= contract.rounds:
            return None
        return earliest

    def admitted_in_words(self, t: int, users: Collection[str]) -> str:
        """How many of these users (n, k, b) admit to round t, and when they admit the others."""
        rounds = [self.next_round(user) for user in users]
        later = [other for other in rounds if other is not None and other > t]
        finished = rounds.count(None)
        words = f"{len(rounds) - len(later) - finished} may take part now"
        if later:
            words += f", {len(later)} again in later rounds, the first in round {min(later) + 1}"
        if finished:
            words += f", {finished} in no further round"
        return words

    def evaluate(self) -> dict[str, Any] | None:
        """Add the row of metrics of the released model, if this round is due and has none.

        It has the metrics of the central test part, if the task is known here, ε so far, and
        released statistics. If a process died before this step, the next call makes up for it.

        Returns:
            The row; None if the round is not due.
        """
        t = self.server.t
        due = t % self.run.execution.evaluate_every == 0 or t == self.server.horizon
        if due and t not in self.metrics:
            row = self._test_metrics()
            row["epsilon"] = finite(self.plan.epsilon_after(t))
            for statistic in self.run.statistics:
                state = self.server.statistics[statistic.name]
                row |= statistic.metrics(state, self.server.statistic_std(statistic))
            self.directory.ledger.put_metrics(t, row)
            self.metrics[t] = row
            self._warn_of_shortfall()
        return self.metrics.get(t)

    def _test_metrics(self) -> dict[str, Any]:
        if self._task is None:
            return {}
        metrics = self._task.evaluate(self.server.parameters)
        return {central(name, self._task.dataset): value for name, value in metrics.items()}

    def _final_metrics(self) -> dict[str, Any]:
        """Loss and metrics of the released model, evaluated once, and what needs all outputs."""
        if self._task is None:
            return {}
        row = self.metrics.get(self.server.t)
        if row is None:
            row = self._test_metrics()
        values = dict[str, Any]()
        for name in metric_columns(self._task):
            if name in row and name != "epsilon":
                values[name] = finite(row[name])
        for name, value in final_metrics(self._task, self.server.parameters).items():
            values[central(name, self._task.dataset)] = value
        return values

    def judge(self, metrics: Mapping[str, Any]) -> None:
        """Add the numbers of an app's evaluation of the released model to its row of metrics."""
        t = self.server.t
        row = dict[str, Any]()
        for name, value in metrics.items():
            if isinstance(value, int | float):
                row[name] = float(value)
        self.metrics[t] = {**row, **self.metrics.get(t, {})}
        self.directory.ledger.put_metrics(t, self.metrics[t])
        self._warn_of_shortfall()

    def _warn_of_shortfall(self) -> None:
        """Log once if the model diverged, or is no better than guessing, on a public test part."""
        labels = None
        if self._task is not None and self._task.loss is cross_entropy:
            labels = self._task.dataset.test_labels.cpu().numpy()
        warning = shortfall(self.metrics, self.server.horizon, labels)
        if warning is not None and "shortfall" not in self._logged:
            self._logged.add("shortfall")
            _log.warning("%s%s", self.label, warning)

    def note_failures(self, t: int, failures: Sequence[UserFailure], present: int = 0) -> None:
        """Record for the operator, in a secret file, which users failed in round t.

        The log says if nobody contributed to a private round, which then was noise alone.
        If most contributions of a round failed, and at least two, the most frequent fault is
        logged, once for each fault, in words of fedmf: reasons may hold text that users or their
        code chose. One user's failure is only logged if the run has no privacy.

        Args:
            t: the round, from 0.
            failures: the failures of the round.
            present: the number of users who contributed.
        """
        self.directory.note_failures(t, failures)
        if present == 0 and self.run.is_private:
            admitted = ""
            if self._schedule.is_order:
                of_all = self.admitted_in_words(t, self.user_list)
                admitted = f": of {len(self.user_list):,} users, {of_all}"
            _log.warning(
                f"{self.label}round {t + 1}: nobody contributed, and noise alone was released"
                f"{admitted}."
            )
        users = [failure for failure in failures if failure.user]
        reasons = Counter(failure.fault or _fault_of(failure.stage) for failure in users)
        failed = reasons.total()
        most_failed = failed > 1 and 2 * failed > present > 0
        one_may_be_logged = failed > 0 and not self.run.is_private
        if not (most_failed or one_may_be_logged):
            return
        reason = reasons.most_common(1)[0][0]
        if reason not in self._logged and len(self._logged) < _MOST_REASONS:
            self._logged.add(reason)
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

    def note_absent(self, t: int, users: Sequence[str]) -> None:
        """Record for the operator, in a secret file, the users of round t (from 0) without a reply.

        The first of them are named.
        """
        absent = self._operator_facts().get("absent", {})
        absent[str(t + 1)] = list(users[:_MOST_NAMES])
        self.note_for_operator("absent", absent)

    def note_arrivals(self) -> None:
        """Write the arrivals of all rounds into the operator's file, unless that was just done."""
        start = time.monotonic()
        if start < self._next_count:
            return
        with contextlib.suppress(OSError):
            self._write_operator_file(self._counts())
        end = time.monotonic()
        self._next_count = end + max(_BETWEEN_COUNTS, _TIMES_A_COUNT * (end - start))

    def note_for_operator(self, name: str, fact: Any) -> None:
        """Write a fact into the operator's file; an error of the disk does not stop the run."""
        with contextlib.suppress(OSError):
            self._write_operator_file({**self._counts(), name: fact})

    def _write_operator_file(self, facts: Mapping[str, Any]) -> None:
        content = json.dumps(facts, indent=2, ensure_ascii=False) + "\n"
        write_durably(self.directory.path / OPERATOR, content.encode())

    def _operator_facts(self) -> dict[str, Any]:
        """Return the facts in the operator's file by name; none if it cannot be read."""
        try:
            facts = json.loads((self.directory.path / OPERATOR).read_bytes())
        except (OSError, ValueError):
            return {}
        return dict(facts)

    def statement(self) -> PrivacyStatement:
        """The privacy statement of the releases so far."""
        return run_statement(self.directory.header, self.directory.ledger)

    def write_reports(self) -> None:
        """Write metrics, the quality of the model, statement and operator's counts.

        Raises:
            ConfigError: the disk failed.
        """
        try:
            columns = metric_columns(self._task, self.run.statistics)
            write_metrics(self.directory.path, self.metrics, columns)
            self.quality = self._final_metrics()
            write_quality(self.directory.path, self.quality)
            self.statement().write(self.directory.path)
            self._write_operator_file(self._counts())
        except OSError as error:
            raise ConfigError(
                f"cannot write the reports of {self.directory.path}: {error.strerror}. All releases"
                " are recorded; resume the run to write the reports."
            ) from None

    def _counts(self) -> dict[str, Any]:
        """Return the operator's facts: counts of rows and arrivals, and what was noted before."""
        counts = self._operator_facts()
        if self._task is not None and self._task.dataset.row_counts is not None:
            counts |= dataclasses.asdict(self._task.dataset.row_counts)
        counts["arrivals"] = [len(commit.keys) for commit in self.directory.ledger.commits()]
        return counts

    def draw(self) -> None:
        """Draw the learning curve, if matplotlib is installed and the task is known here."""
        if self._task is None:
            return
        epsilon = self.run.privacy.requested_epsilon
        title = "no noise"
        if epsilon is not None:
            title = f"{self.plan.mechanism.name}, ε = {at_least(epsilon)}"
        draw_learning_curve(self.directory.path, self.metrics, title, self._task)


def _check_client_metrics(run: Run, task: Task) -> None:
    """Reject a client metric that the task does not compute.

    Raises:
        ConfigError: an unknown metric.
    """
    known = ["loss", *(metric.name for metric in task.metrics)]
    for each in run.extra_releases:
        if isinstance(each, ClientMetric) and each.metric not in known:
            raise ConfigError(
                f"metric (of clients) must be one of this task's, {', '.join(known)}; got"
                f" {each.metric!r}."
            )


def _fault_of(stage: str) -> str:
    """Words for logs about failures in a stage, which a client may have made up."""
    return _FAULTS.get(stage, _FAULTS["reply"])


def created(
    path: Path,
    run: Run,
    plan: Plan,
    user_list: Sequence[str],
    save_whole: Callable[[Path], None] | None = None,
    **model: Any,
) -> RunDirectory:
    """Create the directory of a new run, and draw its noise key.

    Args:
        path: must not exist, or be empty.
        run: the run.
        plan: its plan.
        user_list: ids of all users.
        save_whole: as for `RunDirectory.create`.
        model: arguments of `RunHeader.of` about the model and its test part.

    Raises:
        ConfigError: the place cannot be used.
        ValueError: ids that are not as `canonical_id` writes them.
    """
    if not isinstance(user_list, NumberedUsers):
        require_canonical(user_list)
    seed = run.privacy.noise_seed
    key = NoiseKey.from_os() if seed is None else NoiseKey.from_seed(seed)
    return RunDirectory.create(path, RunHeader.of(run, plan, key, **model), key, save_whole)


def require_same(path: Path, stored: Mapping[str, Any], run: Run) -> None:
    """Reject a run that differs from the one that a directory holds.

    Raises:
        ConfigError: it computes something else.
    """
    difference = first_difference(stored, run.to_dict())
    if difference is not None:
        hint = ""
        if "task.parameters" in difference:
            hint = " Call torch.manual_seed before your module is created."
        raise ConfigError(
            f"{path} holds another run: {difference}. Choose another directory for a new run; to"
            f" continue the one there, give it the values with which it began.{hint}"
        )


def check_run(run: object) -> None:
    """Reject what is no run, such as the name of a configuration."""
    if not isinstance(run, Run):
        raise ConfigError(
            f"run must be a fedmf.Run; got {type(run).__name__}. fedmf.load_run(FILE) reads a"
            " configuration."
        )


def check_device(device: str) -> None:
    """Reject another device than a processor or a CUDA device that this machine has."""
    if device.partition(":")[0] not in ("cpu", "cuda"):
        raise ConfigError(f"device must be 'cpu' or 'cuda'; got {device!r}.")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(
            "--device cuda needs an NVIDIA GPU and a CUDA build of torch; none is available here."
        )


def check_users_here(run: Run, task: Task) -> None:
    """Reject a run with users that cannot be trained on this machine.

    Raises:
        ConfigError: the run names keys, which only nodes of a deployment have, or users' examples
            are on such nodes.
    """
    if run.execution.node_keys:
        raise ConfigError(
            "node_keys must be omitted in a simulation, because its nodes have no keys."
        )
    if not task.dataset.has_examples:
        raise ConfigError(
            "users' examples must be on this machine for a simulation; got a user list. Data on"
            " nodes are for flwr run on a deployment."
        )


def _from_file(run: Run, task: Task) -> Tensor | None:
    """θ_0 from the file that a run names; None if it names none.

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
        ConfigError: the file cannot be used; or the file, the users or the frozen arrays differ
            from those at the start.
    """
    initial = None
    inputs = list(task.constant_inputs())
    if not directory.ledger.released:
        initial = _from_file(run, task)
    if initial is not None:
        inputs += run.task_source.public_inputs()
    for each in inputs:
        entry = dataclasses.asdict(each)
        if entry not in directory.header.public_inputs:
            raise ConfigError(
                f"{entry['name']} (of the task) must be what the run began with; got"
                f" {entry['value']}."
            )
    if initial is None:
        return task.model.initial()
    return initial
