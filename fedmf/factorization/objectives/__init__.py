"""Errors of a mechanism, with the derivatives that optimisers need."""

from fedmf.factorization.objectives.error import (
    Errors,
    StrategyError,
    StreamingQueries,
    errors,
    query_variances,
    streamed_query_variances,
)
from fedmf.factorization.objectives.inverse_objective import InverseObjective
from fedmf.factorization.objectives.objective import LAST, MAX, RMSE, Objective, PowerMean
from fedmf.factorization.objectives.quick_error import QuickError
from fedmf.factorization.objectives.rated_error import LARGEST_RATED, RatedError
from fedmf.factorization.objectives.scaled_objective import ScaledObjective
from fedmf.factorization.objectives.toeplitz_objective import ToeplitzObjective

__all__ = [
    "LARGEST_RATED",
    "LAST",
    "MAX",
    "RMSE",
    "Errors",
    "InverseObjective",
    "Objective",
    "PowerMean",
    "QuickError",
    "RatedError",
    "ScaledObjective",
    "StrategyError",
    "StreamingQueries",
    "ToeplitzObjective",
    "errors",
    "query_variances",
    "streamed_query_variances",
]
