"""What the plan of a run allows its worst user, and the check of what the noise was scaled by."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from fedmf.accounting import certified_epsilon, check_run
from fedmf.errors import LedgerError
from fedmf.statements.plan import Plan


def claimed_epsilon(plan: Plan, known: float) -> float:
    """ε_planned while the cohorts stay secret: the ε asked for, after a check that the noise suffices.

    Args:
        plan: of the run; its cohorts say how they are drawn.
        known: ε against an observer who knows the cohorts.

    Raises:
        LedgerError: the cohorts are drawn otherwise than the accountant assumes, or the noise is too small.
    """
    claim, epsilon = plan.amplification, plan.privacy.requested_epsilon
    if claim is None:
        return known
    if epsilon is None or plan.noise_multiplier == 0:
        raise LedgerError("the header claims amplification for a run without noise or without an epsilon.")
    try:
        law = plan.law()
        if (claim.accountant, claim.probability) != (law.accountant, law.probability):
            raise ValueError(
                f"accountant and q (probability) must be those of the cohorts, {law.accountant!r} and "
                f"{law.probability!r}; got {claim.accountant!r} and {claim.probability!r}."
            )
        C = plan.mechanism.factorization
        check_run(claim, law, C, plan.relative_noise_std, plan.privacy.adjacency, epsilon, plan.privacy.delta)
    except ValueError as error:
        raise LedgerError(f"the header's amplification does not hold: {error}") from None
    # Where sampling gained nothing the noise is that without amplification, and so is ε.
    return known if claim.method == "none needed" else min(known, epsilon)


#: ε of the worst recorded pattern and of the worst allowed pattern are summed in different orders.
TOLERANCE: Final = 1e-9


@dataclass(frozen=True)
class PlannedPrivacy:
    """What the contract allows the worst user; infinite in a run without noise.

    Attributes:
        epsilon: ε at the full horizon; with amplification, only while the cohorts stay secret.
        known_cohorts: the same against an observer who knows in which rounds each user took part; equal to
            ``epsilon`` without amplification.
        so_far: the same as ``epsilon`` for the rounds released; None once all are.
        known_so_far: that against an observer of the cohorts; ``known_cohorts`` once all are.
    """

    epsilon: float
    known_cohorts: float
    so_far: float | None
    known_so_far: float


def planned_privacy(plan: Plan, released: int) -> PlannedPrivacy:
    """What the plan allows.

    Args:
        plan: of the run.
        released: rounds.

    Raises:
        LedgerError: a claim of amplification that does not hold.
    """
    noisy = plan.noise_multiplier > 0
    delta, asked = plan.privacy.delta, plan.privacy.requested_epsilon
    known = certified_epsilon(plan.noise_multiplier, delta, asked) if noisy else math.inf
    epsilon = claimed_epsilon(plan, known)
    if released == plan.participation.rounds:
        return PlannedPrivacy(epsilon, known, None, known)
    known_so_far = math.inf if released else 0.0
    if noisy and released:
        known_so_far = min(known, certified_epsilon(plan.multiplier_after(released), delta))
    secret = epsilon if plan.amplification is None else min(epsilon, plan.epsilon_after(released))
    return PlannedPrivacy(epsilon, known, min(known_so_far, secret), known_so_far)


def check_sensitivity(plan: Plan) -> None:
    """The noise was scaled by the recorded sensitivity; it must be at least the one that C has.

    Args:
        plan: of the run.

    Raises:
        LedgerError: it is not.
    """
    if plan.release.rounds != plan.participation.rounds:
        raise LedgerError(
            f"the header's factorization has n={plan.release.rounds} rounds; training was planned for "
            f"{plan.participation.rounds}."
        )
    stated, recomputed = plan.sensitivity.value, plan.release.stated(plan.participation).value
    if not stated >= recomputed * (1 - TOLERANCE):
        raise LedgerError(
            f"the header states sensitivity {stated!r}, below the {recomputed!r} of its "
            "factorization. The noise was too small for the ε that was asked for."
        )
