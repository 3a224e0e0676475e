"""The check of a run's claim that sampling its cohorts amplifies privacy."""

from __future__ import annotations

from fedmf.accounting.amplification import check_run
from fedmf.accounting.plan import Plan
from fedmf.errors import LedgerError


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
