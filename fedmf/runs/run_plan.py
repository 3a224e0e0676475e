"""The plan of a run's release: its mechanism, its calibrated noise and its units."""

from __future__ import annotations

import logging

from fedmf.clipping.clipped_rows import check_clip_norm
from fedmf.clipping.clipped_sum import SumSpec
from fedmf.errors import ConfigError
from fedmf.optim import ServerOptimizer
from fedmf.release.plan import Plan
from fedmf.release.private_server import sums_for
from fedmf.release.statistics import check_statistics
from fedmf.runs.pair_plan import paired_streams
from fedmf.runs.plan_fields import cohort_law, plan_fields
from fedmf.runs.run import Run
from fedmf.statements.privacy import UNITS
from fedmf.training import Task

_log = logging.getLogger("fedmf")


def plan_of(run: Run, optimizer: ServerOptimizer, dimension: int) -> Plan:
    """Build the factorization, calibrate its noise and choose the units.

    Args:
        run: the requested run.
        optimizer: of the server; it may need a second moment that is released with the sums.
        dimension: d, the number of trained parameters.

    Raises:
        ConfigError: a mechanism that cannot be built, or that the accountant does not cover.

    Logs a warning where δ is above 1/N.
    """
    try:
        check_clip_norm(run.privacy.clip_norm)
        plan = _calibrated(run, optimizer, dimension)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if run.is_private and plan.delta * plan.users > 1:
        unit = UNITS[plan.unit]
        _log.warning(
            "δ (delta) should be at most 1/N for N=%d %s; got %g. Such a guarantee would allow "
            "publishing all data of one random %s: lower privacy.delta.",
            *(plan.users, unit.plural, plan.delta, unit.name),
        )
    return plan


def _calibrated(run: Run, optimizer: ServerOptimizer, dimension: int) -> Plan:
    moment = optimizer.second_moment
    check_statistics(run.statistics, run.privacy.counts_sampling, moment is not None)
    second = None
    if moment is None:
        mechanism = run.mechanism_config.choice.build(
            run.participation, run.workload, run.mechanism_config.goal
        )
    else:
        mechanism, second = paired_streams(run, moment, optimizer.second_form)
    plan = Plan(
        **plan_fields(run.privacy, run.cohorts, run.statistics),
        users=run.task_source.users,
        participation=run.participation,
        mechanism=mechanism,
        dimension=dimension,
        second=second,
        unit=run.task_source.unit,
    )
    law = None
    if run.privacy.counts_sampling:
        law = cohort_law(run.cohorts, plan.users, plan.participation)
    return plan.calibrated(law, run.privacy.noise_seed)


def clipped_sums(run: Run, task: Task) -> SumSpec:
    """The specification of the sums that the workers of a run compute."""
    optimizer = run.optimizer_source.build(task.model.shapes, run.cohorts.rounds)
    return sums_for(optimizer, task.model.dimension, run.privacy.clip_norm, run.statistics)
