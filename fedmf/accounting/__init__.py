"""Calibration, the participation ledger and the privacy statement."""

from fedmf.accounting.calibration import (
    Adjacency,
    adjacency_factor,
    certified_epsilon,
    certified_sigma,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    gaussian_rho,
    gaussian_sigma,
)
from fedmf.accounting.header import RunHeader
from fedmf.accounting.ledger import Checkpoint, Ledger
from fedmf.accounting.ledger_replay import LedgerSummary
from fedmf.accounting.ledger_schema import LedgerError, ParticipationViolation
from fedmf.accounting.realised import EpsilonBin, RealisedPrivacy, realised_privacy
from fedmf.accounting.release import PairRelease, RunRelease, SecondForm, SecondStream, SumRelease
from fedmf.accounting.statement import PrivacyStatement, build_statement

__all__ = [
    "Adjacency",
    "Checkpoint",
    "EpsilonBin",
    "Ledger",
    "LedgerError",
    "LedgerSummary",
    "PairRelease",
    "ParticipationViolation",
    "PrivacyStatement",
    "RealisedPrivacy",
    "RunHeader",
    "RunRelease",
    "SecondForm",
    "SecondStream",
    "SumRelease",
    "adjacency_factor",
    "build_statement",
    "certified_epsilon",
    "certified_sigma",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "gaussian_rho",
    "gaussian_sigma",
    "realised_privacy",
]
