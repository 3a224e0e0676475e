"""What a run releases beside the sums: each quantity is one value."""

from typing import TYPE_CHECKING

from fedmf.lazy import lazily

if TYPE_CHECKING:
    from fedmf.parts.clip_norm import CLIPPINGS, Clipping, FixedClipping, NormCourse, QuantileClipping
    from fedmf.parts.kinds import (
        NAMED,
        PARTS,
        beside_the_plan,
        parts_from,
        stated,
    )
    from fedmf.parts.own_statistic import OwnStatistic
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
    "PARTS",
    "Claim",
    "Clipping",
    "FileRow",
    "FixedClipping",
    "LivePart",
    "NormCourse",
    "OwnStatistic",
    "Part",
    "QuantileClipping",
    "Setting",
    "Stage",
    "Step",
    "beside_the_plan",
    "check_shares",
    "parts_from",
    "stated",
    "update_factor",
]
