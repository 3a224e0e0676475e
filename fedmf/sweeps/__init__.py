"""Sweeps: many runs that differ in some keys, tuned and compared on seeds, as one value."""

from fedmf.sweeps.best_of_trials import BestOfTrials, best_document, carry_out_trials
from fedmf.sweeps.carrying_out import Progress, carry_out
from fedmf.sweeps.composition import ComposedPrivacy, composed_privacy
from fedmf.sweeps.overlays import described
from fedmf.sweeps.results import CellResult, Interval, SweepResult, mean_interval, paired_interval
from fedmf.sweeps.sweep import SEED_KEYS, Cell, PlannedRun, Sweep
from fedmf.sweeps.sweep_file import load_sweep
from fedmf.sweeps.table import Table, result_table
from fedmf.sweeps.trial_sweep import TrialSweep

__all__ = [
    "SEED_KEYS",
    "BestOfTrials",
    "Cell",
    "CellResult",
    "ComposedPrivacy",
    "Interval",
    "PlannedRun",
    "Progress",
    "Sweep",
    "SweepResult",
    "Table",
    "TrialSweep",
    "best_document",
    "carry_out",
    "carry_out_trials",
    "composed_privacy",
    "described",
    "load_sweep",
    "mean_interval",
    "paired_interval",
    "result_table",
]
