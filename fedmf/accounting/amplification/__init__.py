"""Privacy amplification by sampling: cyclic Poisson, Balls-in-Bins and b-min-sep."""

from fedmf.accounting.amplification.bins import BallsInBinsPair
from fedmf.accounting.amplification.cohort_law import CohortLaw, RunAmplification, amplified_run, check_run
from fedmf.accounting.amplification.limits import mean_upper_limit
from fedmf.accounting.amplification.min_separated import MinSeparatedPair
from fedmf.accounting.amplification.monte_carlo import Estimate, MixturePair, estimate, upper_limit
from fedmf.accounting.amplification.noise_level import (
    Calibrated,
    amplified_noise,
    certified_noise,
)
from fedmf.accounting.amplification.poisson import poisson_delta, poisson_noise_multiplier
from fedmf.accounting.amplification.sampling import (
    AmplifiedNoise,
    Sampling,
    amplified_noise_of,
    check_sampling,
    zero_out_budget,
)
from fedmf.accounting.amplification.search import amplified_mechanism

__all__ = [
    "AmplifiedNoise",
    "BallsInBinsPair",
    "Calibrated",
    "CohortLaw",
    "Estimate",
    "MinSeparatedPair",
    "MixturePair",
    "RunAmplification",
    "Sampling",
    "amplified_mechanism",
    "amplified_noise",
    "amplified_noise_of",
    "amplified_run",
    "certified_noise",
    "check_run",
    "check_sampling",
    "estimate",
    "mean_upper_limit",
    "poisson_delta",
    "poisson_noise_multiplier",
    "upper_limit",
    "zero_out_budget",
]
