"""How far one user can move what is released."""

from fedmf.factorization.sensitivity.joint import (
    UserRange,
    equal_length_joint_sensitivities,
    free_weight,
    joint_diameter_square,
    joint_sensitivity,
)
from fedmf.factorization.sensitivity.methods import Sensitivity, SensitivityNotExact
from fedmf.factorization.sensitivity.pattern import (
    equal_length_row_sums,
    equal_length_sensitivities,
    pattern_sensitivities,
    pattern_sensitivity,
)
from fedmf.factorization.sensitivity.separated import (
    comb_sum,
    comb_sum_adjoint,
    count_patterns,
    earliest_pattern,
    monotone_envelope,
    pattern_layers,
    row_weights,
)
from fedmf.factorization.sensitivity.stated import (
    autocorrelation,
    earliest_is_worst,
    exact_sensitivity,
    quick_upper_bound,
    stated_sensitivity,
)

__all__ = [
    "Sensitivity",
    "SensitivityNotExact",
    "UserRange",
    "autocorrelation",
    "comb_sum",
    "comb_sum_adjoint",
    "count_patterns",
    "earliest_is_worst",
    "earliest_pattern",
    "equal_length_joint_sensitivities",
    "equal_length_row_sums",
    "equal_length_sensitivities",
    "exact_sensitivity",
    "free_weight",
    "joint_diameter_square",
    "joint_sensitivity",
    "monotone_envelope",
    "pattern_layers",
    "pattern_sensitivities",
    "pattern_sensitivity",
    "quick_upper_bound",
    "row_weights",
    "stated_sensitivity",
]
