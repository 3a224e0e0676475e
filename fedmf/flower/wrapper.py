"""`CorrelatedNoise`: any Flower strategy that aggregates by a mean, made private by correlated
noise.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from fedmf.cohorts import Cohorts
from fedmf.errors import ConfigError
from fedmf.flower.clients import GridClients, Part
from fedmf.flower.identity import NodeIdentity
from fedmf.flower.inner_rule import MEANS, InnerRule, check_inner, with_values
from fedmf.flower.layout import ArrayLayout
from fedmf.flower.screen import say, say_plan, say_round, warn
from fedmf.flower.served_users import ServedUsers
from fedmf.matrices.factorization import Factorization
from fedmf.mechanisms.choice import MechanismChoice
from fedmf.optim import ChosenOptimizer, ServerOptimizer
from fedmf.runs.aggregator import ExternalTask, session_of
from fedmf.runs.directory import LEDGER
from fedmf.runs.loop import OnRound, Reply, RoundRecord, TrainingLoop
from fedmf.runs.outputs import metric_columns
from fedmf.runs.run import Execution, MechanismConfig, Run
from fedmf.runs.session import Session
from fedmf.runs.statistics.clip_norm import FixedClipping, QuantileClipping
from fedmf.runs.statistics.statistic import Statistic
from fedmf.statements.privacy import UserLevel
from fedmf.statements.statement import PrivacyStatement

_UNASKED: Final = "clients are not asked to evaluate: what they report would carry no noise"
#: Methods of a strategy that Flower's loop calls and the private one does not.
_NOT_CALLED: Final = {
    "start": "CorrelatedNoise has its own: what yours adds goes into its on_round or evaluate_fn",
    "configure_evaluate": _UNASKED,
    "aggregate_evaluate": _UNASKED,
}


class Cohort:
    """A grid with only some of its nodes, as an inner strategy sees it.

    Args:
        grid: what answers whatever else is asked of a grid.
        nodes: ids of those.
    """

    def __init__(self, grid: Grid, nodes: Sequence[int]) -> None:
        self._grid = grid
        self._nodes = list(nodes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def get_node_ids(self) -> list[int]:
        """The nodes of the cohort."""
        return list(self._nodes)


class AppClients(GridClients):
    """The clients of an app, asked by the messages of an inner strategy: one a user, a row of each.

    Args:
        session, nodes, grid, timeout: see `GridClients`.
        layout: of the model.
        inner: makes the messages.
        train_config: for clients.
    """

    def __init__(
        self,
        session: Session,
        nodes: ServedUsers,
        grid: Grid,
        timeout: float | None,
        layout: ArrayLayout,
        inner: FedAvg,
        train_config: ConfigRecord | None,
    ) -> None:
        super().__init__(session, nodes, grid, timeout)
        self._layout = layout
        self._inner = inner
        self._sent = torch.empty(0)
        self._train_config = train_config or ConfigRecord()

    @property
    def arrays(self) -> ArrayRecord:
        """The released model: all arrays, those that stay too."""
        return self._layout.record(self.server.parameters)

    def most_bytes(self, part: Part) -> int:
        """See `GridClients.most_bytes`."""
        return self._layout.most_bytes

    def messages(
        self, round_index: int, by_node: Mapping[int, list[str]]
    ) -> list[tuple[Message, Part]]:
        """See `GridClients.messages`.

        Raises:
            RuntimeError: the inner strategy asks other nodes, or one twice.
        """
        arrays = self.arrays
        nodes = list(by_node)
        self._sent = self._layout.flat(arrays, self._layout.number)
        if not nodes:
            return []
        # Every node that it sees is asked: the cohort decides, not its fractions.
        everybody = {
            "fraction_train": 1.0,
            "min_train_nodes": len(nodes),
            "min_available_nodes": len(nodes),
        }
        with with_values(self._inner, **everybody):
            cohort: Any = Cohort(self.grid, nodes)
            messages = list(
                self._inner.configure_train(round_index + 1, arrays, self._train_config, cohort)
            )
        asked = [message.metadata.dst_node_id for message in messages]
        if sorted(asked) != sorted(nodes):
            raise RuntimeError(
                f"strategy {type(self._inner).__name__} must ask each of the {len(nodes)} nodes of"
                f" the cohort once to train; it asks {len(asked)}."
            )
        parts = [(node, tuple(by_node[node])) for node in asked]
        return list(zip(messages, parts, strict=True))

    def read(self, message: Message, part: Part) -> Reply:
        """See `GridClients.read`: what counts is what was received minus what was sent."""
        node, users = part
        return Reply(users, self._layout.read(message)[None], node=node, origin=self._sent)


@dataclass(frozen=True, eq=False)
class FlowerAppTask(ExternalTask):
    """The task of a Flower app, which its clients know and the server does not."""

    kind: ClassVar[str] = "flower-app"
    label: ClassVar[str] = "clients of a Flower app"
    users_from: ClassVar[str] = "argument users"
    model_from: ClassVar[str] = "argument initial_arrays"
    continued_by: ClassVar[str] = "CorrelatedNoise"


class CorrelatedNoise:
    """User-level differential privacy for a Flower app, by wrapping its strategy.

    In each round the messages of the inner strategy go to a cohort of users. Their updates, reply
    minus model sent, are clipped together over all trained arrays, summed, divided by the planned
    users of a round (never by numbers of examples) and noised; the inner strategy sees one reply
    with the noisy mean, so its server rule (momentum, Adam, …) is post-processing. Every round is
    committed before anyone sees its model. Arrays of integers stay unchanged.

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
        extra_releases: values of `fedmf.runs.Statistic` that are released under the same ε.
        frozen: arrays that are neither trained nor noised: names, or patterns such as
            ``"features.*"``, in which ``*`` stands for any characters, dots too.
        tied: whether equal arrays are one under several names, such as an embedding that is also
            the head: it is trained, clipped and noised once. None asks if there are any.
        execution: for how many replies, and how long, a round waits, how often checkpoints are
            kept; messages are one a user. Default: an hour for all.
        run_dir: directory of ledger, key and statement; an existing run is continued. A simulation
            cannot be: where there is one, the next gets a directory of its own next to it. Default,
            also for an empty string: a new directory below ``~/.fedmf/runs``.

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
        execution: Execution | None = None,
        run_dir: str | Path | None = None,
    ) -> None:
        check_inner(strategy, server_optimizer is not None)
        self.inner = strategy
        self._optimizer = server_optimizer
        self.identity = users if isinstance(users, ServedUsers) else NodeIdentity(users)
        self._frozen = tuple(frozen)
        self._tied = tied
        waiting = execution or Execution(round_timeout=3600.0)
        self._values: dict[str, Any] = {
            "privacy": privacy,
            "cohorts": cohorts,
            "mechanism": mechanism,
            "execution": replace(waiting, messages="one-user"),
            "clipping": clipping or FixedClipping(),
            "extra_releases": tuple(extra_releases),
        }
        self._run(
            ArrayLayout(("model",), ((1,),), ("float32",), {})
        )  # to check what needs no model
        self.run_dir = _place(run_dir, self.identity.lasting)
        self._session: Session | None = None

    def _run(self, layout: ArrayLayout) -> Run:
        task = FlowerAppTask(layout, self.identity.user_list, self.identity.words)
        return Run(
            task=task, server=self._optimizer or InnerRule(self.inner, layout), **self._values
        )

    def statement(self) -> PrivacyStatement:
        """The guarantee and the releases so far.

        Raises:
            ConfigError: nothing was begun.
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
            grid: where the nodes are.
            initial_arrays: the model before the first round; of a run that is continued, its names,
                shapes, types and untrained arrays.
            num_rounds: of the whole run; default: all that were planned.
            timeout: seconds to wait for the replies of a round; default: the round timeout of the
                run.
            train_config: for clients.
            evaluate_config: not used, because clients are not asked to evaluate.
            evaluate_fn: says what of a released model; the result and `RoundRecord.metrics` hold
                it. Its numbers are recorded, so the result of a run that is continued has those of
                earlier rounds.
            should_stop: called with the number of a round and the result so far; True ends the run.
            on_round: called with a `fedmf.runs.RoundRecord` after each committed round; True ends
                the run.

        Raises:
            ConfigError: more rounds than were planned; no round is run. The disk failed.
            RuntimeError: no node answers before the first of these rounds; an inner strategy asks
                other nodes than the cohort, or one twice.
            LedgerError: a release failed, now or before. Close this strategy and make another one.
            Exception: what ``on_round`` raises; the same call continues the run.
        """
        session, layout = self._begun(initial_arrays)
        clients = AppClients(
            session, self.identity, grid, timeout, layout, self.inner, train_config
        )
        result = Result()
        horizon = session.server.horizon
        ours = metric_columns(None, session.run.statistics)
        for server_round, row in session.metrics.items():
            if said := {name: value for name, value in row.items() if name not in ours}:
                result.evaluate_metrics_serverapp[server_round] = MetricRecord(said)
        self.inner.summary()
        say(f"{type(self.inner).__name__} made private; {_UNASKED}")
        say_plan(session)
        for line in findings(self.inner):
            warn(line)

        def evaluate(server_round: int) -> Mapping[str, Any] | None:
            assert evaluate_fn is not None
            metrics = evaluate_fn(server_round, clients.arrays)
            if metrics is not None:
                result.evaluate_metrics_serverapp[server_round] = metrics
                session.judge(metrics)
            if server_round == 0:
                say_round(0, horizon, metrics or {})
            return metrics

        def told(record: RoundRecord) -> bool:
            stop = False
            if record.report is not None:
                say_round(record.rounds, horizon, record.metrics)
                if should_stop is not None:
                    result.arrays = clients.arrays
                    stop = should_stop(record.rounds, result)
            return bool(on_round is not None and on_round(record)) or stop

        TrainingLoop(session, clients, told, evaluate if evaluate_fn else None).run(num_rounds)
        result.arrays = clients.arrays
        return result

    def _begun(self, initial_arrays: ArrayRecord) -> tuple[Session, ArrayLayout]:
        """Plan the run and make its directory, or open the one that is there."""
        if self._session is None:
            layout = ArrayLayout.of(initial_arrays, self._frozen, self._tied)
            self.run_dir = _place(self.run_dir, self.identity.lasting)
            self._session = session_of(self.run_dir, self._run(layout), layout.flat(initial_arrays))
            self._layout = layout
        return self._session, self._layout


