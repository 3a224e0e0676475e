"""Private moments of a stream: Joint Moment Estimation of mean and covariance, its baselines and theory."""

from fedmf.moments.baselines import cs, ime, pp
from fedmf.moments.density import GaussianEstimate, gaussian_estimate, mean_noise_variances
from fedmf.moments.mechanism import MomentMechanism, best_weight, default_weight, jme
from fedmf.moments.moment_stream import MomentBlock, MomentRelease, MomentStream
from fedmf.moments.pair_design import Goal, JointDesign, best_pair, joint_design
from fedmf.moments.running import MatrixWorkload
from fedmf.moments.second_moment import BlockEnergies, DiagonalMoment, FullMatrix, Projected, SecondMoment

__all__ = [
    "BlockEnergies",
    "DiagonalMoment",
    "FullMatrix",
    "GaussianEstimate",
    "Goal",
    "JointDesign",
    "MatrixWorkload",
    "MomentBlock",
    "MomentMechanism",
    "MomentRelease",
    "MomentStream",
    "Projected",
    "SecondMoment",
    "best_pair",
    "best_weight",
    "cs",
    "default_weight",
    "gaussian_estimate",
    "ime",
    "jme",
    "joint_design",
    "mean_noise_variances",
    "pp",
]
