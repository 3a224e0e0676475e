"""The registry of mechanisms: how each is made, and which free parameter it has."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from fedmf.factorization.algebra import single_threaded
from fedmf.factorization.matrices import (
    Factorization,
    ScaledToeplitz,
    closed_form,
    kary_tree,
    normalized,
    tree,
)
from fedmf.factorization.mechanisms.banded_inverse_optimizer import banded_inverse
from fedmf.factorization.mechanisms.banded_optimizer import banded
from fedmf.factorization.mechanisms.blt_optimizer import blt, blt_with_fewest_buffers
from fedmf.factorization.mechanisms.cache import remembered
from fedmf.factorization.mechanisms.dense_optimizer import dense
from fedmf.factorization.mechanisms.normalized_toeplitz import (
    normalized_banded_toeplitz,
    rated_banded_toeplitz,
)
from fedmf.factorization.mechanisms.workload_power import (
    damped_root,
    inverse_power,
    shifted_root,
    strategy_power,
    workload_diagonal,
)
from fedmf.factorization.objectives import LARGEST_RATED
from fedmf.participation import Participation
from fedmf.workload import ToeplitzWorkload

__all__ = ["DEFAULT_INVERSE", "FAMILIES", "Family", "Parameter", "few_buffered", "rated", "scaled"]

ForWorkload = Callable[[Participation, int, float, ToeplitzWorkload, bool], Factorization]


@dataclass(frozen=True)
class Parameter:
    """A free parameter: an integer among `choices`, or real and searched over an interval of u with value(u).

    Interval and value may depend on n and p.
    """

    symbol: str
    interval: Callable[[int, int], tuple[float, float]] = lambda n, p: (0.0, 0.0)
    value: Callable[[float, int], float] = lambda u, p: u
    choices: tuple[int, ...] = ()


@dataclass(frozen=True)
class Family:
    """How to make one mechanism: make(participation, bands, value), or for_workload(…, workload, equal)."""

    make: Callable[[Participation, int, float], Factorization] | None = None
    banded: bool = False
    parameter: Parameter | None = None
    for_workload: ForWorkload | None = None

    @property
    def accepted(self) -> list[str]:
        """Names of the parameters that are searched unless given."""
        own = [self.parameter.symbol] if self.parameter else []
        return (["bands"] if self.banded else []) + own

    @property
    def integers(self) -> list[str]:
        """Its parameters that are integers, bands aside."""
        return [self.parameter.symbol] if self.parameter and self.parameter.choices else []


_LAMBDA = Parameter("lambda", lambda n, p: (0.0, math.log(10.0 * n)), lambda u, p: -math.expm1(-u))
_GAMMA = Parameter("gamma", lambda n, p: (0.01, 1.0), lambda u, p: u)
_NU = Parameter("nu", lambda n, p: (math.log(1e-3 / n), 0.0), lambda u, p: math.exp(u))
# The interesting scale of c is 1/p: at c = -1/p the last coefficient vanishes.
_SHIFT = Parameter(
    "c",
    lambda n, p: (-1.0, 4.0) if p > 1 else (0.0, 0.0),
    lambda u, p: max(math.copysign(10 ** abs(u) - 1, u) / p, -0.9),
)

# The square root falls like j^{-1/2}: at c = -1/sqrt(p) its end is near zero.
_ROOT_SHIFT = Parameter(
    "c",
    lambda n, p: (-1.0, 4.0) if p > 1 else (0.0, 0.0),
    lambda u, p: max(math.copysign(10 ** abs(u) - 1, u) / math.sqrt(p), -0.9),
)

# Results of the optimisers are kept on disk as well; the version is to be raised
# whenever an optimiser finds other coefficients.
_optimized = lru_cache(maxsize=32)(remembered(rated_banded_toeplitz, version=1))
_jointly = lru_cache(maxsize=32)(remembered(single_threaded(normalized_banded_toeplitz), version=1))

_banded = lru_cache(maxsize=8)(remembered(single_threaded(banded), version=2))
_dense = lru_cache(maxsize=8)(remembered(single_threaded(dense), version=2))

_inverse = lru_cache(maxsize=32)(remembered(single_threaded(banded_inverse), version=1))
_buffered = lru_cache(maxsize=32)(remembered(single_threaded(blt), version=2))
few_buffered = remembered(single_threaded(blt_with_fewest_buffers), version=2)
# Wider inverses draw more past noise again in each round and gain about 1 % at most where tried.
DEFAULT_INVERSE = 64


def known(workload: ToeplitzWorkload) -> ToeplitzWorkload | None:
    """None for prefix sums, the default of the optimisers: workloads are compared by identity."""
    weighted = workload.row_weights is not None or workload.column_weights is not None
    return workload if weighted or (workload.coefficients != 1.0).any() else None


def rated(workload: ToeplitzWorkload) -> ToeplitzWorkload | None:
    """`known`, without the learning rates beyond n = 4096, where no Toeplitz optimiser can include them."""
    if workload.column_weights is not None and workload.rounds > LARGEST_RATED:
        return known(replace(workload, column_weights=None))
    return known(workload)


def scaled(base: Factorization, normalize: bool) -> Factorization:
    """The base, its columns normalised if asked for."""
    return normalized(base) if normalize else base


def _of(make: Callable[[ToeplitzWorkload, int, float], ScaledToeplitz]) -> ForWorkload:
    """A closed form of the workload, p and x."""
    return lambda part, p, x, work, normalize: scaled(make(work, p, x), normalize)


FAMILIES: dict[str, Family] = {
    "identity": Family(lambda part, p, x: closed_form.identity(part.rounds)),
    "square-root": Family(for_workload=_of(lambda work, p, x: inverse_power(work, 0.5, work.rounds))),
    "bsr": Family(for_workload=_of(lambda work, p, x: strategy_power(work, 0.5, p)), banded=True),
    "bisr": Family(for_workload=_of(lambda work, p, x: inverse_power(work, 0.5, p)), banded=True),
    "bifr": Family(
        for_workload=_of(lambda work, p, x: inverse_power(work, x, p)), banded=True, parameter=_GAMMA
    ),
    "bfr": Family(
        for_workload=_of(lambda work, p, x: strategy_power(work, x, p)), banded=True, parameter=_GAMMA
    ),
    "cgd": Family(lambda part, p, x: closed_form.cgd(x, part.rounds), parameter=_LAMBDA),
    "nu-ftrl": Family(for_workload=_of(lambda work, p, x: damped_root(work, x)), parameter=_NU),
    "one-parameter": Family(
        lambda part, p, x: closed_form.one_parameter(x, p, part.rounds), banded=True, parameter=_SHIFT
    ),
    "shifted-root": Family(
        for_workload=_of(lambda work, p, x: shifted_root(work, x, p)), banded=True, parameter=_ROOT_SHIFT
    ),
    "optimal-diagonal": Family(for_workload=_of(lambda work, p, x: workload_diagonal(work))),
    "banded-toeplitz": Family(
        for_workload=lambda part, p, x, work, equal: (_jointly if equal else _optimized)(
            p, part, known(work)
        ),
        banded=True,
    ),
    "banded": Family(
        for_workload=lambda part, p, x, work, equal: _banded(p, part, known(work), equal), banded=True
    ),
    "dense": Family(for_workload=lambda part, p, x, work, norm: scaled(_dense(part, known(work)), norm)),
    "tree": Family(
        lambda part, p, x: tree(part.rounds, bool(x)),
        parameter=Parameter("full", choices=(1, 0)),
    ),
    "kary-tree": Family(
        lambda part, p, x: kary_tree(int(x), part.rounds),
        parameter=Parameter("arity", choices=(2, 3, 4, 6, 8, 12, 16)),
    ),
    "banded-inverse": Family(
        for_workload=lambda part, p, x, work, norm: scaled(_inverse(p, part, rated(work)), norm),
        banded=True,
    ),
    "blt": Family(
        for_workload=lambda part, p, x, work, norm: scaled(_buffered(int(x), part, rated(work)), norm),
        parameter=Parameter("buffers", choices=tuple(range(1, 11))),
    ),
}
