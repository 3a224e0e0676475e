"""What a run releases beside the sums: each quantity is one value."""

from typing import TYPE_CHECKING

from fedmf.lazy import lazily

if TYPE_CHECKING:
    from fedmf.parts.clip_norm import CLIPPINGS, Clipping, FixedClipping, NormCourse, QuantileClipping
    from fedmf.parts.evaluation_plan import (
        EvaluationPlan,
        evaluation_count,
        joint_multiplier,
        shared_multipliers,
    )
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "CLIPPINGS",
    "Clipping",
    "EvaluationPlan",
    "FixedClipping",
    "NormCourse",
    "QuantileClipping",
    "evaluation_count",
    "joint_multiplier",
    "shared_multipliers",
]
