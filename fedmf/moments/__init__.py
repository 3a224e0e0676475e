"""Private moments of a stream: Joint Moment Estimation of mean and covariance, and its baselines."""

from fedmf.moments.density import GaussianEstimate, PrivateGaussian, describe, shrunk_covariances
from fedmf.moments.methods import (
    METHODS,
    MomentMechanism,
    MomentMethod,
    default_weight,
    jme,
    mechanism_from_dict,
)
from fedmf.moments.noisy_moments import NoisyMoments
from fedmf.moments.ratio import NoisyRatio, fieller
from fedmf.moments.second_moment import (
    SECOND_MOMENTS,
    BlockEnergies,
    DiagonalMoment,
    FullMatrix,
    SecondMoment,
    second_moment_named,
)
from fedmf.moments.stream import MomentBlock, MomentRelease, MomentStream
from fedmf.moments.weights import AIMS, Goal, best_pair, best_weight, weight_for

__all__ = [
    "AIMS",
    "METHODS",
    "SECOND_MOMENTS",
    "BlockEnergies",
    "DiagonalMoment",
    "FullMatrix",
    "GaussianEstimate",
    "Goal",
    "MomentBlock",
    "MomentMechanism",
    "MomentMethod",
    "MomentRelease",
    "MomentStream",
    "NoisyMoments",
    "NoisyRatio",
    "PrivateGaussian",
    "SecondMoment",
    "best_pair",
    "best_weight",
    "default_weight",
    "describe",
    "fieller",
    "jme",
    "mechanism_from_dict",
    "second_moment_named",
    "shrunk_covariances",
    "weight_for",
]
