"""Calibration, the participation ledger and the privacy statement."""

from fedmf.accounting.amplification import CohortLaw, RunAmplification, amplified_run, check_sampling
from fedmf.accounting.audit_bound import LeakageBound, leakage_bound
from fedmf.accounting.comparison import design
from fedmf.accounting.continuations import RESTORED, LostRounds, lost_rounds
from fedmf.accounting.evaluation_plan import (
    EvaluationPlan,
    evaluation_count,
    joint_multiplier,
    shared_multipliers,
)
from fedmf.accounting.gaussian import (
    adjacency_factor,
    certified_epsilon,
    certified_sigma,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    gaussian_rho,
    gaussian_sigma,
)
from fedmf.accounting.patterns import PatternTable
from fedmf.accounting.plan import Plan
from fedmf.accounting.privacy import (
    PRIVACY,
    DifferentialPrivacy,
    ExampleLevel,
    NoPrivacy,
    Privacy,
    UserLevel,
)
from fedmf.accounting.realised import EpsilonBin, RealisedPrivacy, realised_privacy
from fedmf.accounting.recorded import ParticipationSummary
from fedmf.accounting.release import PairRelease, RunRelease, SecondForm, SecondStream, SumRelease
from fedmf.accounting.restatement import Restatement, restate, zcdp_epsilon
from fedmf.accounting.rounding import at_least, at_most
from fedmf.accounting.statement import (
    OPERATING_SYSTEM_KEY,
    PUBLIC_KEY,
    Branch,
    JointStatement,
    PrivacyStatement,
    RunHeader,
    StatementParts,
    as_json,
    build_joint_statement,
    build_statement,
    detection_limit,
    detection_percent,
    law_of,
    odds_factor,
    render,
    render_document,
    render_page,
    user_privacy,
)

__all__ = [
    "OPERATING_SYSTEM_KEY",
    "PRIVACY",
    "PUBLIC_KEY",
    "RESTORED",
    "Branch",
    "CohortLaw",
    "DifferentialPrivacy",
    "EpsilonBin",
    "EvaluationPlan",
    "ExampleLevel",
    "JointStatement",
    "LeakageBound",
    "LostRounds",
    "NoPrivacy",
    "PairRelease",
    "ParticipationSummary",
    "PatternTable",
    "Plan",
    "Privacy",
    "PrivacyStatement",
    "RealisedPrivacy",
    "Restatement",
    "RunAmplification",
    "RunHeader",
    "RunRelease",
    "SecondForm",
    "SecondStream",
    "StatementParts",
    "SumRelease",
    "UserLevel",
    "adjacency_factor",
    "amplified_run",
    "as_json",
    "at_least",
    "at_most",
    "build_joint_statement",
    "build_statement",
    "certified_epsilon",
    "certified_sigma",
    "check_sampling",
    "design",
    "detection_limit",
    "detection_percent",
    "evaluation_count",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "gaussian_rho",
    "gaussian_sigma",
    "joint_multiplier",
    "law_of",
    "leakage_bound",
    "lost_rounds",
    "odds_factor",
    "realised_privacy",
    "render",
    "render_document",
    "render_page",
    "restate",
    "shared_multipliers",
    "user_privacy",
    "zcdp_epsilon",
]
