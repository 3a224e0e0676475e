"""Make a Flower app private by wrapping its strategy: `CorrelatedNoise`.

The inner strategy writes the messages of a round and has the server rule (`InnerRule`); the private
server clips, sums, adds noise and commits each round in between.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result
from numpy.typing import NDArray
from torch import Tensor

from fedmf.cohorts import Cohorts
from fedmf.errors import ConfigError
from fedmf.flower.clients import GridClients, Part
from fedmf.flower.compat import aggregate_metricrecords
from fedmf.flower.identity import NodeIdentity
from fedmf.flower.inner_rule import HANDLED, InnerRule, base_of, check_inner, with_values
from fedmf.flower.layout import ArrayLayout
from fedmf.flower.messages import read_number
from fedmf.flower.screen import say, say_plan, say_round, warn, without_client_errors
from fedmf.flower.served_users import ServedUsers
from fedmf.flower.strategy_memory import StrategyMemory
from fedmf.matrices.factorization import Factorization
from fedmf.mechanisms.choice import MechanismChoice
from fedmf.optim import ChosenOptimizer, ServerOptimizer
from fedmf.runs.aggregator import ExternalTask, session_of
from fedmf.runs.directory import LEDGER
from fedmf.runs.loop import OnRound, Reply, RoundRecord, TrainingLoop
from fedmf.runs.outputs import metric_columns
from fedmf.runs.run import Execution, MechanismConfig, Run
from fedmf.runs.session import Session
from fedmf.runs.statistics.client_metric import ClientMetric
from fedmf.runs.statistics.clip_norm import FixedClipping, QuantileClipping
from fedmf.runs.statistics.statistic import Statistic
from fedmf.statements.privacy import UserLevel
from fedmf.statements.statement import PrivacyStatement

_NO_EVALUATION: Final = (
    "clients are not asked to evaluate, as their reports carry no noise; ClientMetric(...,"
    " reply='evaluate') among extra_releases asks for one with noise"
)
_EVALUATION: Final = "the cohort evaluates each model before it trains it"
_NO_AGGREGATION: Final = "metrics of clients carry no noise; ClientMetric releases their means"
#: Methods of a strategy that Flower's loop calls and the private loop does not, with the remedy.
_NOT_CALLED: Final = {
    "start": "CorrelatedNoise has its own: move your additions into its on_round or evaluate_fn",
    "configure_evaluate": _NO_EVALUATION,
    "aggregate_evaluate": _NO_AGGREGATION,
}
#: Methods of a strategy that are not forwarded, since only rounds may call them.
_OF_A_ROUND: Final = (
    "configure_train",
    "aggregate_train",
    "configure_evaluate",
    "aggregate_evaluate",
)
#: Public attributes of the wrapper; a strategy may have others of these names.
_OWN: Final = ("inner", "identity", "run_dir", "stopped")


class Cohort:
    """A grid with only some of its nodes, as an inner strategy sees it.

    Args:
        grid: the whole grid, which has all other methods.
        nodes: ids of the nodes that the strategy sees.
    """

    def __init__(self, grid: Grid, nodes: Sequence[int]) -> None:
        self._grid = grid
        self._nodes = list(nodes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def get_node_ids(self) -> list[int]:
        """Return the nodes of the cohort."""
        return list(self._nodes)


class AppClients(GridClients):
    """The clients of an app, which get the messages of an inner strategy, one for each user.

    After the first round with replies it warns if most of them look like differences.

    Args:
        session, nodes, grid, timeout: see `GridClients`.
        layout: layout of the model.
        inner: the strategy that writes the messages.
        train_config: the configuration that it sends to clients for training.
        evaluate_config: that for evaluation.
        replies: "models" or "differences".
    """

    def __init__(
        self,
        session: Session,
        nodes: ServedUsers,
        grid: Grid,
        timeout: float | None,
        layout: ArrayLayout,
        inner: FedAvg,
        train_config: ConfigRecord,
        evaluate_config: ConfigRecord,
        replies: str,
    ) -> None:
        super().__init__(session, nodes, grid, timeout)
        self._layout = layout
        self._inner = inner
        self._replies = replies
        self._is_judged = replies == "differences"
        self._models = 0
        self._differences = 0
        self._sent = torch.empty(0)  # the model in the messages of this round
        self._model: Tensor | None = None  # the model that is encoded
        self._encoded = ArrayRecord()
        #: The last round of training and of evaluation with its messages by node.
        self._written = dict[str, tuple[int, dict[int, Message]]]()
        self._train_config = train_config
        self._evaluate_config = evaluate_config
        self._metrics = client_metrics(session)
        self._evaluated: dict[Part, dict[str, NDArray[np.float64]]] = {}  # in this round

    @property
    def arrays(self) -> ArrayRecord:
        """The released model: all arrays, including those that are not trained.

        A model is encoded once. Records of it share the bytes, which nobody can change.
        """
        model = self.server.parameters
        if model is not self._model:
            self._model = model
            self._encoded = self._layout.record(model)
        arrays = dict[str, Array]()
        for name, array in self._encoded.items():
            arrays[name] = Array(array.dtype, tuple(array.shape), array.stype, array.data)
        return ArrayRecord(arrays)

    def most_bytes(self, part: Part) -> int:
        return self._layout.most_bytes

    def messages(
        self, round_index: int, by_node: Mapping[int, list[str]]
    ) -> list[tuple[Message, Part]]:
        """Return the messages of the inner strategy to the nodes of the cohort.

        The strategy is called once a round, as by Flower's loop, since it may change a learning
        rate each time; a further request of the round repeats its messages.

        Raises:
            RuntimeError: the inner strategy writes to other nodes, or to one twice.
        """
        arrays = self.arrays
        self._sent = self._layout.as_sent(self.server.parameters)
        return self._asking("train", round_index, arrays, by_node)

    def _asking(
        self,
        what: Literal["train", "evaluate"],
        round_index: int,
        arrays: ArrayRecord,
        by_node: Mapping[int, list[str]],
    ) -> list[tuple[Message, Part]]:
        """Return the messages of the inner strategy that ask nodes to train or to evaluate."""
        nodes = list(by_node)
        if not nodes:
            return []
        written, by_first_node = self._written.get(what, (-1, {}))
        if written == round_index and by_first_node:
            return _repeated(by_first_node, by_node)
        configure = self._inner.configure_train
        config = self._train_config
        if what == "evaluate":
            configure = self._inner.configure_evaluate
            config = self._evaluate_config
        # The strategy must take every node that it sees: the cohort decides, not its fractions.
        values: dict[str, Any] = {f"fraction_{what}": 1.0, f"min_{what}_nodes": len(nodes)}
        with with_values(self._inner, min_available_nodes=len(nodes), **values):
            cohort: Any = Cohort(self.grid, nodes)
            messages = list(configure(round_index + 1, arrays, config, cohort))
        targets = [message.metadata.dst_node_id for message in messages]
        if sorted(targets) != sorted(nodes):
            raise RuntimeError(
                f"strategy {type(self._inner).__name__} must ask each of the {len(nodes)} nodes of"
                f" the cohort once to {what}; it asks {len(targets)}."
            )
        self._written[what] = round_index, dict(zip(targets, messages, strict=True))
        pairs = list[tuple[Message, Part]]()
        for message, node in zip(messages, targets, strict=True):
            pairs.append((message, (node, tuple(by_node[node]))))
        return pairs

    def ask(self, round_index: int, cohort: Mapping[int, str]) -> Iterator[Reply]:
        self._evaluated = {}
        if any(metric.reply == "evaluate" for metric in self._metrics):
            messages = self._asking("evaluate", round_index, self.arrays, self.by_node(cohort))
            for message, part in self.answers(messages):
                self._evaluated[part] = self._numbers(message, "evaluate")
        yield from super().ask(round_index, cohort)
        if not self._is_judged and self._models + self._differences > 0:
            self._is_judged = True
            if self._differences > max(1, self._models):
                warn(
                    f"round {round_index + 1}: most replies look like differences and not like"
                    " models, since they are short and point away from the model that was sent."
                    " Clients must return the trained arrays; if your clients return the trained"
                    " minus the received arrays, pass replies='differences' to CorrelatedNoise"
                )

    def read(self, message: Message, part: Part) -> Reply:
        """Decode a reply; the update of its user is the model received minus the model sent."""
        node, users = part
        numbers = self._layout.read(message)
        reported = self._numbers(message, "train") | self._evaluated.get(part, {})
        if self._replies == "differences":
            return Reply(users, numbers[None], node=node, reported=reported)
        if not self._is_judged:
            if looks_like_difference(numbers, self._sent):
                self._differences += 1
            else:
                self._models += 1
        return Reply(users, numbers[None], node=node, origin=self._sent, reported=reported)

    def _numbers(self, message: Message, reply: str) -> dict[str, NDArray[np.float64]]:
        """Return the numbers of a user's reply of one kind for the client metrics, NaN for none."""
        numbers = dict[str, NDArray[np.float64]]()
        for metric in self._metrics:
            if metric.reply == reply:
                numbers[metric.name] = np.array([read_number(message, metric.metric)])
        return numbers


