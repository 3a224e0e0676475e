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
    from fedmf.parts.kinds import ALWAYS, PARTS, parts_from, stated
    from fedmf.parts.part import LivePart, Part, Setting, Stage, check_shares, update_factor
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "ALWAYS",
    "CLIPPINGS",
    "PARTS",
    "Clipping",
    "EvaluationPlan",
    "FixedClipping",
    "LivePart",
    "NormCourse",
    "Part",
    "QuantileClipping",
    "Setting",
    "Stage",
    "check_shares",
    "evaluation_count",
    "joint_multiplier",
    "parts_from",
    "shared_multipliers",
    "stated",
    "update_factor",
]
