"""The keys of a run configuration, by topic; `fedmf.runs.config.Config` is all of them together."""

from fedmf.runs.keys.cohorts import CohortKeys
from fedmf.runs.keys.data import DataKeys, parse_counts, parse_names
from fedmf.runs.keys.execution import ExecutionKeys
from fedmf.runs.keys.optimizer import OptimizerKeys
from fedmf.runs.keys.parameters import parse_parameters
from fedmf.runs.keys.privacy import PrivacyKeys
from fedmf.runs.keys.training import TrainingKeys

__all__ = [
    "CohortKeys",
    "DataKeys",
    "ExecutionKeys",
    "OptimizerKeys",
    "PrivacyKeys",
    "TrainingKeys",
    "parse_counts",
    "parse_names",
    "parse_parameters",
]
