"""The check of a run's claim that sampling its cohorts amplifies privacy."""

from __future__ import annotations

from fedmf.accounting.amplification import CohortLaw, RunAmplification, check_run, check_sampling
from fedmf.accounting.statement.header import RunHeader
from fedmf.cohorts import SCHEDULES, SampledSchedule, cohort_schedule
from fedmf.errors import LedgerError
from fedmf.factorization import factorization_from_dict

__all__ = ["claimed_epsilon"]


def claimed_epsilon(header: RunHeader, known: float) -> float:
    """ε_planned while the cohorts stay secret: the ε asked for, after a check that the noise suffices.

    Args:
        header: of the run; its configuration says how the cohorts were drawn.
        known: ε against an observer who knows the cohorts.

    Raises:
        LedgerError: the cohorts were drawn otherwise than the accountant assumes, or the noise is too small.
    """
    if header.amplification is None:
        return known
    if header.epsilon is None or header.noise_multiplier == 0:
        raise LedgerError("the header claims amplification for a run without noise or without an epsilon.")
    found = RunAmplification.from_dict(header.amplification)
    try:
        check_sampling(found.accountant, header.adjacency)
        if found.accountant == "none":
            raise ValueError("accountant must name a sampling that amplifies; got 'none'.")
        law = CohortLaw(found.accountant, header.participation, _probability(header, found.accountant))
        if found.probability != law.probability:
            raise ValueError(
                f"q (probability) must be the schedule's {law.probability!r}; got {found.probability!r}."
            )
        factorization = factorization_from_dict(dict(header.factorization))
        check_run(found, law, factorization, header.relative_noise_std, header.epsilon, header.delta)
    except ValueError as error:
        raise LedgerError(f"the header's amplification does not hold: {error}") from None
    # Where sampling gained nothing the noise is that without amplification, and so is ε.
    return known if found.method == "none needed" else min(known, header.epsilon)


def _probability(header: RunHeader, accountant: str) -> float:
    """q of the schedule that drew the cohorts, from the recorded configuration.

    Raises:
        ValueError: the schedule does not draw what the accountant assumes.
    """
    name = str(header.config.get("schedule"))
    if name not in SCHEDULES:
        raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}; got {name!r}.")
    SCHEDULES[name].require_accountant(accountant)
    # The probability does not depend on the seed, and this schedule draws no cohort of the run.
    schedule = cohort_schedule(name, header.users, header.cohort_size, header.participation, seed=0)
    if not isinstance(schedule, SampledSchedule):
        raise ValueError(f"schedule must draw its cohorts at random; got {name!r}.")
    return schedule.probability
