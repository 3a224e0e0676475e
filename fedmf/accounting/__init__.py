"""Calibration, amplification and accounting: the relation between noise and guarantee."""

from typing import TYPE_CHECKING

from fedmf.lazy import lazily

if TYPE_CHECKING:
    from fedmf.accounting.gaussian import (
        certified_epsilon,
        certified_sigma,
        gaussian_delta,
        gaussian_epsilon,
        gaussian_mu,
        gaussian_sigma,
    )
    from fedmf.accounting.privacy import PRIVACY, UNITS, NoPrivacy, Privacy, Unit, UserLevel
    from fedmf.accounting.release import RunRelease, SecondForm, SecondStream, release_of
    from fedmf.accounting.rounding import at_least, at_most
    from fedmf.accounting.sampling import CohortLaw, RunAmplification, amplified_run, check_run
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "PRIVACY",
    "UNITS",
    "CohortLaw",
    "NoPrivacy",
    "Privacy",
    "RunAmplification",
    "RunRelease",
    "SecondForm",
    "SecondStream",
    "Unit",
    "UserLevel",
    "amplified_run",
    "at_least",
    "at_most",
    "certified_epsilon",
    "certified_sigma",
    "check_run",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "gaussian_sigma",
    "release_of",
]
