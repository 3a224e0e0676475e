"""The strategy matrices of a stream without a horizon: of its segments, or one that goes on for ever."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Final

from fedmf.factorization import Mechanism, Toeplitz
from fedmf.moments import Lifetime, Steady, SteadyErrors
from fedmf.streaming.plans.strategies import build_strategies
from fedmf.streaming.settings import Settings
from fedmf.workload import parse_workload, prefix

#: Horizons for which the one matrix of a workload that forgets is optimised; the first that is long enough.
_LENGTHS: Final = tuple(1 << power for power in range(12, 21, 2))
#: Characters that the description of a segment's mechanism may take; it lies in each commit.
_LONGEST: Final = 1 << 14
#: Bands of a matrix that goes on for ever.
_WIDEST: Final = 1 << 10
#: Weight of a row that was forgotten.
_FORGOTTEN: Final = 1e-9


def strategies_of_sums(settings: Settings, lifetime: Lifetime, rounds: int) -> list[Mechanism]:
    """C₁ and C₂ for a segment, optimised for its prefix sums."""
    bands = None if settings.bands is None else min(settings.bands, rounds)
    work = prefix(rounds)
    return build_strategies(dataclasses.replace(settings, bands=bands), lifetime.within(rounds), (work, work))


def check_description(settings: Settings, lifetime: Lifetime) -> None:
    """Refuse matrices with a number for each step: each segment's would be written with every commit."""
    for built in strategies_of_sums(settings, lifetime, _LENGTHS[0]):
        if len(json.dumps(built.factorization.to_dict())) > _LONGEST:
            raise ValueError(
                "C (mechanism) must be told by few numbers however many rounds it has, in a stream without a "
                f"horizon; got {built.name}. Use banded-toeplitz or blt."
            )


def steady_strategies(settings: Settings, lifetime: Lifetime) -> tuple[Steady, list[Mechanism]]:
    """One matrix for ever, optimised for the first horizon at which the workloads have long forgotten.

    Raises:
        ValueError: the matrix is not banded and Toeplitz, or no horizon is long enough.
    """
    needed = 2 * max(_memory(name) for name in settings.workloads)
    for length in (length for length in _LENGTHS if length >= needed):
        built = [_toeplitz(mechanism, settings) for mechanism in _design(settings, lifetime, length)]
        widest = max(mechanism.factorization.bands for mechanism in built)
        if widest > lifetime.min_separation and lifetime.max_participations * widest > length:
            continue
        reach = math.lcm(*(max(1, mechanism.factorization.bands - 1) for mechanism in built))
        cut = Steady(-(-length // reach) * reach, 0 if widest == 1 else reach)
        stretched = [_stretched(mechanism, cut.length) for mechanism in built]
        if all(_settled(stretched[-1 if i else 0], name) for i, name in enumerate(settings.workloads)):
            return cut, stretched
    raise ValueError(
        f"A (workload) must forget a row within {_LENGTHS[-1] // 2} steps, and k*p (rows of a user times "
        f"bands beyond b) must not exceed it, in a stream without a horizon; got {settings.workloads[0]}. "
        "Use average, or --rounds N."
    )


def _memory(workload: str) -> float:
    """Steps after which a row counts for less than can be told."""
    kind, _, value = parse_workload(workload, _LENGTHS[-1]).name.partition(":")
    return 2 * int(value) if kind == "window" else math.log(_FORGOTTEN) / math.log(float(value))


def _design(settings: Settings, lifetime: Lifetime, rounds: int) -> list[Mechanism]:
    first = parse_workload(settings.workloads[0], rounds)
    same = settings.workloads[-1] == settings.workloads[0]
    works = first, first if same else parse_workload(settings.workloads[-1], rounds)
    return build_strategies(settings, lifetime.within(rounds), works)


def _toeplitz(mechanism: Mechanism, settings: Settings) -> Mechanism:
    """The same, if its matrix can go on for ever."""
    C = mechanism.factorization
    if not isinstance(C, Toeplitz) or C.bands > _WIDEST:
        raise ValueError(
            f"C (mechanism) must be banded and Toeplitz, of at most {_WIDEST} bands, for "
            f"{settings.workloads[0]} in a stream without a horizon; got {mechanism.name}. "
            "Use banded-toeplitz."
        )
    return mechanism


def _stretched(mechanism: Mechanism, rounds: int) -> Mechanism:
    C = mechanism.factorization
    assert isinstance(C, Toeplitz)
    return dataclasses.replace(mechanism, factorization=Toeplitz(C.coefficients[: C.bands], rounds))


def _settled(mechanism: Mechanism, workload: str) -> bool:
    C = mechanism.factorization
    return SteadyErrors(C, 1.0, parse_workload(workload, C.rounds)).settled
