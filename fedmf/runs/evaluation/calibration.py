"""From a private evaluation that is asked for to its plan, and what is left for training."""

from __future__ import annotations

from fedmf.accounting import DifferentialPrivacy, Privacy
from fedmf.factorization import stated_sensitivity
from fedmf.parts import EvaluationPlan, evaluation_count, shared_multipliers
from fedmf.runs.evaluation.kinds import PrivateEvaluation, Ranges
from fedmf.workload import parse_workload


def check_private(asked: PrivateEvaluation, privacy: Privacy, rounds: int, users: int) -> None:
    """Refuse private evaluation where no theorem covers it, or what does not fit the run.

    Args:
        asked: the evaluation.
        privacy: of the run.
        rounds: n.
        users: N.

    Raises:
        ValueError: an amplified run, one without noise, or cohorts or a workload that cannot be made.
    """
    if not isinstance(privacy, DifferentialPrivacy):
        raise ValueError(
            "evaluation must not be 'private' in a run without noise: it has a share of the run's epsilon. "
            "Use 'not-private' or 'off'."
        )
    if privacy.amplified:
        raise ValueError(
            "evaluation must not be 'private' in an amplified run: no theorem covers sums whose secret "
            "cohorts another release shares. Use 'off', or privacy.amplified = false."
        )
    count = evaluation_count(rounds, asked.every)
    cohorts = asked.cohorts(count, users)
    cohorts.schedule(users, cohorts.participation(users), secret_seed=0)  # only to check it
    parse_workload(asked.workload, count)


def shared_plan(
    asked: PrivateEvaluation, privacy: DifferentialPrivacy, rounds: int, users: int, ranges: Ranges
) -> tuple[float, EvaluationPlan]:
    """(σ of training, plan of the evaluations), which have the run's (ε, δ) together.

    Args:
        asked: the evaluation.
        privacy: of the run.
        rounds: n.
        users: N.
        ranges: of what users say, by name.

    Raises:
        ValueError: a mechanism or workload that cannot be built for so many evaluations, or too many users.
    """
    count = evaluation_count(rounds, asked.every)
    cohorts = asked.cohorts(count, users)
    contract = cohorts.participation(users)
    training, evaluation = shared_multipliers(privacy.epsilon, privacy.delta, asked.share)
    mechanism = asked.choice.build(contract, parse_workload(asked.workload, count))
    plan = EvaluationPlan(
        rounds=rounds,
        every=asked.every,
        size=cohorts.size,
        participation=contract,
        mechanism=mechanism,
        workload=asked.workload,
        sensitivity=stated_sensitivity(mechanism.factorization, contract),
        noise_multiplier=evaluation,
        share=asked.share,
        ranges=tuple((name, float(low), float(high)) for name, (low, high) in ranges.items()),
    )
    return training, plan
