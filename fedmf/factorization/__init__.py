"""Strategy matrices as values: closed forms, optimisers, sensitivity and error."""

from fedmf.factorization.banded_toeplitz import banded_toeplitz
from fedmf.factorization.base import Factorization, Recurrence
from fedmf.factorization.catalogue import Mechanism, build, names
from fedmf.factorization.closed_form import (
    bfr,
    bifr,
    bisr,
    bsr,
    cgd,
    identity,
    nu_ftrl,
    one_parameter,
    optimal_diagonal,
    square_root,
)
from fedmf.factorization.error import Errors, errors, query_variances
from fedmf.factorization.pattern import pattern_sensitivities, pattern_sensitivity
from fedmf.factorization.scaled_toeplitz import NotRepresentable, ScaledToeplitz
from fedmf.factorization.sensitivity import (
    Sensitivity,
    SensitivityNotExact,
    sensitivity,
    sensitivity_upper_bound,
    stated_sensitivity,
)
from fedmf.factorization.toeplitz import (
    ColumnScaled,
    Diagonal,
    InverseToeplitz,
    Toeplitz,
    factorization_from_dict,
    leading,
    normalized,
)

__all__ = [
    "ColumnScaled",
    "Diagonal",
    "Errors",
    "Factorization",
    "InverseToeplitz",
    "Mechanism",
    "NotRepresentable",
    "Recurrence",
    "ScaledToeplitz",
    "Sensitivity",
    "SensitivityNotExact",
    "Toeplitz",
    "banded_toeplitz",
    "bfr",
    "bifr",
    "bisr",
    "bsr",
    "build",
    "cgd",
    "errors",
    "factorization_from_dict",
    "identity",
    "leading",
    "names",
    "normalized",
    "nu_ftrl",
    "one_parameter",
    "optimal_diagonal",
    "pattern_sensitivities",
    "pattern_sensitivity",
    "query_variances",
    "sensitivity",
    "sensitivity_upper_bound",
    "square_root",
    "stated_sensitivity",
]
