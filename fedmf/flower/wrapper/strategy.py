"""Any Flower strategy whose aggregation is a mean, made private by correlated noise."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from fedmf.accounting import PrivacyStatement, UserLevel
from fedmf.cohorts import Cohorts, CyclicCohorts
from fedmf.errors import ConfigError
from fedmf.factorization import Factorization, MechanismChoice
from fedmf.flower.boundary import Quarantine, Wait, pull_until
from fedmf.flower.persistence import Persistence
from fedmf.flower.wrapper.app_run import AppRun, new_place
from fedmf.flower.wrapper.app_task import FlowerAppTask
from fedmf.flower.wrapper.cohort_grid import CohortGrid, messages_of
from fedmf.flower.wrapper.identity import NodesAreUsers, UserIdentity
from fedmf.flower.wrapper.inner_rule import InnerRule, check_inner
from fedmf.flower.wrapper.layout import ArrayLayout
from fedmf.flower.wrapper.round_trip import RoundTrip
from fedmf.participation import Adjacency
from fedmf.runs import CentralEvaluation, Execution, NoiseMechanism, NotPrivateEvaluation, Run

__all__ = ["CorrelatedNoise"]

_log = logging.getLogger("fedmf")
#: What a run records of each way in which clients may evaluate.
_EVALUATIONS: Final = {"off": CentralEvaluation(), "not-private": NotPrivateEvaluation()}
_EXECUTION: Final = Execution(messages="per-user")


class CorrelatedNoise(Strategy):
    """User-level differential privacy for a Flower app, around the strategy it has.

    Each round a cohort of users is asked by the messages that the inner strategy makes. Their updates, reply
    minus model sent, are clipped together over all trained arrays, summed, divided by ``users_per_round``
    (never by numbers of examples) and noised; the inner strategy sees one reply with the noisy mean, so its
    server rule (momentum, Adam, …) is post-processing. Every round is committed before anybody sees its
    model.

    Args:
        strategy: a new FedAvg, FedAvgM, FedProx, FedAdam, FedAdagrad or FedYogi.
        epsilon: ε for all rounds together.
        delta: δ.
        clipping_norm: ζ, the largest ℓ₂ norm of one user's update.
        num_users: N.
        users_per_round: m, how many are asked in a round.
        num_rounds: n, the most rounds there will ever be.
        mechanism: name of a mechanism, or a factorization.
        client_evaluation: "off", or "not-private": the inner strategy's evaluation on clients, whose metrics
            are computed from users' examples without noise and that no ε counts.
        noise_seed: public seed: a simulation that anyone can undo; None draws a key from the operating
            system.
        run_dir: where ledger, key and statement are; a run that is there is continued. Default: a new
            directory below ``~/.fedmf/runs``.
        adjacency: "zero-out" or "replace-one".
        cohorts: who takes part when, instead of ``users_per_round`` in turn.
        identity: who a user is; default: every virtual node of a simulation. `UsersSayWho` for deployments.
        frozen: names of arrays that are neither trained nor noised.
        max_epsilon: stop before any allowed user spends more than this.
        user_budgets: CSV or Parquet file with the columns user, epsilon.
        execution: how long replies are waited for after the first have come, how often silence is asked again
            and when useless nodes are not asked any more; messages "per-user".
        trusted_subclass: the strategy's class replaces parts of an admitted one, but only to look at results.

    Raises:
        ConfigError: a strategy whose aggregation is something else, or values that do not fit together.
    """

    def __init__(
        self,
        strategy: FedAvg,
        *,
        epsilon: float,
        delta: float,
        clipping_norm: float,
        num_users: int,
        users_per_round: int,
        num_rounds: int,
        mechanism: str | Factorization | MechanismChoice | NoiseMechanism = "banded-toeplitz",
        client_evaluation: Literal["off", "not-private"] = "off",
        noise_seed: int | None = None,
        run_dir: str | Path | None = None,
        adjacency: Adjacency = "zero-out",
        cohorts: Cohorts | None = None,
        identity: UserIdentity | None = None,
        frozen: Sequence[str] = (),
        max_epsilon: float | None = None,
        user_budgets: str = "",
        execution: Execution = _EXECUTION,
        trusted_subclass: bool = False,
    ) -> None:
        check_inner(strategy, trusted_subclass)
        if execution.messages != "per-user":
            raise ConfigError(f"execution must have messages 'per-user'; got {execution.messages!r}.")
        if client_evaluation not in ("off", "not-private"):
            raise ConfigError(
                f"client_evaluation must be 'off' or 'not-private'; got {client_evaluation!r}. Private "
                "evaluation needs clients of fedmf, which say what each user's metrics are."
            )
        self.inner, self.client_evaluation = strategy, client_evaluation
        self.identity = identity or NodesAreUsers(num_users)
        if self.identity.users != num_users:
            raise ConfigError(
                f"num_users must be that of the identity, {self.identity.users}; got {num_users}."
            )
        self._frozen, self._execution = tuple(frozen), execution
        self._quarantine = Quarantine(execution.refusals)
        self._privacy = _checked(
            lambda: UserLevel(
                clip_norm=clipping_norm,
                delta=delta,
                adjacency=adjacency,
                noise_seed=noise_seed,
                epsilon=epsilon,
                max_epsilon=max_epsilon,
                user_budgets=user_budgets,
            )
        )
        self._cohorts = cohorts or _checked(lambda: CyclicCohorts(rounds=num_rounds, size=users_per_round))
        if (self._cohorts.rounds, self._cohorts.size) != (num_rounds, users_per_round):
            raise ConfigError("cohorts must have the rounds and users_per_round that are given beside them.")
        self._mechanism = mechanism
        self._path = Path(run_dir).expanduser().resolve() if run_dir else new_place()
        self._opened: AppRun | None = None
        self._round: RoundTrip | None = None
        self._may_wait = True

    @property
    def run_dir(self) -> Path:
        """Where ledger, key and statement are."""
        return self._path

    def statement(self) -> PrivacyStatement:
        """What was promised and what was released so far.

        Raises:
            ConfigError: nothing was begun.
        """
        if self._opened is None:
            raise ConfigError("statement needs a run that was begun: call start first.")
        return self._opened.statement()

    def close(self) -> None:
        """Let another process continue the run."""
        if self._opened is not None:
            self._opened.close()

    def summary(self) -> None:
        """Log what will run."""
        if self._opened is not None:
            plan = self._opened.plan
            _log.info(
                "%s around %s: mechanism %s, noise multiplier %.4g; client evaluation %s; run directory %s",
                type(self).__name__,
                type(self.inner).__name__,
                plan.mechanism.name,
                plan.noise_multiplier,
                self.client_evaluation,
                self._path,
            )
        self.inner.summary()

    def begin(self, initial_arrays: ArrayRecord) -> AppRun:
        """Plan the run and make its directory, or open the one that is there. `start` does it."""
        if self._opened is None:
            layout = ArrayLayout.of(initial_arrays, self._frozen)
            run = Run(
                task=FlowerAppTask(layout, self.identity.roster, self.identity.words),
                cohorts=self._cohorts,
                privacy=self._privacy,
                mechanism=self._mechanism,
                optimizer=InnerRule(self.inner, layout),
                evaluation=_EVALUATIONS[self.client_evaluation],
                execution=self._execution,
            )
            self._layout = layout
            self._opened = AppRun.open(
                self._path, run, layout.flat(initial_arrays).float(), layout, self.identity.lasting
            )
        return self._opened

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """The inner strategy's messages to the nodes of the round's cohort.

        Raises:
            RuntimeError: the inner strategy asks other nodes, or one twice.
        """
        opened = self.begin(arrays)
        roster = self.identity.roster
        cohort = opened.cohort(server_round - 1, roster)
        served = {node: user for user in cohort if (node := self.identity.node_of(user)) is not None}
        nodes = {node: user for node, user in served.items() if (node, user) not in self._quarantine}
        sent = self._layout.record(opened.server.parameters)
        messages = messages_of(self.inner, server_round, sent, config, CohortGrid(grid, sorted(nodes)))
        asked = [message.metadata.dst_node_id for message in messages]
        if sorted(asked) != sorted(nodes):
            raise RuntimeError(
                f"strategy {type(self.inner).__name__} must ask each of the {len(nodes)} nodes of the cohort "
                f"once; it asks {len(asked)}."
            )
        by_user = [(message, nodes[message.metadata.dst_node_id]) for message in messages]
        self._round = RoundTrip(cohort, by_user, self._layout.flat(sent), self._layout, self._quarantine)
        self._may_wait = bool(cohort) and len(nodes) == len(served)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Clip, sum, noise, step, commit. Whose reply arrived is present, whatever it holds."""
        opened, trip = self._opened, self._round
        assert opened is not None
        assert trip is not None
        total = opened.server.new_sum()
        trip.fold(replies, total)
        opened.server.release(total, trip.present)
        opened.note_failures(server_round - 1, trip.failures)
        return self._layout.record(opened.server.parameters), None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The inner strategy's, or nothing."""
        if self.client_evaluation == "off":
            return []
        return self.inner.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The inner strategy's; replies that it cannot take never end the run. Not private, by name."""
        try:
            metrics = self.inner.aggregate_evaluate(server_round, list(replies))
        except Exception as error:
            _log.warning("round %d: client evaluation failed: %s", server_round, type(error).__name__)
            return None
        if metrics is None:
            return None
        return MetricRecord({f"{name}_not_private": value for name, value in metrics.items()})

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run up to ``num_rounds``, from the round after the last that was committed.

        Raises:
            ConfigError: more rounds than were planned; nobody is asked.
            RuntimeError: no node answers, or no reply to a round arrived however often it was asked for.
        """
        opened = self.begin(initial_arrays)
        server = opened.server
        last = server.horizon if num_rounds is None else num_rounds
        if last > server.horizon:
            raise ConfigError(
                f"num_rounds must be at most the {server.horizon} that the noise is calibrated for; "
                f"got {last}."
            )
        last = min(last, opened.plan.allowed_rounds)
        self.summary()
        train = ConfigRecord() if train_config is None else train_config
        evaluate = ConfigRecord() if evaluate_config is None else evaluate_config
        result = Result()
        result.arrays = self._layout.record(server.parameters)
        if evaluate_fn is not None and server.t == 0:
            _keep(result.evaluate_metrics_serverapp, 0, evaluate_fn(0, result.arrays))
        if server.t < last:
            self.identity.gather(grid, timeout)
        try:
            while server.t < last:
                number = server.t + 1
                arrays, _ = self.aggregate_train(number, self._replies(number, grid, timeout, train))
                assert arrays is not None
                result.arrays = arrays
                messages = list(self.configure_evaluate(number, arrays, evaluate, grid))
                if messages:
                    replies = pull_until(grid, grid.push_messages(messages), self._wait(timeout))
                    _keep(result.evaluate_metrics_clientapp, number, self.aggregate_evaluate(number, replies))
                if evaluate_fn is not None:
                    _keep(result.evaluate_metrics_serverapp, number, evaluate_fn(number, arrays))
                _log.info("round %d of %d: released", number, last)
        finally:
            opened.write_statement()
        return result

    def _wait(self, seconds: float) -> Wait:
        return Wait(seconds, self._execution.min_replies, self._execution.grace, self._layout.most_bytes)

    def _replies(self, number: int, grid: Grid, timeout: float, config: ConfigRecord) -> Iterator[Message]:
        """The replies to a round, asked for again until one arrives."""
        replies = Persistence(self._wait(timeout), self._execution.silent_retries).replies(
            f"round {number}",
            grid,
            self.identity,
            lambda: self.configure_train(number, ArrayRecord(), config, grid),
            # A user who is asked no more would have ended the wait by another useless reply.
            lambda: self._may_wait,
        )
        if replies is None:
            raise RuntimeError(
                f"no reply to round {number} arrived in {self._execution.silent_retries + 1} attempts; "
                "stopped. Nothing of it was released: start again when nodes answer."
            )
        return replies


def _keep(history: dict[int, MetricRecord], number: int, metrics: MetricRecord | None) -> None:
    if metrics is not None:
        history[number] = metrics


def _checked(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except ValueError as error:
        raise ConfigError(str(error)) from None
