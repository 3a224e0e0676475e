"""Sweeps: many runs that differ in some keys, tuned and compared on seeds.

A `Sweep` describes the runs, `run_sweep` executes them, and a `SweepResult` compares them.
"""

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
