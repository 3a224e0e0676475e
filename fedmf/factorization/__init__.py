"""Strategy matrices as values: closed forms, optimisers, sensitivity and error."""

from fedmf.factorization.banded_inverse import banded_inverse
from fedmf.factorization.banded_matrix import Banded
from fedmf.factorization.banded_optimizer import banded
from fedmf.factorization.banded_toeplitz import banded_toeplitz
from fedmf.factorization.base import Factorization, Recurrence
from fedmf.factorization.block_sums import BlockSums
from fedmf.factorization.blt import blt
from fedmf.factorization.buffered import BufferedToeplitz
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
from fedmf.factorization.dense import Dense
from fedmf.factorization.dense_certificate import certified_dense_bound
from fedmf.factorization.dense_optimizer import dense
from fedmf.factorization.error import Errors, errors, query_variances
from fedmf.factorization.inverse import StreamingInverse
from fedmf.factorization.joint_geometry import free_weight, joint_diameter_square
from fedmf.factorization.joint_sensitivity import (
    UserRange,
    equal_length_joint_sensitivities,
    joint_sensitivity,
)
from fedmf.factorization.lti import quadratic_lti, quadratic_suboptimality
from fedmf.factorization.pattern import (
    equal_length_row_sums,
    equal_length_sensitivities,
    pattern_sensitivities,
    pattern_sensitivity,
)
from fedmf.factorization.rounded_storage import rounding_inflation, rounding_shift
from fedmf.factorization.scaled_toeplitz import ColumnScaled, NotRepresentable, ScaledToeplitz
from fedmf.factorization.sensitivity import (
    Sensitivity,
    SensitivityNotExact,
    sensitivity,
    sensitivity_upper_bound,
    stated_sensitivity,
)
from fedmf.factorization.sparse_rows import SparseRows
from fedmf.factorization.stamped import Stamped
from fedmf.factorization.state_space import StateSpace
from fedmf.factorization.strongly_convex import strongly_convex_bound, strongly_convex_lti
from fedmf.factorization.toeplitz import (
    Diagonal,
    InverseToeplitz,
    Toeplitz,
    factorization_from_dict,
    leading,
    normalized,
)
from fedmf.factorization.tree import BlockTree, KaryTree, kary_tree, tree

__all__ = [
    "Banded",
    "BlockSums",
    "BlockTree",
    "BufferedToeplitz",
    "ColumnScaled",
    "Dense",
    "Diagonal",
    "Errors",
    "Factorization",
    "InverseToeplitz",
    "KaryTree",
    "Mechanism",
    "NotRepresentable",
    "Recurrence",
    "ScaledToeplitz",
    "Sensitivity",
    "SensitivityNotExact",
    "SparseRows",
    "Stamped",
    "StateSpace",
    "StreamingInverse",
    "Toeplitz",
    "UserRange",
    "banded",
    "banded_inverse",
    "banded_toeplitz",
    "bfr",
    "bifr",
    "bisr",
    "blt",
    "bsr",
    "build",
    "certified_dense_bound",
    "cgd",
    "dense",
    "equal_length_joint_sensitivities",
    "equal_length_row_sums",
    "equal_length_sensitivities",
    "errors",
    "factorization_from_dict",
    "free_weight",
    "identity",
    "joint_diameter_square",
    "joint_sensitivity",
    "kary_tree",
    "leading",
    "names",
    "normalized",
    "nu_ftrl",
    "one_parameter",
    "optimal_diagonal",
    "pattern_sensitivities",
    "pattern_sensitivity",
    "quadratic_lti",
    "quadratic_suboptimality",
    "query_variances",
    "rounding_inflation",
    "rounding_shift",
    "sensitivity",
    "sensitivity_upper_bound",
    "square_root",
    "stated_sensitivity",
    "strongly_convex_bound",
    "strongly_convex_lti",
    "tree",
]
