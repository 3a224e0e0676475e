"""Strategy matrices as values, by what is stored."""

from fedmf.factorization.matrices.banded_matrix import Banded, without_workload, workload_inverse
from fedmf.factorization.matrices.buffered import BufferedToeplitz
from fedmf.factorization.matrices.closed_form import (
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
from fedmf.factorization.matrices.dense import LARGEST_DENSE, Dense, lower_factor
from fedmf.factorization.matrices.scaled_toeplitz import ColumnScaled, NotRepresentable, ScaledToeplitz
from fedmf.factorization.matrices.stamped import Stamped
from fedmf.factorization.matrices.strategy_matrix import Factorization
from fedmf.factorization.matrices.toeplitz import (
    Diagonal,
    InverseToeplitz,
    Toeplitz,
    factorization_from_dict,
    normalized,
)
from fedmf.factorization.matrices.trees import BlockTree, KaryTree, kary_tree, tree
from fedmf.factorization.matrices.workload_power import (
    damped_root,
    inverse_power,
    power_series,
    rated_power,
    shifted_root,
    strategy_power,
    workload_diagonal,
)

__all__ = [
    "LARGEST_DENSE",
    "Banded",
    "BlockTree",
    "BufferedToeplitz",
    "ColumnScaled",
    "Dense",
    "Diagonal",
    "Factorization",
    "InverseToeplitz",
    "KaryTree",
    "NotRepresentable",
    "ScaledToeplitz",
    "Stamped",
    "Toeplitz",
    "bfr",
    "bifr",
    "bisr",
    "bsr",
    "cgd",
    "damped_root",
    "factorization_from_dict",
    "identity",
    "inverse_power",
    "kary_tree",
    "lower_factor",
    "normalized",
    "nu_ftrl",
    "one_parameter",
    "optimal_diagonal",
    "power_series",
    "rated_power",
    "shifted_root",
    "square_root",
    "strategy_power",
    "tree",
    "without_workload",
    "workload_diagonal",
    "workload_inverse",
]
