"""The Gaussian mechanism: (ε, δ), μ-GDP and ρ-zCDP."""

from fedmf.accounting.gaussian.calibration import (
    adjacency_factor,
    certified_epsilon,
    certified_sigma,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    gaussian_rho,
    gaussian_sigma,
    joint_multiplier,
)
from fedmf.accounting.gaussian.many import gaussian_epsilons

__all__ = [
    "adjacency_factor",
    "certified_epsilon",
    "certified_sigma",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_epsilons",
    "gaussian_mu",
    "gaussian_rho",
    "gaussian_sigma",
    "joint_multiplier",
]
