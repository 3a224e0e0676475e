"""Runs whose users are trained elsewhere: by a Flower app's own clients, or by any program."""

from fedmf.runs.elsewhere.aggregator import PrivateAggregator
from fedmf.runs.elsewhere.array_checks import check_type
from fedmf.runs.elsewhere.layout import ModelLayout
from fedmf.runs.elsewhere.task import TaskElsewhere, asked_cohorts, asked_privacy, roster_digest, session_of

__all__ = [
    "ModelLayout",
    "PrivateAggregator",
    "TaskElsewhere",
    "asked_cohorts",
    "asked_privacy",
    "check_type",
    "roster_digest",
    "session_of",
]
