"""What a run releases beside the sums: each quantity is one value."""

from typing import TYPE_CHECKING

from fedmf.lazy import lazily

if TYPE_CHECKING:
    from fedmf.parts.clip_norm import CLIPPINGS, Clipping, FixedClipping, NormCourse, QuantileClipping
    from fedmf.parts.evaluation_plan import (
        EvaluationPlan,
        evaluation_count,
        shared_multipliers,
    )
    from fedmf.parts.kinds import (
        NAMED,
        OWN_STREAMS,
        PARTS,
        beside_the_plan,
        own_streams_from,
        parts_from,
        stated,
    )
    from fedmf.parts.own_statistic import OwnStatistic
    from fedmf.parts.own_stream import OwnStream, joint_multiplier
    from fedmf.parts.part import (
        Claim,
        FileRow,
        LivePart,
        Part,
        Setting,
        Stage,
        Step,
        check_shares,
        update_factor,
    )
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "CLIPPINGS",
    "NAMED",
    "OWN_STREAMS",
    "PARTS",
    "Claim",
    "Clipping",
    "EvaluationPlan",
    "FileRow",
    "FixedClipping",
    "LivePart",
    "NormCourse",
    "OwnStatistic",
    "OwnStream",
    "Part",
    "QuantileClipping",
    "Setting",
    "Stage",
    "Step",
    "beside_the_plan",
    "check_shares",
    "evaluation_count",
    "joint_multiplier",
    "own_streams_from",
    "parts_from",
    "shared_multipliers",
    "stated",
    "update_factor",
]
