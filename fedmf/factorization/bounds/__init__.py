"""Certified lower bounds: how good any strategy matrix of a class can be."""

from fedmf.factorization.bounds.dense_certificate import certified_dense_bound

__all__ = [
    "certified_dense_bound",
]
