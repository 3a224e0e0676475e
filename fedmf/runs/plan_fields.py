"""The fields of a plan that follow from a run, in plain numbers; used for new and recorded runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedmf.cohorts import Cohorts, SampledCohorts
from fedmf.participation import Participation
from fedmf.runs.statistics import QuantileClipping, Statistic
from fedmf.statements.privacy import Privacy

if TYPE_CHECKING:
    from fedmf.accounting.sampling import CohortLaw


def plan_fields(
    privacy: Privacy, cohorts: Cohorts, statistics: Sequence[Statistic]
) -> dict[str, Any]:
    """The fields of a `Plan` that its run determines."""
    normalized = False
    for statistic in statistics:
        if isinstance(statistic, QuantileClipping) and statistic.normalize_updates:
            normalized = True
    return {
        "epsilon": privacy.requested_epsilon,
        "delta": privacy.delta,
        "adjacency": privacy.adjacency,
        "clip_norm": privacy.clip_norm,
        "users_per_round": cohorts.users_per_round,
        "statistics": tuple(statistics),
        "normalized": normalized,
    }


def cohort_law(cohorts: Cohorts, users: int, participation: Participation) -> CohortLaw:
    """The law by which secret cohorts are drawn.

    Raises:
        ValueError: they are not drawn at random, or not as often as the contract says.
    """
    from fedmf.accounting.sampling import CohortLaw  # other runs need no accountant of cohorts

    if not isinstance(cohorts, SampledCohorts):
        raise ValueError(f"cohorts must be drawn at random; got {cohorts.kind!r}.")
    return CohortLaw(cohorts.kind, participation, cohorts.probability(users, participation))
