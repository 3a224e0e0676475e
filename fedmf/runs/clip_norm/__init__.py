"""How the updates of a round are clipped and summed, and the clip norm where it follows what was released."""

from fedmf.runs.clip_norm.quantile_release import QuantileRelease
from fedmf.runs.clip_norm.sums import clipped_sums, local_trainer, sums_for

__all__ = ["QuantileRelease", "clipped_sums", "local_trainer", "sums_for"]