def _repeated(
    written: Mapping[int, Message], by_node: Mapping[int, list[str]]
) -> list[tuple[Message, Part]]:
    """Return the messages of a round once more, to a node that is new that of another node."""
    first = next(iter(written.values()))
    pairs = list[tuple[Message, Part]]()
    for node, users in by_node.items():
        earlier = written.get(node, first)
        metadata = earlier.metadata
        message = Message(earlier.content, node, metadata.message_type, group_id=metadata.group_id)
        pairs.append((message, (node, tuple(users))))
    return pairs


def client_metrics(session: Session) -> list[ClientMetric]:
    """Return the metrics of clients that a run releases."""
    return [each for each in session.run.statistics if isinstance(each, ClientMetric)]


def looks_like_difference(reply: Tensor, sent: Tensor) -> bool:
    """Return whether a reply looks like the change of a model rather than like a model.

    It does if it is shorter than the model sent, and at least 60° away from it: a model that
    training shrinks keeps its direction, and one that starts at zero only becomes longer.

    Args:
        reply: numbers of the reply, shape (d,).
        sent: numbers of the model that was sent, shape (d,).

    >>> sent = torch.ones(4)
    >>> looks_like_difference(torch.tensor([0.1, -0.2, 0.1, 0.0]), sent)
    True
    >>> looks_like_difference(0.1 * sent, sent), looks_like_difference(sent, 0 * sent)
    (False, False)
    """
    length = math.sqrt(float(torch.dot(reply, reply)))
    length_sent = math.sqrt(float(torch.dot(sent, sent)))
    is_near = float(torch.dot(reply, sent)) > 0.5 * length * length_sent
    return length < length_sent and not is_near


