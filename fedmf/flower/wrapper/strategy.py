"""Any Flower strategy whose aggregation is a mean, made private by correlated noise."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from fedmf.cohorts import Cohorts
from fedmf.errors import ConfigError
from fedmf.flower.screen import say, say_plan, say_round, warn
from fedmf.flower.strategy import EvaluateFn, GridClients, RoundStrategy, ShouldStop
from fedmf.flower.wrapper.cohort_grid import AppClients
from fedmf.flower.wrapper.identity import NodesAreUsers, UserIdentity
from fedmf.flower.wrapper.inner_rule import MEANS, InnerRule, check_inner, check_no_rule
from fedmf.flower.wrapper.layout import ArrayLayout
from fedmf.mechanisms.choice import MechanismChoice
from fedmf.mechanisms.matrix import Factorization
from fedmf.optim import ChosenOptimizer, ServerOptimizer
from fedmf.participation import Adjacency
from fedmf.records import PrivacyStatement
from fedmf.runs import (
    Execution,
    NoiseAndSignal,
    NoiseMechanism,
    OnRound,
    RoundRecord,
    Rounds,
    Run,
    Session,
    TaskElsewhere,
    asked_cohorts,
    asked_privacy,
    session_of,
)
from fedmf.runs.statistics import FixedClipping, QuantileClipping, Statistic

_UNASKED: Final = "clients are not asked to evaluate: what they report would carry no noise"
#: Methods of a strategy that Flower's loop calls and the private one does not.
_NOT_CALLED: Final = {
    "start": "CorrelatedNoise has its own loop: what yours adds goes into on_round or evaluate_fn",
    "configure_evaluate": _UNASKED,
    "aggregate_evaluate": _UNASKED,
}


def findings(session: Session, inner: FedAvg) -> Iterator[str]:
    """One line for each, with its mend.

    Args:
        session: of the run that begins or goes on.
        inner: the strategy that was made private.

    Guarantees:
        A function of the plan, the model's shape and the strategy's code.
    """
    base = next(base for base in MEANS if isinstance(inner, base))
    name = type(inner).__name__
    for method, why in _NOT_CALLED.items():
        replaced = getattr(type(inner), method) is not getattr(base, method)
        if replaced:
            yield f"{name}.{method} is never called: {why}"
    if inner.train_metrics_aggr_fn is not base().train_metrics_aggr_fn:
        yield ("train_metrics_aggr_fn is not called: metrics that clients report of training carry no noise")
    if session.plan.noise_std > 0:
        warning = NoiseAndSignal.of(session.plan, session.server.dimension).warning
        if warning is not None:
            yield warning


@dataclass(frozen=True, eq=False)
class FlowerAppTask(TaskElsewhere):
    """The task of a Flower app, which its clients know and the server does not."""

    kind: ClassVar[str] = "flower-app"
    called: ClassVar[str] = "clients of a Flower app"
    users_from: ClassVar[str] = "argument num_users"
    model_from: ClassVar[str] = "argument initial_arrays"
    unknown: ClassVar[str] = "the task of a Flower app is its clients' own; continue it with CorrelatedNoise."


class CorrelatedNoise(RoundStrategy):
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
        extra_releases: statistics such as `fedmf.OwnStatistic` that are released under the same ε.
        num_users: N.
        users_per_round: m, how many are asked in a round.
        num_rounds: n, the most rounds there will ever be.
        mechanism: name of a mechanism, or a factorization.
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
        tied: groups of names under which one array stands, such as an embedding that is also the head: it is
            trained, clipped and noised once. Empty where equal arrays are several; None asks if there are.
        server_optimizer: a server rule of fedmf in place of the strategy's own, such as `Sgd`, `JmeAdam`
            with private second moments of its own noise, or any object with ``init`` and ``step``; the
            strategy must then be one without a rule, FedAvg or FedProx.
        min_replies: after so many replies to a round the others are not waited for; 0 waits for all, at most
            for the ``timeout`` of ``start``.
        handshake_timeout: seconds before the first round in which nodes may say whom they serve.
        on_round: called with a `fedmf.runs.RoundRecord` after each committed round; the run ends if it
            returns True.
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
        noise_seed: int | None = None,
        run_dir: str | Path | None = None,
        adjacency: Adjacency = "zero-out",
        cohorts: Cohorts | None = None,
        identity: UserIdentity | None = None,
        amplified: bool = False,
        frozen: Sequence[str] = (),
        tied: Sequence[Sequence[str]] | None = None,
        server_optimizer: ChosenOptimizer | ServerOptimizer | None = None,
        min_replies: int = 0,
        handshake_timeout: float = 60.0,
        trusted_subclass: bool = False,
        adaptive_clipping: QuantileClipping | None = None,
        extra_releases: Sequence[Statistic] = (),
        on_round: OnRound | None = None,
    ) -> None:
        check_inner(strategy, trusted_subclass)
        if server_optimizer is not None:
            check_no_rule(strategy)
        self.inner = strategy
        self.identity = identity or NodesAreUsers(num_users)
        if self.identity.users != num_users:
            raise ConfigError(
                f"num_users must be that of the identity, {self.identity.users}; got {num_users}."
            )
        self._frozen, self._tied, self._optimizer = tuple(frozen), tied, server_optimizer
        try:
            self._execution = Execution(
                messages="per-user",
                users_per_message=1,
                min_replies=min_replies,
                handshake_timeout=handshake_timeout,
            )
        except ValueError as error:
            raise ConfigError(str(error)) from None
        self._privacy = asked_privacy(
            clip_norm=clipping_norm,
            delta=delta,
            adjacency=adjacency,
            noise_seed=noise_seed,
            epsilon=epsilon,
            amplified=amplified,
        )
        self._cohorts = asked_cohorts(cohorts, num_rounds, users_per_round)
        self._mechanism, self._clipping = mechanism, adaptive_clipping or FixedClipping()
        self._extra_releases = tuple(extra_releases)
        self._path = Path(run_dir).expanduser().resolve() if run_dir else _new_place()
        self._on_round = on_round
        self._opened: Session | None = None

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
        """Say what will run, and what of the app will not do what its author expects."""
        self.inner.summary()
        if self._opened is not None:
            say(f"{type(self.inner).__name__} made private; {_UNASKED}")
            say_plan(self._opened)
            for line in findings(self._opened, self.inner):
                warn(line)

    def begin(self, initial_arrays: ArrayRecord) -> Session:
        """Plan the run and make its directory, or open the one that is there. `start` does it."""
        if self._opened is None:
            layout = ArrayLayout.of(initial_arrays, self._frozen, self._tied)
            task = FlowerAppTask(layout, self.identity.roster, self.identity.words)
            run = Run(
                task=task,
                cohorts=self._cohorts,
                privacy=self._privacy,
                mechanism=self._mechanism,
                server=self._optimizer or InnerRule(self.inner, layout),
                execution=self._execution,
                clipping=self._clipping,
                extra_releases=self._extra_releases,
            )
            initial = layout.flat(initial_arrays).float()
            opened = session_of(self._path, run, task, initial, self.identity.lasting)
            self._opened, self.clients = opened, AppClients(opened, layout, self.inner, self.identity)
            self.rounds = Rounds(opened, self.clients)
        return self._opened

    def begun(self, arrays: ArrayRecord | None) -> tuple[Rounds, GridClients]:
        """See `RoundStrategy.begun`."""
        if self.rounds is None and arrays is not None:
            self.begin(arrays)
        return super().begun(arrays)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
        should_stop: ShouldStop | None = None,
    ) -> Result:
        """Run up to ``num_rounds``, from the round after the last that was committed.

        Raises:
            ConfigError: more rounds than were planned; nobody is asked. The disk failed.
            RuntimeError: no node answers before the first of these rounds.
            LedgerError: a release failed, now or before. Close this strategy and make another one.
            Exception: what ``on_round`` raises; the same call continues the run.
        """
        rounds, clients = self.begun(initial_arrays)
        self.summary()
        clients.over(grid, timeout, train_config)
        server = rounds.session.server

        def judge(number: int, arrays: ArrayRecord) -> MetricRecord | None:
            assert evaluate_fn is not None
            metrics = evaluate_fn(number, arrays)
            if number == 0:
                say_round(0, server.horizon, {**rounds.session.metrics.get(0, {}), **(metrics or {})})
            return metrics

        def told(record: RoundRecord) -> bool | None:
            say_round(record.rounds, record.horizon, record.metrics)
            stop = self._on_round is not None and self._on_round(record)
            if stop:
                say(f"on_round stopped the run after round {record.rounds} of {record.horizon}")
            return stop

        return self.carry_out(num_rounds, judge if evaluate_fn else None, should_stop, told)


def _new_place() -> Path:
    """A directory that no run has."""
    name = f"flower-{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 10**6:06d}"
    return Path.home() / ".fedmf" / "runs" / name
