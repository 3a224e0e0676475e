"""What one run or stream cost each of its users, as far as composition with others needs it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from fedmf.accounting import ParticipationRecord, Verdict, gaussian_mu
from fedmf.errors import LedgerError
from fedmf.statements.header import RunHeader
from fedmf.statements.per_user import user_privacy
from fedmf.statements.plan import Plan
from fedmf.statements.privacy_statement import build_statement
from fedmf.typing import Vector


class AmplifiedCost(ABC):
    """What a run with secret cohorts costs everybody who may have been drawn; abstract."""

    #: The part of δ that composition cannot lower.
    least_delta: float = 0.0

    @abstractmethod
    def loss_distribution(self, interval: float) -> Any:
        """A pair that dominates the run, as a privacy loss distribution on this grid, rounded up."""

    @property
    @abstractmethod
    def resolution(self) -> float:
        """The widest grid on which little is lost by rounding."""


@final
@dataclass(frozen=True)
class SampledGaussians(AmplifiedCost):
    """Cyclic Poisson cohorts: T Gaussian mechanisms with a user who is sampled.

    Args:
        noise_multiplier: σ of one of them.
        probability: q.
        steps: T.
    """

    noise_multiplier: float
    probability: float
    steps: int

    @property
    def resolution(self) -> float:
        """See `AmplifiedCost.resolution`."""
        return min(max(0.05 * self.probability / self.noise_multiplier, 1e-5), 1e-3)

    def loss_distribution(self, interval: float) -> Any:
        """See `AmplifiedCost.loss_distribution`."""
        from dp_accounting.pld import privacy_loss_distribution

        single = privacy_loss_distribution.from_gaussian_mechanism(
            self.noise_multiplier, value_discretization_interval=interval, sampling_prob=self.probability
        )
        return single.self_compose(self.steps)


@final
@dataclass(frozen=True)
class StatedCost(AmplifiedCost):
    """A run of which (ε, δ) alone is known: the pair that dominates every such mechanism.

    Args:
        epsilon: ε > 0.
        delta: δ in (0, 1).
    """

    epsilon: float
    delta: float

    @property
    def least_delta(self) -> float:  # type: ignore[override]
        """δ: with that probability everything may be lost."""
        return self.delta

    @property
    def resolution(self) -> float:
        """See `AmplifiedCost.resolution`."""
        return 1e-3

    def loss_distribution(self, interval: float) -> Any:
        """See `AmplifiedCost.loss_distribution`."""
        from dp_accounting.pld import common, privacy_loss_distribution

        parameters = common.DifferentialPrivacyParameters(self.epsilon, self.delta)
        return privacy_loss_distribution.from_privacy_parameters(
            parameters, value_discretization_interval=interval
        )


@dataclass(frozen=True, eq=False)
class UserCosts:
    """What one run or stream cost each of its users.

    Args:
        name: of its directory.
        unit: whose contribution is protected: "user" or "example".
        adjacency: "zero-out" or "replace-one".
        namespace: what its user ids are ids of; empty where none was named.
        key: fingerprint of its noise key.
        public_noise: whether anybody can compute its noise.
        delta: δ that it was asked for.
        users: ids of those that took part at least once, in any order.
        mu: μ of each from the participation recorded, shape (users,): towards those who know who took part.
        planned_mu: μ of a user who does all that its contract allows.
        amplified: what it costs everybody who may have been drawn while its cohorts stay secret; None where
            no amplification is claimed.
        exact: whether μ is that of the recorded rounds and not of a bound on them.
        finished: whether nothing more will be released, so that μ cannot grow.
        verdict: whether its records are all that was released.

    Raises:
        ValueError: lengths differ, or a μ is negative or not finite.
    """

    name: str
    unit: str
    adjacency: str
    namespace: str
    key: str
    public_noise: bool
    delta: float
    users: Sequence[str]
    mu: Vector
    planned_mu: float
    amplified: AmplifiedCost | None = None
    exact: bool = True
    finished: bool = True
    verdict: Verdict | None = None

    def __post_init__(self) -> None:
        mus = np.append(self.mu, self.planned_mu)
        if self.mu.shape != (len(self.users),) or not (np.isfinite(mus) & (mus >= 0)).all():
            raise ValueError(
                f"mu (of users) must be a non-negative number for each of {len(self.users)}; got others."
            )


def run_costs(
    name: str,
    header: RunHeader,
    ledger: ParticipationRecord,
    verdict: Verdict | None = None,
) -> UserCosts:
    """What a run cost each of its users, from its records, checked as for its statement.

    Args:
        name: of its directory.
        header: the run's description.
        ledger: its ledger.
        verdict: on these records.

    Raises:
        LedgerError: records that are damaged or contradict each other, or a run without noise.
    """
    plan = header.plan
    if plan.noise_multiplier == 0 or header.key_fingerprint is None:
        raise LedgerError(f"{name} adds no noise: nothing together with it is private.")
    statement = build_statement(header, ledger)
    spent = user_privacy(header, ledger)
    planned = gaussian_mu(plan.noise_multiplier)
    rounds = statement.recorded.rounds
    return UserCosts(
        name,
        plan.privacy.unit,
        plan.privacy.adjacency,
        plan.privacy.user_namespace,
        header.key_fingerprint,
        header.key_public,
        plan.privacy.delta,
        spent.users,
        spent.mu,
        planned,
        _amplified(plan),
        finished=rounds >= plan.allowed_rounds,
        verdict=verdict,
    )


def _amplified(plan: Plan) -> AmplifiedCost | None:
    claim, epsilon = plan.amplification, plan.privacy.requested_epsilon
    if claim is None or claim.method == "none needed" or epsilon is None:
        return None
    # Under replace-one a claim follows from that of zero-out (docs/theory/amplification.md#replace-one).
    if claim.accountant == "cyclic-poisson" and plan.privacy.adjacency == "zero-out":
        longest, steps = plan.law().steps(plan.mechanism.factorization)
        noise = plan.relative_noise_std / longest * (1 - 2.0**-50)
        return SampledGaussians(noise, claim.probability, steps)
    return StatedCost(epsilon, plan.privacy.delta)


def joined_mu(costs: Sequence[UserCosts]) -> tuple[list[str], Vector]:
    """Users who took part in any, and √(Σ μ²) of each over those given, rounded up.

    >>> def of(name, users, mu):
    ...     return UserCosts(name, "user", "zero-out", "x", name, False, 1e-5, users, np.array(mu), max(mu))
    >>> users, mu = joined_mu([of("a", ["ann", "bob"], [3.0, 1.0]), of("b", ["eve", "ann"], [2.0, 4.0])])
    >>> users, mu.round(9)
    (['ann', 'bob', 'eve'], array([5., 1., 2.]))
    """
    place: dict[str, int] = {}
    where = [[place.setdefault(user, len(place)) for user in one.users] for one in costs]
    squares = np.zeros(len(place))
    for one, places in zip(costs, where, strict=True):
        np.add.at(squares, np.array(places, dtype=np.int64), one.mu**2)
    slack = 1 + (len(costs) + 4) * 2.0**-52
    return [*place], np.sqrt(squares) * slack


def planned_mu(costs: Sequence[UserCosts]) -> float:
    """√(Σ μ²) of a user who does all that the contracts allow, rounded up."""
    return math.hypot(*(one.planned_mu for one in costs)) * (1 + (len(costs) + 4) * 2.0**-52)
