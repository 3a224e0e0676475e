"""Mechanisms by name: closed forms, optimisers, and the search over their parameters."""

from fedmf.factorization.mechanisms.banded_inverse_optimizer import banded_inverse
from fedmf.factorization.mechanisms.banded_optimizer import banded
from fedmf.factorization.mechanisms.banded_toeplitz_optimizer import banded_toeplitz, tapered
from fedmf.factorization.mechanisms.blt_optimizer import blt
from fedmf.factorization.mechanisms.catalogue import (
    Mechanism,
    accepted_parameters,
    build,
    form_of,
    names,
    names_to_compare,
    optional_parameters,
    own_name,
    parameters,
)
from fedmf.factorization.mechanisms.choice import (
    GivenFactorization,
    MechanismChoice,
    NamedMechanism,
    mechanism_choice_from_dict,
)
from fedmf.factorization.mechanisms.dense_optimizer import dense
from fedmf.factorization.mechanisms.family import check_rounds
from fedmf.factorization.mechanisms.lti import quadratic_lti, quadratic_suboptimality
from fedmf.factorization.mechanisms.parameter import Accuracy, DesignRequest, Parameter, Trail, chosen
from fedmf.factorization.mechanisms.strongly_convex import strongly_convex_bound, strongly_convex_lti

__all__ = [
    "Accuracy",
    "DesignRequest",
    "GivenFactorization",
    "Mechanism",
    "MechanismChoice",
    "NamedMechanism",
    "Parameter",
    "Trail",
    "accepted_parameters",
    "banded",
    "banded_inverse",
    "banded_toeplitz",
    "blt",
    "build",
    "check_rounds",
    "chosen",
    "dense",
    "form_of",
    "mechanism_choice_from_dict",
    "names",
    "names_to_compare",
    "optional_parameters",
    "own_name",
    "parameters",
    "quadratic_lti",
    "quadratic_suboptimality",
    "strongly_convex_bound",
    "strongly_convex_lti",
    "tapered",
]
