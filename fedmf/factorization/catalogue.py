"""Mechanisms by name, with the parameters that were not given optimised for the request."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from fedmf.factorization import closed_form
from fedmf.factorization.banded_toeplitz import banded_toeplitz
from fedmf.factorization.scaled_toeplitz import NotRepresentable, ScaledToeplitz
from fedmf.factorization.search import minimize_on_interval
from fedmf.factorization.sensitivity import quick_upper_bound
from fedmf.factorization.toeplitz import normalized
from fedmf.participation import Participation
from fedmf.workload import ToeplitzWorkload, prefix

__all__ = ["Mechanism", "accepted_parameters", "build", "names"]

_NORMALIZED = "normalized-"
# Beyond p = b the optimiser takes seconds per step; wider bands than this must be asked for.
_WIDEST_OPTIMIZED = 256


@dataclass(frozen=True, eq=False)
class Mechanism:
    """A named factorization with the parameters it was built from.

    Args:
        name: as on the command line.
        params: by ASCII name (bands, lambda, gamma, nu, c), the optimised ones included; `build` with these
            parameters gives the same factorization again.
        factorization: C.
    """

    name: str
    params: dict[str, float | int]
    factorization: ScaledToeplitz


@dataclass(frozen=True)
class _Parameter:
    """A free real parameter, searched over an interval of u with value(u); both may depend on n and p."""

    symbol: str
    interval: Callable[[int, int], tuple[float, float]]
    value: Callable[[float, int], float]


@dataclass(frozen=True)
class _Family:
    """How to make one mechanism: make(participation, bands, value)."""

    make: Callable[[Participation, int, float], ScaledToeplitz]
    banded: bool = False
    parameter: _Parameter | None = None

    @property
    def accepted(self) -> list[str]:
        own = [self.parameter.symbol] if self.parameter else []
        return (["bands"] if self.banded else []) + own


_LAMBDA = _Parameter("lambda", lambda n, p: (0.0, math.log(10.0 * n)), lambda u, p: -math.expm1(-u))
_GAMMA = _Parameter("gamma", lambda n, p: (0.01, 1.0), lambda u, p: u)
_NU = _Parameter("nu", lambda n, p: (math.log(1e-3 / n), 0.0), lambda u, p: math.exp(u))
# The interesting scale of c is 1/p: at c = -1/p the last coefficient vanishes.
_SHIFT = _Parameter(
    "c",
    lambda n, p: (-1.0, 4.0) if p > 1 else (0.0, 0.0),
    lambda u, p: max(math.copysign(10 ** abs(u) - 1, u) / p, -0.9),
)

# The plain and the normalised form share one optimisation.
_optimized = lru_cache(maxsize=32)(banded_toeplitz)

_FAMILIES: dict[str, _Family] = {
    "identity": _Family(lambda part, p, x: closed_form.identity(part.rounds)),
    "square-root": _Family(lambda part, p, x: closed_form.square_root(part.rounds)),
    "bsr": _Family(lambda part, p, x: closed_form.bsr(p, part.rounds), banded=True),
    "bisr": _Family(lambda part, p, x: closed_form.bisr(p, part.rounds), banded=True),
    "bifr": _Family(lambda part, p, x: closed_form.bifr(x, p, part.rounds), banded=True, parameter=_GAMMA),
    "bfr": _Family(lambda part, p, x: closed_form.bfr(x, p, part.rounds), banded=True, parameter=_GAMMA),
    "cgd": _Family(lambda part, p, x: closed_form.cgd(x, part.rounds), parameter=_LAMBDA),
    "nu-ftrl": _Family(lambda part, p, x: closed_form.nu_ftrl(x, part.rounds), parameter=_NU),
    "one-parameter": _Family(
        lambda part, p, x: closed_form.one_parameter(x, p, part.rounds), banded=True, parameter=_SHIFT
    ),
    "optimal-diagonal": _Family(lambda part, p, x: closed_form.optimal_diagonal(part.rounds)),
    "banded-toeplitz": _Family(lambda part, p, x: _optimized(p, part), banded=True),
}


def names() -> list[str]:
    """All mechanism names, the column-normalised forms last.

    >>> names()[:3], names()[-1]
    (['identity', 'square-root', 'bsr'], 'normalized-banded-toeplitz')
    """
    return [*_FAMILIES, *(_NORMALIZED + name for name in _FAMILIES)]


def accepted_parameters(name: str) -> list[str]:
    """The parameters a mechanism takes.

    Raises:
        ValueError: unknown name.

    >>> accepted_parameters("bifr")
    ['bands', 'gamma']
    """
    return _family(name).accepted


def build(
    name: str,
    participation: Participation,
    workload: ToeplitzWorkload | None = None,
    bands: int | None = None,
    params: Mapping[str, float | int] | None = None,
) -> Mechanism:
    """The mechanism of this name; parameters not given minimise its RMSE (sensitivity included).

    Args:
        name: one of `names()`.
        participation: (n, k, b).
        workload: prefix sums of n rounds; the default, and the only workload so far.
        bands: p, where the mechanism takes it; may also be given in params.
        params: lambda, gamma, nu or c, where the mechanism takes it.

    Raises:
        ValueError: an unknown name, a parameter the mechanism does not take, a value out of range, or another
            workload.

    >>> build("cgd", Participation(64, 2, 32), params={"lambda": 0.9}).params
    {'lambda': 0.9}
    >>> build("bsr", Participation(64, 2, 32)).params
    {'bands': 32}
    """
    family, n = _family(name), participation.rounds
    workload = prefix(n) if workload is None else workload
    if workload.name != "prefix" or workload.rounds != n:
        raise ValueError(
            f"A (workload) must be prefix sums of n={n} rounds; got {workload.name!r} of {workload.rounds}."
        )
    given = _checked_params(name, family, {**({} if bands is None else {"bands": bands}), **(params or {})})
    search = _Search(participation, workload, family, name.startswith(_NORMALIZED), given)
    return Mechanism(name, *search.best())


@dataclass
class _Search:
    """Choose the parameters that were not given."""

    participation: Participation
    workload: ToeplitzWorkload
    family: _Family
    normalize: bool
    given: dict[str, float | int]
    _made: dict[tuple[int, float], ScaledToeplitz] = field(default_factory=dict)

    def best(self) -> tuple[dict[str, float | int], ScaledToeplitz]:
        """The parameters and the factorization."""
        p, x = self._best_bands(), 0.0
        params: dict[str, float | int] = {}
        if self.family.banded:
            params["bands"] = p
        if self.family.parameter is not None:
            x = self._best_value(p, tolerance=1e-2 if self.normalize else 1e-4)[0]
            params[self.family.parameter.symbol] = x
        return params, self.make(p, x)

    def make(self, p: int, x: float) -> ScaledToeplitz:
        key = (p, x)
        if key not in self._made:
            self._made = {key: self.family.make(self.participation, p, x)}
        base = self._made[key]
        return normalized(base) if self.normalize else base

    def rmse(self, p: int, x: float) -> float:
        try:
            made = self.make(p, x)
            variance = float(made.query_variances(self.workload.coefficients).mean())
            return math.sqrt(variance) * quick_upper_bound(made, self.participation)
        except NotRepresentable:
            return math.inf

    def _best_bands(self) -> int:
        if not self.family.banded:
            return 1
        if "bands" in self.given:
            return int(self.given["bands"])
        if self.family is _FAMILIES["banded-toeplitz"]:
            return self._best_optimized_bands()
        if self.family.parameter is None:
            return min(self._candidates(), key=lambda p: self.rmse(p, 0.0))
        # With a second free parameter p is chosen by the cheap form without normalisation, on a coarse grid.
        coarse = _Search(self.participation, self.workload, self.family, False, self.given)
        return min(self._candidates(), key=lambda p: coarse._best_value(p, tolerance=0.03)[1])

    def _candidates(self) -> list[int]:
        """Powers of two and b."""
        n, b = self.participation.rounds, self.participation.min_separation
        return sorted({*(2**i for i in range(n.bit_length())), min(b, n)})

    def _best_optimized_bands(self) -> int:
        """The optimal error falls with p; stop where it falls by less than 0.1 %.

        With kb ≥ n nothing was gained beyond p = b in any setting tried: only users with few participations
        leave room for wider bands.
        """
        n, k, b = (
            self.participation.rounds,
            self.participation.max_participations,
            self.participation.min_separation,
        )
        best = min(b, n)
        if k * b >= n:
            return best
        error = self.rmse(best, 0.0)
        for p in (p for p in self._candidates() if best < p <= max(b, _WIDEST_OPTIMIZED)):
            previous, error = error, min(error, self.rmse(p, 0.0))
            if error > 0.999 * previous:
                break
            best = p
        return best

    def _best_value(self, p: int, tolerance: float) -> tuple[float, float]:
        parameter = self.family.parameter
        assert parameter is not None
        if parameter.symbol in self.given:
            x = float(self.given[parameter.symbol])
            return x, self.rmse(p, x)
        low, high = parameter.interval(self.participation.rounds, p)

        def value(u: float) -> float:
            return parameter.value(u, p)

        if low == high:
            return value(low), self.rmse(p, value(low))
        grid = 17 if tolerance < 1e-3 else 9
        u, rmse = minimize_on_interval(lambda u: self.rmse(p, value(u)), low, high, grid, tolerance)
        return value(u), rmse


def _family(name: str) -> _Family:
    family = _FAMILIES.get(name.removeprefix(_NORMALIZED))
    if family is None:
        nearest = difflib.get_close_matches(name, names(), n=1, cutoff=0.0)[0]
        raise ValueError(f"mechanism (name) must be a known one; got {name!r}. Did you mean {nearest!r}?")
    return family


def _checked_params(name: str, family: _Family, params: Mapping[str, float | int]) -> dict[str, float | int]:
    for symbol, value in params.items():
        if symbol not in family.accepted:
            takes = ", ".join(family.accepted) or "none"
            raise ValueError(
                f"{symbol} (parameter) must be one that {name} takes: {takes}; got {symbol}={value}."
            )
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not np.isfinite(value):
            raise ValueError(f"{symbol} (parameter of {name}) must be a finite number; got {value!r}.")
    bands = params.get("bands")
    if bands is not None and int(bands) != bands:
        raise ValueError(f"p (bands) must be an integer; got {bands}.")
    return {key: int(value) if key == "bands" else float(value) for key, value in params.items()}
