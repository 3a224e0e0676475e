"""Calibration and amplification: what noise gives which guarantee."""

from typing import TYPE_CHECKING

from fedmf.lazy import lazily

if TYPE_CHECKING:
    from fedmf.accounting.amplification import (
        CohortLaw,
        RunAmplification,
        amplified_run,
        check_run,
        check_sampling,
        zero_out_budget,
    )
    from fedmf.accounting.comparison import design
    from fedmf.accounting.gaussian import (
        adjacency_factor,
        certified_epsilon,
        certified_sigma,
        gaussian_delta,
        gaussian_epsilon,
        gaussian_epsilons,
        gaussian_mu,
        gaussian_rho,
        gaussian_sigma,
        joint_multiplier,
    )
    from fedmf.accounting.pair_release import NoSecondStream, PairRelease, SecondForm, SecondStream
    from fedmf.accounting.patterns import distinct_patterns
    from fedmf.accounting.privacy import (
        PRIVACY,
        UNITS,
        NoPrivacy,
        Privacy,
        UserLevel,
    )
    from fedmf.accounting.recorded import ParticipationRecord, ParticipationSummary
    from fedmf.accounting.release import RunRelease, SumRelease
    from fedmf.accounting.rounding import at_least, at_most
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "PRIVACY",
    "UNITS",
    "CohortLaw",
    "NoPrivacy",
    "NoSecondStream",
    "PairRelease",
    "ParticipationRecord",
    "ParticipationSummary",
    "Privacy",
    "RunAmplification",
    "RunRelease",
    "SecondForm",
    "SecondStream",
    "SumRelease",
    "UserLevel",
    "adjacency_factor",
    "amplified_run",
    "at_least",
    "at_most",
    "certified_epsilon",
    "certified_sigma",
    "check_run",
    "check_sampling",
    "design",
    "distinct_patterns",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_epsilons",
    "gaussian_mu",
    "gaussian_rho",
    "gaussian_sigma",
    "joint_multiplier",
    "zero_out_budget",
]