def findings(inner: FedAvg) -> Iterator[str]:
    """What of an app will not do what its author expects: one line for each, with its mend.

    Args:
        inner: the strategy that was made private.

    Guarantees:
        A function of the strategy's code.
    """
    base = next(base for base in MEANS if isinstance(inner, base))
    for method, why in _NOT_CALLED.items():
        if getattr(type(inner), method) is not getattr(base, method):
            yield f"{type(inner).__name__}.{method} is never called: {why}"
    if inner.train_metrics_aggr_fn is not base().train_metrics_aggr_fn:
        yield (
            "train_metrics_aggr_fn is not called: metrics that clients report of training carry no"
            " noise"
        )


def _place(run_dir: str | Path | None, lasting: bool) -> Path:
    """The directory of a run: what was asked for, or one that no run has."""
    if not run_dir:
        name = f"flower-{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 10**6:06d}"
        return Path.home() / ".fedmf" / "runs" / name
    path = Path(run_dir).expanduser().resolve()
    if lasting or not (path / LEDGER).is_file():
        return path
    others = (path.with_name(f"{path.name}-{count}") for count in itertools.count(2))
    place = next(other for other in others if not other.exists())
    warn(
        f"{path} contains a simulation with nodes that no longer exist; this run is stored in"
        f" {place}. On the same users their epsilons add up: fedmf account {path} {place}"
    )
    return place
