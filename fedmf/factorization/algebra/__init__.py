"""Series, spectra and vectors: the algebra under strategy matrices."""

from fedmf.factorization.algebra.banded_covariance import inverse_norm, inverse_row_norms
from fedmf.factorization.algebra.descent import Descent
from fedmf.factorization.algebra.query_variance import scaled_query_variances
from fedmf.factorization.algebra.search import minimize_from, minimize_on_interval
from fedmf.factorization.algebra.series import (
    binomial_series,
    factored_power,
    fft_size,
    lagged_products,
    multiply,
    padded,
    power,
    product,
    reciprocal,
    settled_reciprocal,
    trimmed,
)
from fedmf.factorization.algebra.single_thread import THREAD_LIMITS, single_threaded
from fedmf.factorization.algebra.spectral import graded_quadrature, mean_power, minimum_phase
from fedmf.factorization.algebra.vectors import check_leading, column_factors, frozen_vector, positive_vector

__all__ = [
    "THREAD_LIMITS",
    "Descent",
    "binomial_series",
    "check_leading",
    "column_factors",
    "factored_power",
    "fft_size",
    "frozen_vector",
    "graded_quadrature",
    "inverse_norm",
    "inverse_row_norms",
    "lagged_products",
    "mean_power",
    "minimize_from",
    "minimize_on_interval",
    "minimum_phase",
    "multiply",
    "padded",
    "positive_vector",
    "power",
    "product",
    "reciprocal",
    "scaled_query_variances",
    "settled_reciprocal",
    "single_threaded",
    "trimmed",
]
