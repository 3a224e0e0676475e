"""Several runs and streams on the same users under one ε, and the best of randomly many."""

from fedmf.accounting.composition.adaptive import odometer_epsilon, remaining_epsilons
from fedmf.accounting.composition.composed_statement import ComposedStatement, compose
from fedmf.accounting.composition.costs import (
    AmplifiedCost,
    SampledGaussians,
    StatedCost,
    UserCosts,
    joined_mu,
    planned_mu,
    run_costs,
)
from fedmf.accounting.composition.loss_distribution import ComposedLosses
from fedmf.accounting.composition.selection import SelectionPrivacy, selection_epsilon
from fedmf.accounting.composition.trials import TRIALS, NegativeBinomialTrials, PoissonTrials, Trials

__all__ = [
    "TRIALS",
    "AmplifiedCost",
    "ComposedLosses",
    "ComposedStatement",
    "NegativeBinomialTrials",
    "PoissonTrials",
    "SampledGaussians",
    "SelectionPrivacy",
    "StatedCost",
    "Trials",
    "UserCosts",
    "compose",
    "joined_mu",
    "odometer_epsilon",
    "planned_mu",
    "remaining_epsilons",
    "run_costs",
    "selection_epsilon",
]
