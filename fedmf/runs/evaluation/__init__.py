"""Evaluation of released models on users' own examples: as a value, calibrated, and released with noise."""

from typing import TYPE_CHECKING

from fedmf.lazy import lazily
from fedmf.runs.evaluation.calibration import check_private, shared_plan
from fedmf.runs.evaluation.kinds import (
    EVALUATIONS,
    CentralEvaluation,
    Evaluation,
    NotPrivateEvaluation,
    PrivateEvaluation,
    Ranges,
    private_columns,
)

if TYPE_CHECKING:
    from fedmf.runs.evaluation.evaluator import PrivateEvaluator
else:
    __getattr__ = lazily(__name__)

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
