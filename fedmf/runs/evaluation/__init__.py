"""Evaluation of released models on users' own examples: as a value, calibrated, and released with noise."""

from fedmf.runs.evaluation.calibration import check_private, shared_plan
from fedmf.runs.evaluation.evaluator import PrivateEvaluator, private_columns
from fedmf.runs.evaluation.kinds import (
    EVALUATIONS,
    CentralEvaluation,
    Evaluation,
    NotPrivateEvaluation,
    PrivateEvaluation,
    Ranges,
)

__all__ = [
    "EVALUATIONS",
    "CentralEvaluation",
    "Evaluation",
    "NotPrivateEvaluation",
    "PrivateEvaluation",
    "PrivateEvaluator",
    "Ranges",
    "check_private",
    "private_columns",
    "shared_plan",
]
