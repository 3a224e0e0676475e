"""Several runs and streams on the same users under one statement."""

from fedmf.statements.composed.composed_statement import ComposedStatement, compose
from fedmf.statements.composed.costs import (
    SampledGaussians,
    StatedCost,
    UserCosts,
    joined_mu,
    planned_mu,
    run_costs,
)
from fedmf.statements.composed.loss_distribution import ComposedLosses

__all__ = [
    "ComposedLosses",
    "ComposedStatement",
    "SampledGaussians",
    "StatedCost",
    "UserCosts",
    "compose",
    "joined_mu",
    "planned_mu",
    "run_costs",
]
