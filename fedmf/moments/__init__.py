"""Private moments of a stream: Joint Moment Estimation of mean and covariance, its baselines and theory."""

from fedmf.moments.baselines import cs, ime, pp
from fedmf.moments.density import GaussianEstimate, gaussian_estimate, mean_noise_variances
from fedmf.moments.mechanism import MomentMechanism, MomentMethod, MomentWeight, jme
from fedmf.moments.methods import METHODS, mechanism_from_dict
from fedmf.moments.moment_stream import MomentBlock, MomentRelease, MomentStream
from fedmf.moments.noisy_moments import NoisyMoments
from fedmf.moments.pair_design import Goal, best_pair
from fedmf.moments.private_gaussian import PrivateGaussian, describe, shrunk_covariances
from fedmf.moments.ratio import NoisyRatio, fieller
from fedmf.moments.running import MatrixWorkload, RunningWorkload
from fedmf.moments.second_moment import (
    SECOND_MOMENTS,
    BlockEnergies,
    DiagonalMoment,
    FullMatrix,
    Projected,
    SecondMoment,
    second_moment_named,
)
from fedmf.moments.weights import best_weight, default_weight

__all__ = [
    "METHODS",
    "SECOND_MOMENTS",
    "BlockEnergies",
    "DiagonalMoment",
    "FullMatrix",
    "GaussianEstimate",
    "Goal",
    "MatrixWorkload",
    "MomentBlock",
    "MomentMechanism",
    "MomentMethod",
    "MomentRelease",
    "MomentStream",
    "MomentWeight",
    "NoisyMoments",
    "NoisyRatio",
    "PrivateGaussian",
    "Projected",
    "RunningWorkload",
    "SecondMoment",
    "best_pair",
    "best_weight",
    "cs",
    "default_weight",
    "describe",
    "fieller",
    "gaussian_estimate",
    "ime",
    "jme",
    "mean_noise_variances",
    "mechanism_from_dict",
    "pp",
    "second_moment_named",
    "shrunk_covariances",
]
