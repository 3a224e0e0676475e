"""Several runs and streams on the same users under one ε, and the best of randomly many."""

from fedmf.accounting.composition.selection import (
    SelectionPrivacy,
    odometer_epsilon,
    remaining_epsilons,
    selection_epsilon,
)
from fedmf.accounting.composition.trials import TRIALS, NegativeBinomialTrials, PoissonTrials, Trials

__all__ = [
    "TRIALS",
    "NegativeBinomialTrials",
    "PoissonTrials",
    "SelectionPrivacy",
    "Trials",
    "odometer_epsilon",
    "remaining_epsilons",
    "selection_epsilon",
]
