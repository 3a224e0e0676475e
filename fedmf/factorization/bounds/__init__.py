"""Certified lower bounds: how good any strategy matrix of a class can be."""

from fedmf.factorization.bounds.dense_certificate import certified_dense_bound
from fedmf.factorization.bounds.worst_queries import least_max_gram, worst_diagonal_weights

__all__ = [
    "certified_dense_bound",
    "least_max_gram",
    "worst_diagonal_weights",
]
