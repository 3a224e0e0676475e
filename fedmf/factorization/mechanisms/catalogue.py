"""Mechanisms by name, with the parameters that were not given optimised for the request."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fedmf.factorization.algebra import minimize_on_interval
from fedmf.factorization.matrices import Factorization, NotRepresentable, Stamped, Toeplitz, normalized
from fedmf.factorization.mechanisms.families import (
    DEFAULT_INVERSE,
    FAMILIES,
    Family,
    few_buffered,
    rated,
    scaled,
)
from fedmf.factorization.mechanisms.horizons import check_horizon, check_rounds
from fedmf.factorization.mechanisms.robust import tapered
from fedmf.factorization.objectives import query_variances
from fedmf.factorization.sensitivity import quick_upper_bound
from fedmf.participation import Participation
from fedmf.workload import ToeplitzWorkload, prefix

__all__ = ["Mechanism", "accepted_parameters", "build", "names", "optional_parameters"]

_NORMALIZED = "normalized-"
# Beyond p = b the optimiser takes seconds per step; wider bands than this must be asked for.
_WIDEST_OPTIMIZED = 256
# General banded matrices have n·p coefficients: at n = 4000, p = 64 takes a minute and p = 400 several.
_WIDEST_BANDED, _MOST_ENTRIES = 64, 2**18


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
    factorization: Factorization


def names() -> list[str]:
    """All mechanism names, the column-normalised forms last.

    >>> names()[:3], names()[-1].startswith("normalized-")
    (['identity', 'square-root', 'bsr'], True)
    """
    return [*FAMILIES, *(_NORMALIZED + name for name in FAMILIES)]


def accepted_parameters(name: str) -> list[str]:
    """The parameters a mechanism takes.

    Raises:
        ValueError: unknown name.

    >>> accepted_parameters("bifr")
    ['bands', 'gamma']
    """
    return _family(name).accepted


def optional_parameters(name: str) -> list[str]:
    """Parameters that change the construction and are never searched: stamps, and taper where C is banded.

    Raises:
        ValueError: unknown name.

    >>> optional_parameters("banded-toeplitz")
    ['stamps', 'taper']
    """
    return ["stamps", "taper"] if _family(name) is FAMILIES["banded-toeplitz"] else ["stamps"]


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
        workload: A of n rounds; prefix sums by default.
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
    check_rounds(n)
    workload = prefix(n) if workload is None else workload
    if workload.rounds != n:
        raise ValueError(f"A (workload) must have n={n} rounds, those of C; got {workload.rounds}.")
    asked = {**({} if bands is None else {"bands": bands}), **(params or {})}
    if "stamps" in asked:
        return _stamped(name, participation, workload, asked)
    if "taper" in asked and family is FAMILIES["banded-toeplitz"]:
        return _tapered(name, participation, workload, asked)
    check_horizon(name, n)
    given = _checked_params(name, family, asked, n)
    search = _Search(participation, workload, family, name.startswith(_NORMALIZED), given)
    return Mechanism(name, *search.best())


def _stamped(
    name: str,
    participation: Participation,
    workload: ToeplitzWorkload,
    asked: Mapping[str, float | int],
) -> Mechanism:
    """s blocks of m = ⌈n/s⌉ rounds, each built for the first m queries and what a user can do in m rounds."""
    n, k, b = participation.rounds, participation.max_participations, participation.min_separation
    count = _whole("s (stamps)", asked["stamps"], 1, n)
    size = -(-n // count)
    inner = Participation(size, min(k, -(-size // b)), b)
    rest = {symbol: value for symbol, value in asked.items() if symbol != "stamps"}
    block = build(name, inner, workload.leading(size), params=rest)
    return Mechanism(name, {**block.params, "stamps": count}, Stamped(block.factorization, n))


def _tapered(
    name: str,
    participation: Participation,
    workload: ToeplitzWorkload,
    asked: Mapping[str, float | int],
) -> Mechanism:
    """The optimal banded Toeplitz C for separation b with its coefficients from b₀ on tapered to 0 at p."""
    rest = {symbol: value for symbol, value in asked.items() if symbol != "taper"}
    optimal = build(name.removeprefix(_NORMALIZED), participation, workload, params=rest)
    assert isinstance(optimal.factorization, Toeplitz)
    p = int(optimal.params["bands"])
    lower = _whole("b_0 (taper)", asked["taper"], 0, p - 1)
    found = tapered(optimal.factorization, lower, p)
    return Mechanism(name, {**optimal.params, "taper": lower}, scaled(found, name.startswith(_NORMALIZED)))


def _whole(label: str, value: float | int, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise ValueError(f"{label} must be an integer between {low} and {high}; got {value!r}.")
    if int(value) != value:
        raise ValueError(f"{label} must be an integer between {low} and {high}; got {value!r}.")
    return int(value)


@dataclass
class _Search:
    """Choose the parameters that were not given."""

    participation: Participation
    workload: ToeplitzWorkload
    family: Family
    normalize: bool
    given: dict[str, float | int]
    _made: dict[tuple[int, float], Factorization] = field(default_factory=dict)

    def best(self) -> tuple[dict[str, float | int], Factorization]:
        """The parameters and the factorization."""
        p, x = self._best_bands(), 0.0
        params: dict[str, float | int] = {}
        if self.family.banded:
            params["bands"] = p
        if self.family.parameter is not None:
            x = self._best_value(p, tolerance=1e-2 if self.normalize else 1e-4)[0]
            params[self.family.parameter.symbol] = int(x) if self.family.parameter.choices else x
        return params, self.make(p, x)

    def make(self, p: int, x: float) -> Factorization:
        key = (p, x)
        if key not in self._made:
            self._made = {key: self._fresh(p, x)}
        base = self._made[key]
        if not self.normalize or self.family.for_workload is not None:
            return base
        return normalized(base)

    def _fresh(self, p: int, x: float) -> Factorization:
        if self.family.for_workload is not None:
            return self.family.for_workload(self.participation, p, x, self.workload, self.normalize)
        assert self.family.make is not None
        return self.family.make(self.participation, p, x)

    def rmse(self, p: int, x: float) -> float:
        try:
            made = self.make(p, x)
            variance = float(query_variances(made, self.workload).mean())
            return math.sqrt(variance) * quick_upper_bound(made, self.participation)
        except NotRepresentable:
            return math.inf

    def _best_bands(self) -> int:
        if not self.family.banded:
            return 1
        if "bands" in self.given:
            return int(self.given["bands"])
        if self.family is FAMILIES["banded"]:
            n, b = self.participation.rounds, self.participation.min_separation
            return min(b, n, _WIDEST_BANDED, max(1, _MOST_ENTRIES // n))
        if self.family is FAMILIES["banded-inverse"]:
            return min(DEFAULT_INVERSE, self.participation.rounds)
        if self.family is FAMILIES["banded-toeplitz"]:
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
        if self.family is FAMILIES["blt"]:
            buffers = few_buffered(self.participation, rated(self.workload)).decays.size
            return float(buffers), self.rmse(p, float(buffers))
        if parameter.choices:
            return min(((float(x), self.rmse(p, x)) for x in parameter.choices), key=lambda found: found[1])
        low, high = parameter.interval(self.participation.rounds, p)

        def value(u: float) -> float:
            return parameter.value(u, p)

        if low == high:
            return value(low), self.rmse(p, value(low))
        grid = 17 if tolerance < 1e-3 else 9
        u, rmse = minimize_on_interval(lambda u: self.rmse(p, value(u)), low, high, grid, tolerance)
        return value(u), rmse


def _family(name: str) -> Family:
    family = FAMILIES.get(name.removeprefix(_NORMALIZED))
    if family is None:
        nearest = difflib.get_close_matches(name, names(), n=1, cutoff=0.0)[0]
        raise ValueError(f"mechanism (name) must be a known one; got {name!r}. Did you mean {nearest!r}?")
    return family


def _checked_params(
    name: str, family: Family, params: Mapping[str, float | int], rounds: int
) -> dict[str, float | int]:
    for symbol, value in params.items():
        if symbol not in family.accepted:
            takes = ", ".join(family.accepted) or "none"
            raise ValueError(
                f"{symbol} (parameter) must be one that {name} takes: {takes}; got {symbol}={value}."
            )
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not np.isfinite(value):
            raise ValueError(f"{symbol} (parameter of {name}) must be a finite number; got {value!r}.")
    whole = {"bands": "p", **{symbol: symbol for symbol in family.integers}}
    for symbol, value in params.items():
        if symbol in whole and int(value) != value:
            raise ValueError(f"{whole[symbol]} ({symbol}) must be an integer; got {value}.")
    if not 1 <= params.get("bands", 1) <= rounds:
        raise ValueError(f"p (bands) must be an integer between 1 and n={rounds}; got {params['bands']}.")
    if params.get("full", 0) not in (0, 1):
        raise ValueError(f"full (estimator of {name}) must be 0 (online) or 1 (full); got {params['full']}.")
    return {key: int(value) if key in whole else float(value) for key, value in params.items()}
