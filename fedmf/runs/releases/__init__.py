"""What a round releases: the second moment beside the model, and the round whose commit is under way."""

from fedmf.runs.releases.second_release import (
    SecondMomentRelease,
    clipped_sums,
    local_trainer,
    second_stream,
    sums_for,
)

__all__ = [
    "SecondMomentRelease",
    "clipped_sums",
    "local_trainer",
    "second_stream",
    "sums_for",
]
