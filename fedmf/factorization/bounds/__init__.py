"""Certified lower bounds: how good any strategy matrix of a class can be."""

from fedmf.factorization.bounds.dense_certificate import certified_dense_bound
from fedmf.factorization.bounds.pair_certificate import PairBound, certified_pair_bound
from fedmf.factorization.bounds.worst_queries import least_max_gram, worst_diagonal_weights

__all__ = [
    "PairBound",
    "certified_dense_bound",
    "certified_pair_bound",
    "least_max_gram",
    "worst_diagonal_weights",
]
