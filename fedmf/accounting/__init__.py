"""Calibration, amplification and accounting: the relation between noise and guarantee."""
