"""Sweeps: many runs that differ in some keys, tuned and compared on seeds, as one value."""

from fedmf.sweeps.carrying_out import Progress, carry_out
from fedmf.sweeps.overlays import described
from fedmf.sweeps.results import (
    CellResult,
    Interval,
    SweepResult,
    mean_interval,
    paired_interval,
    privacy_together,
)
from fedmf.sweeps.sweep import SEED_KEYS, Cell, PlannedRun, Sweep
from fedmf.sweeps.sweep_file import load_sweep
from fedmf.sweeps.table import Table, result_table

__all__ = [
    "SEED_KEYS",
    "Cell",
    "CellResult",
    "Interval",
    "PlannedRun",
    "Progress",
    "Sweep",
    "SweepResult",
    "Table",
    "carry_out",
    "described",
    "load_sweep",
    "mean_interval",
    "paired_interval",
    "privacy_together",
    "result_table",
]
