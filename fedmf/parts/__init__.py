"""What a run releases beside the sums: each quantity is one value."""

from typing import TYPE_CHECKING

from fedmf.lazy import lazily

if TYPE_CHECKING:
    from fedmf.parts.clip_norm import CLIPPINGS, Clipping, FixedClipping, NormCourse, QuantileClipping
    from fedmf.parts.kinds import (
        PARTS,
        parts_from,
        stated,
    )
    from fedmf.parts.own_statistic import OwnStatistic
    from fedmf.parts.part import (
        LivePart,
        Part,
        Setting,
        Stage,
        check_shares,
        update_factor,
    )
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "CLIPPINGS",
    "PARTS",
    "Clipping",
    "FixedClipping",
    "LivePart",
    "NormCourse",
    "OwnStatistic",
    "Part",
    "QuantileClipping",
    "Setting",
    "Stage",
    "check_shares",
    "parts_from",
    "stated",
    "update_factor",
]
