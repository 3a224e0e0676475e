"""Mechanisms by name: closed forms, optimisers, and the search over their parameters."""

from fedmf.factorization.mechanisms.banded_inverse_optimizer import banded_inverse
from fedmf.factorization.mechanisms.banded_optimizer import banded
from fedmf.factorization.mechanisms.banded_toeplitz_optimizer import banded_toeplitz
from fedmf.factorization.mechanisms.blt_optimizer import blt
from fedmf.factorization.mechanisms.catalogue import (
    Mechanism,
    accepted_parameters,
    build,
    names,
    optional_parameters,
)
from fedmf.factorization.mechanisms.dense_optimizer import dense
from fedmf.factorization.mechanisms.families import FAMILIES
from fedmf.factorization.mechanisms.horizons import check_rounds
from fedmf.factorization.mechanisms.lti import quadratic_lti, quadratic_suboptimality
from fedmf.factorization.mechanisms.strongly_convex import strongly_convex_bound, strongly_convex_lti

__all__ = [
    "FAMILIES",
    "Mechanism",
    "accepted_parameters",
    "banded",
    "banded_inverse",
    "banded_toeplitz",
    "blt",
    "build",
    "check_rounds",
    "dense",
    "names",
    "optional_parameters",
    "quadratic_lti",
    "quadratic_suboptimality",
    "strongly_convex_bound",
    "strongly_convex_lti",
]
