"""Private moments of a stream: Joint Moment Estimation of mean and covariance, and baselines.

`METHODS` has the noise levels of each method, `MomentStream` releases moments step by step, and
`PrivateGaussian` makes densities of them.
"""

from fedmf.matrices.second_moment import (
    BlockEnergies,
    DiagonalMoment,
    FullMatrix,
    SecondMoment,
)
from fedmf.moments.density import GaussianEstimate, PrivateGaussian, describe, shrunk_covariances
from fedmf.moments.methods import (
    METHODS,
    MomentMechanism,
    MomentMethod,
    jme,
)
from fedmf.moments.moment_stream import MomentStream, NoisyMomentSums, RunningMoments
from fedmf.moments.named_moments import SECOND_MOMENTS, second_moment_named
from fedmf.moments.noisy_moments import NoisyMoments
from fedmf.moments.ratio import fieller
from fedmf.moments.weights import AIMS, Goal, best_pair, weight_for

__all__ = [
    "AIMS",
    "METHODS",
    "SECOND_MOMENTS",
    "BlockEnergies",
    "DiagonalMoment",
    "FullMatrix",
    "GaussianEstimate",
    "Goal",
    "MomentMechanism",
    "MomentMethod",
    "MomentStream",
    "NoisyMomentSums",
    "NoisyMoments",
    "PrivateGaussian",
    "RunningMoments",
    "SecondMoment",
    "best_pair",
    "describe",
    "fieller",
    "jme",
    "second_moment_named",
    "shrunk_covariances",
    "weight_for",
]