@dataclass(frozen=True, eq=False)
class FlowerAppTask(ExternalTask):
    """The task of a Flower app, which its clients know and the server does not."""

    kind: ClassVar[str] = "flower-app"
    label: ClassVar[str] = "clients of a Flower app"
    users_from: ClassVar[str] = "argument users"
    model_from: ClassVar[str] = "argument initial_arrays"
    continued_by: ClassVar[str] = "CorrelatedNoise"
    replies: str = "models"

    def to_dict(self) -> dict[str, Any]:
        values = super().to_dict()
        if self.replies != "models":
            values["replies"] = self.replies
        return values


class CorrelatedNoise:
    """User-level differential privacy for a Flower app, by wrapping its strategy.

    In each round the messages of the inner strategy go to a cohort of users. Their updates, reply
    minus model sent, are clipped together over all trained arrays, summed, divided by the planned
    users of a round (never by numbers of examples) and noised; the inner strategy sees one reply
    with the noisy mean, so its server rule (momentum, Adam, …) is post-processing. Every round is
    committed before anyone sees its model. Arrays of integers stay unchanged. Other attributes and
    methods are those of the inner strategy.

    Args:
        strategy: a new FedAvg, FedAvgM, FedProx, FedAdam, FedAdagrad or FedYogi.
        privacy: ε and δ for all rounds together, and the clip norm ζ: the largest ℓ₂ norm of one
            user's update; a public noise seed makes a simulation that anyone can undo.
        cohorts: n, the horizon, m, the number of users per round, and the schedule.
        users: N, if every virtual node of a simulation is a user; or the identities of users, for
            deployments an `EnrolledIdentity`.
        mechanism: name of a mechanism, or a factorization.
        server_optimizer: a server rule of fedmf in place of the strategy's own, such as `Sgd`,
            `JmeAdam` with private second moments of its own noise, or any object with ``init`` and
            ``step``; the strategy must then be one without a rule, FedAvg or FedProx.
        clipping: `fedmf.QuantileClipping` lets ζ follow a quantile of norms after the first round,
            under the same ε.
        extra_releases: values of `fedmf.runs.Statistic` that are released under the same ε, such as
            `fedmf.ClientMetric`.
        frozen: arrays that are neither trained nor noised: names, or patterns such as
            ``"features.*"``, in which ``*`` stands for any characters, dots too.
        tied: whether equal arrays are one under several names, such as an embedding that is also
            the head: it is trained, clipped and noised once. None: an error if there are any.
        replies: "models" if clients return the trained arrays; "differences" if they return what
            training changed, trained minus received arrays.
        execution: for how many replies, and how long, a round waits, and how often checkpoints are
            written; there is one message per user.
        run_dir: directory of ledger, key and statement; an existing run is continued. A simulation
            cannot be continued: if the directory has one, the new one gets a directory next to it.
            Default, also for an empty string: a new directory below ``~/.fedmf/runs``.

    Attributes:
        stopped: the callback that ended the last call of ``start``, "should_stop" or "on_round";
            empty if none did.

    Raises:
        ConfigError: a strategy that does not aggregate by a mean, or values that do not fit
            together.

    >>> from fedmf import CyclicCohorts, UserLevel
    >>> private = CorrelatedNoise(
    ...     FedAvg(),
    ...     UserLevel(epsilon=8.0, delta=1e-5, clip_norm=0.5),
    ...     CyclicCohorts(rounds=50, users_per_round=10),
    ...     users=100,
    ... )
    """

    def __init__(
        self,
        strategy: FedAvg,
        privacy: UserLevel,
        cohorts: Cohorts,
        users: int | ServedUsers,
        *,
        mechanism: str | Factorization | MechanismChoice | MechanismConfig = "banded-toeplitz",
        server_optimizer: ChosenOptimizer | ServerOptimizer | None = None,
        clipping: FixedClipping | QuantileClipping | None = None,
        extra_releases: Sequence[Statistic] = (),
        frozen: Sequence[str] = (),
        tied: bool | None = None,
        replies: Literal["models", "differences"] = "models",
        execution: Execution | None = None,
        run_dir: str | Path | None = None,
    ) -> None:
        check_inner(strategy, server_optimizer is not None)
        self.inner = strategy
        self._optimizer = server_optimizer
        self.identity = users if isinstance(users, ServedUsers) else NodeIdentity(users)
        self._frozen = tuple(frozen)
        self._tied = tied
        if replies not in ("models", "differences"):
            raise ConfigError(f"replies must be 'models' or 'differences'; got {replies!r}.")
        self._replies = replies
        execution = execution or Execution()
        self._values: dict[str, Any] = {
            "privacy": privacy,
            "cohorts": cohorts,
            "mechanism": mechanism,
            "execution": replace(execution, messages="one-user"),
            "clipping": clipping or FixedClipping(),
            "extra_releases": tuple(extra_releases),
        }
        # The values are checked now with any model, rather than when training starts.
        self._run(ArrayLayout(("model",), ((1,),), ("float32",), {}))
        self.run_dir = _run_directory(run_dir, self.identity.resumable)
        self._session: Session | None = None
        self.stopped = ""
        self._is_restored = False  # whether the strategy is as after the last committed round

    def __getattr__(self, name: str) -> Any:
        """Return an attribute or method of the inner strategy."""
        inner = vars(self).get("inner")
        if inner is None or name.startswith("_"):
            raise AttributeError(f"CorrelatedNoise has no attribute {name!r}.")
        if name in _OF_A_ROUND:
            raise AttributeError(
                f"CorrelatedNoise has no {name}: rounds run in start. Call it on the inner"
                f" strategy: strategy.inner.{name}(...)."
            )
        return getattr(inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute that the inner strategy has there, unless this class has it too."""
        is_own = name in _OWN or name.startswith("_")
        if not is_own and hasattr(self.inner, name):
            setattr(self.inner, name, value)
        else:
            super().__setattr__(name, value)

    def _run(self, layout: ArrayLayout) -> Run:
        task = FlowerAppTask(
            layout, self.identity.user_list, self.identity.words, replies=self._replies
        )
        server = self._optimizer or InnerRule(self.inner, layout)
        return Run(task=task, server=server, **self._values)

    def statement(self) -> PrivacyStatement:
        """Return the guarantee and the releases so far.

        Raises:
            ConfigError: the run has not started.
        """
        if self._session is None:
            raise ConfigError("statement needs a started run: call start first.")
        return self._session.statement()

    def close(self) -> None:
        """Let another process continue the run."""
        if self._session is not None:
            self._session.close()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        should_stop: Callable[[int, Result], bool] | None = None,
        on_round: OnRound | None = None,
    ) -> Result:
        """Run up to ``num_rounds``, from the round after the last that was committed.

        Args:
            grid: the grid of the nodes.
            initial_arrays: the model before the first round. If a run is continued, only its names,
                shapes, types and untrained arrays are used.
            num_rounds: number of rounds of the whole run; default: the planned number.
            timeout: seconds to wait for the replies of a round; default: the round timeout of the
                run.
            train_config: the configuration that the strategy sends to clients, and may change. If
                a run is continued, it is restored as it was after the last committed round, and so
                are attributes of the strategy; entries with other values than at the start of the
                run keep these.
            evaluate_config: the same for evaluation, which clients are only asked for by
                ``ClientMetric(…, reply="evaluate")``; it is not restored.
            evaluate_fn: called with the number of a round and its released model; returns metrics
                for the result and `RoundRecord.metrics`. They are recorded, so the result of a run
                that is continued has those of earlier rounds.
            should_stop: called with the number of a round and the result so far; True ends the
                run, and no other value does: convert a Boolean of NumPy with ``bool``.
            on_round: called with a `fedmf.runs.RoundRecord` after each committed round; True
                ends the run, and no other value does.

        Raises:
            ConfigError: more rounds than planned, before any round is run; or the disk failed.
            RuntimeError: no node answers before the first of these rounds, or before any with
                `AvailableCohorts`; an inner strategy asks other nodes than the cohort, or one
                twice.
            LedgerError: a release failed, now or before. Close this strategy and create another.
            Exception: any error of ``on_round``; the same call continues the run.
        """
        session, layout = self._open_session(initial_arrays)
        if train_config is None:
            train_config = ConfigRecord()
        self._remember(session, train_config)
        clients = AppClients(
            session,
            self.identity,
            grid,
            timeout,
            layout,
            self.inner,
            train_config,
            evaluate_config or ConfigRecord(),
            self._replies,
        )
        result = recorded_result(session)
        self.inner.summary()
        evaluates = any(metric.reply == "evaluate" for metric in client_metrics(session))
        about_evaluation = _EVALUATION if evaluates else _NO_EVALUATION
        say(f"{type(self.inner).__name__} made private; {about_evaluation}")
        say_plan(session)
        say(self._sampling(session))
        for line in parts_without_effect(self.inner, evaluates):
            warn(line)
        callbacks = AppCallbacks(session, clients, result, evaluate_fn, should_stop, on_round)
        loop = TrainingLoop(session, clients, callbacks.after_round, callbacks.evaluate)
        try:
            with without_client_errors():
                loop.run(num_rounds)
        except KeyboardInterrupt:
            say(self._interrupted(session))
            raise
        self.stopped = callbacks.stopped
        self._is_restored = True
        result.arrays = clients.arrays
        return result

    def _sampling(self, session: Session) -> str:
        """Return how many users take part with which weight, whatever the strategy states."""
        users = self.identity.users
        planned = session.plan.users_per_round
        on_average = " on average" if session.run.cohorts.secret else ""
        unused = f"{self.inner.weighted_by_key} has"
        stated = max(int(users * self.inner.fraction_train), self.inner.min_train_nodes)
        if stated != planned:
            unused = f"fraction_train, min_train_nodes and {self.inner.weighted_by_key} have"
        return (
            f"{planned} of {users} users take part in each round{on_average}, with equal weight;"
            f" {unused} no effect"
        )

    def _interrupted(self, session: Session) -> str:
        """Return after which round a signal stopped the run, and how it is continued."""
        after = f"interrupted after round {session.server.t} of {session.server.horizon}"
        if not self.identity.resumable:
            return f"{after}; it cannot be continued, since virtual nodes are new after a restart"
        return f"{after}; the same call continues the run in {self.run_dir}"

    def _remember(self, session: Session, train_config: ConfigRecord) -> None:
        """Commit the memory of the strategy with each round; restore it if the run is continued.

        After a call of ``start`` that failed it is restored too, since a round may have begun.
        """
        memory = self._memory
        session.server.program_state = memory.to_commit
        is_another = train_config is not memory.config
        if is_another:
            memory.use_config(train_config)
        if is_another or not self._is_restored:
            memory.restore_config(session.server.program)
        lost = list[str]()
        if not self._is_restored:
            lost = memory.restore_attributes(session.server.program)
        self._is_restored = False
        if lost:
            names = ", ".join(f"{type(self.inner).__name__}.{name}" for name in lost)
            warn(
                f"{names} changed in earlier rounds and cannot be restored: keep what must last in"
                " numbers, strings, Booleans, lists, dicts or NumPy arrays"
            )

    def _open_session(self, initial_arrays: ArrayRecord) -> tuple[Session, ArrayLayout]:
        """Plan the run and create its directory, or open the existing one."""
        if self._session is None:
            layout = ArrayLayout.of(initial_arrays, self._frozen, self._tied)
            self.run_dir = _run_directory(self.run_dir, self.identity.resumable)
            self._session = session_of(self.run_dir, self._run(layout), layout.flat(initial_arrays))
            self._layout = layout
            handled = HANDLED if self._optimizer is None else ()
            self._memory = StrategyMemory(self.inner, handled)
        return self._session, self._layout


@dataclass(eq=False)
class AppCallbacks:
    """The callbacks of an app, in the form in which a training loop calls them.

    Args:
        session, clients, result: of the run.
        evaluate_fn, should_stop, on_round: see `CorrelatedNoise.start`.

    Attributes:
        stopped: the callback that ended the run, "should_stop" or "on_round"; empty if none did.
    """

    session: Session
    clients: AppClients
    result: Result
    evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None
    should_stop: Callable[[int, Result], bool] | None
    on_round: OnRound | None
    stopped: str = ""
    _is_told: bool = False  # that a value of should_stop was ignored

    def evaluate(self, server_round: int) -> Mapping[str, Any] | None:
        """Evaluate the released model after a round, 0 before the first."""
        if self.evaluate_fn is None:
            return None
        metrics = self.evaluate_fn(server_round, self.clients.arrays)
        if metrics is not None:
            self.result.evaluate_metrics_serverapp[server_round] = metrics
            self.session.judge(metrics)
        if server_round == 0:
            say_round(0, self.session.server.horizon, metrics or {})
        return metrics

    def after_round(self, record: RoundRecord) -> bool:
        """Call the callbacks after a round; returns whether one of them ends the run."""
        put_client_metrics(self.result, self.session, record.rounds)
        if record.report is not None:
            say_round(record.rounds, record.horizon, record.metrics)
            if self._should_stop(record.rounds):
                self.stopped = "should_stop"
        if self.on_round is not None and self.on_round(record) is True:
            self.stopped = self.stopped or "on_round"
        if self.stopped:
            say(f"{self.stopped} ended the run after round {record.rounds} of {record.horizon}")
        return bool(self.stopped)

    def _should_stop(self, server_round: int) -> bool:
        if self.should_stop is None:
            return False
        self.result.arrays = self.clients.arrays
        answer: object = self.should_stop(server_round, self.result)
        if not isinstance(answer, bool | None) and not self._is_told:
            self._is_told = True
            kind = type(answer).__name__
            warn(f"should_stop must return True or False; got a value of type {kind}, ignored")
        return answer is True


def recorded_result(session: Session) -> Result:
    """Return a result with the metrics of ``evaluate_fn`` that the run has recorded."""
    result = Result()
    own_columns = metric_columns(None, session.run.statistics)
    for server_round, row in session.metrics.items():
        put_client_metrics(result, session, server_round)
        recorded = {name: value for name, value in row.items() if name not in own_columns}
        if recorded:
            result.evaluate_metrics_serverapp[server_round] = MetricRecord(recorded)
    return result


def put_client_metrics(result: Result, session: Session, server_round: int) -> None:
    """Put the released metrics of clients after a round into a result.

    A mean has the name of its metric, and the standard deviation of its noise that with ``_std``.
    """
    row = session.metrics.get(server_round, {})
    for metric in client_metrics(session):
        records = result.train_metrics_clientapp
        if metric.reply == "evaluate":
            records = result.evaluate_metrics_clientapp
        for column in metric.columns:
            if row.get(column) is not None:
                record = records.setdefault(server_round, MetricRecord())
                record[column.removeprefix("client_")] = row[column]


def parts_without_effect(inner: FedAvg, evaluates: bool = False) -> Iterator[str]:
    """Yield a line for each part of a strategy that is not called as in Flower, with the remedy.

    Args:
        inner: the wrapped strategy.
        evaluates: whether clients are asked to evaluate.

    Guarantees:
        The lines depend only on the code of the strategy.
    """
    base = base_of(inner)
    if base is None:
        raise ConfigError(f"strategy must be one of Flower's means; got {type(inner).__name__}.")
    for method, why in _NOT_CALLED.items():
        if evaluates and method == "configure_evaluate":
            continue
        if getattr(type(inner), method) is not getattr(base, method):
            yield f"{type(inner).__name__}.{method} is never called: {why}"
    if type(inner).aggregate_train is not base.aggregate_train:
        yield (
            f"{type(inner).__name__}.aggregate_train is called before a round is committed: it must"
            " neither save nor send what it sees; save models in on_round"
        )
    if inner.train_metrics_aggr_fn is not aggregate_metricrecords:
        yield (
            "train_metrics_aggr_fn is not called: metrics that clients report of training carry no"
            " noise"
        )


def _run_directory(run_dir: str | Path | None, resumable: bool) -> Path:
    """Return the directory of a run: a new one if none is given or its run cannot be continued."""
    if not run_dir:
        name = f"flower-{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 10**6:06d}"
        return Path.home() / ".fedmf" / "runs" / name
    path = Path(run_dir).expanduser().resolve()
    if resumable or not (path / LEDGER).is_file():
        return path
    earlier = [str(path)]
    new_path = path.with_name(f"{path.name}-2")
    while new_path.exists():
        earlier.append(str(new_path))
        new_path = path.with_name(f"{path.name}-{len(earlier) + 1}")
    warn(
        f"{path} contains a simulation with nodes that no longer exist; this run is stored in"
        f" {new_path}. On the same users their epsilons add up: fedmf account {' '.join(earlier)}"
        f" {new_path}. With mods=[user_id_mod()] and users=ClientReportedIdentity(...), a run can"
        " be continued"
    )
    return new_path
