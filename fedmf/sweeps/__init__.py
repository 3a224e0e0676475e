"""Sweeps: many runs that differ in some keys, tuned and compared on seeds."""

from fedmf.sweeps.execution import run_sweep
from fedmf.sweeps.results import SweepResult, mean_interval, privacy_together
from fedmf.sweeps.sweep import SEED_KEYS, Cell, Sweep, described

__all__ = [
    "SEED_KEYS",
    "Cell",
    "Sweep",
    "SweepResult",
    "described",
    "mean_interval",
    "privacy_together",
    "run_sweep",
]
