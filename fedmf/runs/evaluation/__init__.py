"""Evaluation of released models on users' own examples: as a value, calibrated, and released with noise."""

from typing import TYPE_CHECKING

from fedmf.lazy import lazily
from fedmf.runs.evaluation.kinds import (
    EVALUATIONS,
    CentralEvaluation,
    Evaluation,
    Figure,
    NotPrivateEvaluation,
    PrivateEvaluation,
    Ranges,
    not_private,
    private_columns,
)

if TYPE_CHECKING:
    from fedmf.runs.evaluation.evaluator import NoEvaluator, PrivateEvaluator
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "EVALUATIONS",
    "CentralEvaluation",
    "Evaluation",
    "Figure",
    "NoEvaluator",
    "NotPrivateEvaluation",
    "PrivateEvaluation",
    "PrivateEvaluator",
    "Ranges",
    "not_private",
    "private_columns",
]
