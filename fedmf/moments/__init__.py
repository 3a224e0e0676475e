"""Private moments of a stream: Joint Moment Estimation of mean and covariance, its baselines and theory."""

from fedmf.factorization import UserRange, free_weight, joint_diameter_square, joint_sensitivity
from fedmf.moments.baselines import cs, ime, ime_basic, pp
from fedmf.moments.density import GaussianEstimate, gaussian_estimate, mean_noise_variances
from fedmf.moments.joint_design import Goal, JointDesign, best_pair, joint_design
from fedmf.moments.mechanism import MomentMechanism, best_weight, default_weight, jme
from fedmf.moments.running import MatrixWorkload
from fedmf.moments.second_moment import BlockEnergies, Diagonal, FullMatrix, Projected, SecondMoment
from fedmf.moments.stream import MomentBlock, MomentRelease, MomentStream

__all__ = [
    "BlockEnergies",
    "Diagonal",
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
    "UserRange",
    "best_pair",
    "best_weight",
    "cs",
    "default_weight",
    "free_weight",
    "gaussian_estimate",
    "ime",
    "ime_basic",
    "jme",
    "joint_design",
    "joint_diameter_square",
    "joint_sensitivity",
    "mean_noise_variances",
    "pp",
]
