"""The clip norm of a run where it follows what was released."""

from fedmf.runs.clip_norm.quantile_release import QuantileRelease

__all__ = ["QuantileRelease"]
