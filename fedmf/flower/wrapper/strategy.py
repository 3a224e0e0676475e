"""Any Flower strategy whose aggregation is a mean, made private by correlated noise."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from fedmf.accounting import UserLevel
from fedmf.cohorts import CheckInCohorts, Cohorts, CyclicCohorts
from fedmf.errors import ConfigError
from fedmf.factorization import Factorization, MechanismChoice
from fedmf.flower.boundary import Quarantine, Wait
from fedmf.flower.wrapper.app_task import FlowerAppTask, session_of
from fedmf.flower.wrapper.client_evaluation import AskedEvaluation, ClientEvaluation, ClientEvaluationKind
from fedmf.flower.wrapper.cohort_grid import AppClients
from fedmf.flower.wrapper.cohort_training import CohortTraining
from fedmf.flower.wrapper.execution import DEFAULT, performed
from fedmf.flower.wrapper.identity import NodesAreUsers, UserIdentity
from fedmf.flower.wrapper.inner_rule import InnerRule, check_inner, check_no_rule
from fedmf.flower.wrapper.layout import ArrayLayout
from fedmf.flower.wrapper.private_client_evaluation import evaluation_of
from fedmf.optim import ChosenOptimizer, ServerOptimizer
from fedmf.participation import Adjacency
from fedmf.parts import FixedClipping, Part, QuantileClipping
from fedmf.runs import Execution, NoiseMechanism, PrivateEvaluation, Run, Session, write_statement
from fedmf.statements import PrivacyStatement

_log = logging.getLogger("fedmf")
_PRIVATE_EVALUATION: Final = PrivateEvaluation()


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
        adaptive_clipping: `fedmf.QuantileClipping` lets ζ follow a quantile of norms after the first round,
            under the same ε.
        beside: further quantities of `fedmf.parts` that are released under the same ε.
        num_users: N.
        users_per_round: m, how many are asked in a round.
        num_rounds: n, the most rounds there will ever be.
        mechanism: name of a mechanism, or a factorization.
        client_evaluation: "off"; "private": metrics that clients report, with noise, under the same ε; or
            "not-private": the inner strategy's evaluation on clients, without noise, that no ε counts.
        evaluation_metrics: for "private": the metrics to release, each with its public range, such as
            ``{"eval_loss": (0.0, 5.0), "eval_acc": (0.0, 1.0)}``. Every user counts once.
        private_evaluation: for "private": share of the budget, rounds between evaluations, users asked.
        noise_seed: public seed: a simulation that anyone can undo; None draws a key from the operating
            system.
        run_dir: where ledger, key and statement are; a run that is there is continued. Default: a new
            directory below ``~/.fedmf/runs``.
        adjacency: "zero-out" or "replace-one".
        cohorts: who takes part when, instead of ``users_per_round`` in turn.
        identity: who a user is; default: every virtual node of a simulation. For deployments `EnrolledUsers`.
        amplified: count the secrecy of sampled ``cohorts`` (`BallsInBinsCohorts`, `MinSeparatedCohorts`,
            `CyclicPoissonCohorts`): less noise for the same ε against those who do not know who took part.
        frozen: arrays that are neither trained nor noised: names, or patterns such as ``"features.*"``, in
            which ``*`` stands for any characters, dots too.
        max_epsilon: stop before any allowed user spends more than this.
        user_budgets: CSV or Parquet file with the columns user, epsilon.
        server_optimizer: a server rule of fedmf in place of the strategy's own, such as `Sgd`, `JmeAdam`
            with private second moments of its own noise, or any object with ``init`` and ``step``; the
            strategy must then be one without a rule, FedAvg or FedProx.
        execution: with messages "per-user": ``min_replies`` and ``grace`` (how long replies are waited for
            after the first have come), ``silent_retries``, ``refusals`` (when useless nodes are not asked any
            more) and ``handshake_timeout``. Its other fields mean nothing for another's app: refused.
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
        client_evaluation: ClientEvaluationKind = "off",
        evaluation_metrics: Mapping[str, tuple[float, float]] | None = None,
        private_evaluation: PrivateEvaluation = _PRIVATE_EVALUATION,
        noise_seed: int | None = None,
        run_dir: str | Path | None = None,
        adjacency: Adjacency = "zero-out",
        cohorts: Cohorts | None = None,
        identity: UserIdentity | None = None,
        amplified: bool = False,
        frozen: Sequence[str] = (),
        max_epsilon: float | None = None,
        user_budgets: str = "",
        server_optimizer: ChosenOptimizer | ServerOptimizer | None = None,
        execution: Execution = DEFAULT,
        trusted_subclass: bool = False,
        adaptive_clipping: QuantileClipping | None = None,
        beside: Sequence[Part] = (),
    ) -> None:
        check_inner(strategy, trusted_subclass)
        if server_optimizer is not None:
            check_no_rule(strategy)
        self.inner = strategy
        self._asked = AskedEvaluation(client_evaluation, dict(evaluation_metrics or {}), private_evaluation)
        self.identity = identity or NodesAreUsers(num_users)
        if self.identity.users != num_users:
            raise ConfigError(
                f"num_users must be that of the identity, {self.identity.users}; got {num_users}."
            )
        self._frozen, self._optimizer = tuple(frozen), server_optimizer
        self._execution = performed(execution)
        self._privacy = _checked(
            lambda: UserLevel(
                clip_norm=clipping_norm,
                delta=delta,
                adjacency=adjacency,
                noise_seed=noise_seed,
                epsilon=epsilon,
                amplified=amplified,
                max_epsilon=max_epsilon,
                user_budgets=user_budgets,
            )
        )
        self._cohorts = cohorts or _checked(lambda: CyclicCohorts(rounds=num_rounds, size=users_per_round))
        if (self._cohorts.rounds, self._cohorts.size) != (num_rounds, users_per_round):
            raise ConfigError("cohorts must have the rounds and users_per_round that are given beside them.")
        if isinstance(self._cohorts, CheckInCohorts) and self._cohorts.live:
            raise ConfigError(
                "cohorts must not be live around another strategy; got live = true. Rounds by the clock are "
                "those of fedmf's own server app."
            )
        self._mechanism, self._clipping = mechanism, adaptive_clipping or FixedClipping()
        self._beside = tuple(beside)
        self._path = Path(run_dir).expanduser().resolve() if run_dir else _new_place()
        self._opened: Session | None = None
        self._training: CohortTraining | None = None
        self._evaluation: ClientEvaluation | None = None

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
            self._opened.directory.close()

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
                self._asked.kind,
                self._path,
            )
        self.inner.summary()

    def begin(self, initial_arrays: ArrayRecord) -> Session:
        """Plan the run and make its directory, or open the one that is there. `start` does it."""
        if self._opened is None:
            layout = ArrayLayout.of(initial_arrays, self._frozen)
            task = FlowerAppTask(layout, self.identity.roster, self.identity.words, self._asked.metrics)
            run = Run(
                task=task,
                cohorts=self._cohorts,
                privacy=self._privacy,
                mechanism=self._mechanism,
                optimizer=self._optimizer or InnerRule(self.inner, layout),
                evaluation=self._asked.recorded,
                execution=self._execution,
                clipping=self._clipping,
                beside=self._beside,
            )
            initial = layout.flat(initial_arrays).float()
            opened = session_of(self._path, run, task, initial, self.identity.lasting)
            quarantine, retries = Quarantine(self._execution.refusals), self._execution.silent_retries
            clients = AppClients(opened, layout, self.inner, self.identity, quarantine, retries)
            self._opened, self._training = opened, CohortTraining(clients)
            self._evaluation = evaluation_of(self._asked, clients)
        return self._opened

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """The inner strategy's messages to the nodes of the round's cohort.

        Raises:
            RuntimeError: the inner strategy asks other nodes, or one twice.
        """
        self.begin(arrays)
        assert self._training is not None
        return self._training.configure(server_round, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Clip, sum, noise, step, commit. Whose reply arrived is present, whatever it holds."""
        assert self._training is not None
        return self._training.release(server_round, replies), None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages to those who are asked about the model, if any are."""
        self.begin(arrays)
        assert self._evaluation is not None
        return self._evaluation.configure(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """What is shown of clients' evaluation."""
        assert self._evaluation is not None
        return self._evaluation.aggregate(server_round, replies)

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
            LedgerError: a release failed, now or before. Close this strategy and make another one.
        """
        opened, training, evaluation = self.begin(initial_arrays), self._training, self._evaluation
        assert training is not None
        assert evaluation is not None
        server = opened.server
        server.require_right()
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
        execution, result = self._execution, Result()
        wait = Wait(timeout, execution.min_replies, execution.grace, training.clients.layout.most_bytes)
        result.arrays = training.clients.model
        if evaluate_fn is not None and server.t == 0:
            _keep(result.evaluate_metrics_serverapp, 0, evaluate_fn(0, result.arrays))
        result.evaluate_metrics_clientapp.update(evaluation.released())
        left = evaluation.is_left(server.t)
        if left or server.t < last:
            self.identity.gather(grid, timeout, execution.handshake_timeout)
        try:
            if left:
                metrics = evaluation.evaluate(server.t, result.arrays, evaluate, grid, wait)
                _keep(result.evaluate_metrics_clientapp, server.t, metrics)
            while server.t < last:
                number = server.t + 1
                arrays = training.release(number, training.replies(number, train, grid, wait))
                result.arrays = arrays
                metrics = evaluation.evaluate(number, arrays, evaluate, grid, wait)
                _keep(result.evaluate_metrics_clientapp, number, metrics)
                if evaluate_fn is not None:
                    _keep(result.evaluate_metrics_serverapp, number, evaluate_fn(number, arrays))
                _log.info("round %d of %d: released", number, last)
        except BaseException:
            with contextlib.suppress(Exception):  # what stopped the run is what should be seen
                write_statement(opened.directory.path, opened.statement())
            raise
        write_statement(opened.directory.path, opened.statement())
        return result


def _new_place() -> Path:
    """A directory that no run has."""
    name = f"flower-{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 10**6:06d}"
    return Path.home() / ".fedmf" / "runs" / name


def _keep(history: dict[int, MetricRecord], number: int, metrics: MetricRecord | None) -> None:
    if metrics is not None:
        history[number] = metrics


def _checked(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except ValueError as error:
        raise ConfigError(str(error)) from None
