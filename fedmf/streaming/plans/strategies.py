"""The strategy matrices of a private stream."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from fedmf.mechanisms.errors import query_variances
from fedmf.mechanisms.joint import UserRange
from fedmf.mechanisms.matrix import Factorization, factorization_from_dict
from fedmf.mechanisms.registry import Mechanism, accepted_parameters, build, optional_parameters
from fedmf.mechanisms.workload import ToeplitzWorkload
from fedmf.moments import METHODS, MomentMechanism, SecondMoment, best_weight
from fedmf.participation import Participation
from fedmf.streaming.settings import BEST, DEFAULT_MECHANISM, Settings

_DEFAULT_BANDS: Final = 32
#: Relative, of every number that is computed again.
_TOLERANCE: Final = 1e-9


def build_strategies(
    settings: Settings, participation: Participation, works: Sequence[ToeplitzWorkload]
) -> list[Mechanism]:
    """C₁ and C₂, or one of them if they are the same.

    Args:
        settings: which ones.
        participation: (n, k, b) for which they are optimised.
        works: A₁ and A₂; the same object if they are the same.
    """
    choices = settings.mechanisms
    wide = min(_DEFAULT_BANDS, participation.min_separation)
    asked = {**({} if settings.bands is None else {"bands": settings.bands}), **settings.params}
    for symbol, value in asked.items():
        if not any(symbol in _taken(choice) for choice in choices):
            known = " or ".join(named(choice) for choice in choices)
            raise ValueError(f"{symbol} (parameter) is none of {known}; got {symbol}={value}.")
    pairs = [(choices[0], works[0])]
    # A given matrix is the same whatever it is for; one of a name is optimised for its workload.
    same = choices[-1] == choices[0] and (works[1] is works[0] or not isinstance(choices[0], str))
    if METHODS[settings.method].matrices == 2 and not same:
        pairs.append((choices[-1], works[1]))
    built = []
    for choice, work in pairs:
        if not isinstance(choice, str):
            built.append(_given(choice, participation.rounds))
            continue
        params = {symbol: value for symbol, value in asked.items() if symbol in _taken(choice)}
        if choice == DEFAULT_MECHANISM and "bands" not in params:
            params["bands"] = wide
        built.append(build(choice, participation, work, params=params))
    return built


def named(choice: str | Factorization) -> str:
    """What a choice of C is called."""
    return choice if isinstance(choice, str) else f"given {choice.to_dict()['type']}"


def used_strategies(made: MomentMechanism) -> list[Factorization]:
    """C₁ and C₂ of a mechanism, or one of them if they are the same."""
    return [made.first, *([] if made.second in (None, made.first) else [made.second])]


def moment_mechanism(
    settings: Settings,
    second_moment: SecondMoment,
    strategies: Sequence[Factorization],
    participation: Participation,
    noise_multiplier: float,
    weight: float | None = None,
) -> MomentMechanism:
    """The method that was asked for, with these matrices.

    Args:
        settings: which method, norm bound, adjacency, weight.
        second_moment: which one.
        strategies: C₁ and C₂, or one for both.
        participation: (n, k, b).
        noise_multiplier: σ.
        weight: in place of the one in the settings where that is "best".
    """
    users = _users(settings, second_moment)
    given = weight if settings.weight == BEST else settings.weight
    assert not isinstance(given, str)
    return METHODS[settings.method].mechanism(strategies, participation, users, noise_multiplier, given)


def asked_weight(
    settings: Settings,
    second_moment: SecondMoment,
    strategies: Sequence[Factorization],
    participation: Participation,
    works: Sequence[ToeplitzWorkload],
    noise_multiplier: float,
) -> float | None:
    """λ with the least expected squared error of what is released last, if "best" was asked for; else None.

    Where there is a covariance, of that: 2(d+1)τ₁²q₁‖μ‖² + mτ₂²q₂ + d(d+1)τ₁⁴q₁² at ‖μ‖² = ζ²/2, half of what
    it can be, as the true mean must not be asked. Else of the first moment in units of ζ and of the second in
    units of ζ², summed. Nothing here looks at rows.
    """
    if settings.weight != BEST:
        return None
    users, d, zeta = _users(settings, second_moment), second_moment.dimension, settings.vector_norm
    first, second = strategies[0], strategies[-1]
    covariance = works[0] is works[1] and second_moment.gives_covariance
    weights = [float(work.row_sums()[-1]) if covariance else 1.0 for work in works]
    q_1, q_2 = (
        float(query_variances(C, work)[-1]) / w**2
        for C, work, w in zip((first, second), works, weights, strict=True)
    )
    if not covariance:
        costs = d * q_1 / zeta**2, second_moment.size * q_2 / zeta**4, 0.0
    elif second_moment.size > d:
        costs = (d + 1) * zeta**2 * q_1, second_moment.size * q_2, d * (d + 1) * (noise_multiplier * q_1) ** 2
    else:
        costs = 2 * zeta**2 * q_1, d * q_2, 2 * d * (noise_multiplier * q_1) ** 2
    return best_weight(first, second, participation, users, *costs)


def _users(settings: Settings, second_moment: SecondMoment) -> UserRange:
    dimension = second_moment.sensitivity_dimension
    return UserRange(settings.vector_norm, dimension, settings.adjacency)  # type: ignore[arg-type]


def compare_mechanisms(settings: Settings, made: MomentMechanism, again: MomentMechanism) -> None:
    """See that a mechanism as it was kept is the one that follows from its coefficients.

    Raises:
        ValueError: a figure differs; both are named.
    """
    figures = "participation", "users", "noise_multiplier", "first_std", "second_std", "weight", "debiased"
    for name in figures:
        compare(name, getattr(made, name), getattr(again, name))
    compare("method", made.method.name, settings.method)
    for name in ("value", "kind", "case"):
        recorded: Any = getattr(made.sensitivity, name)
        compare(f"{name} of the sensitivity", recorded, getattr(again.sensitivity, name))


def _given(factorization: Factorization, rounds: int) -> Mechanism:
    """A factorization that came as an object, as it will be read back from its coefficients."""
    if factorization.rounds != rounds:
        raise ValueError(
            f"C (mechanism) must have n = {rounds} rounds, those of the stream; got {factorization.rounds}."
        )
    return Mechanism(named(factorization), {}, factorization_from_dict(factorization.to_dict()))


def _taken(choice: str | Factorization) -> list[str]:
    """The parameters that a mechanism takes."""
    if not isinstance(choice, str):
        return []
    return [*accepted_parameters(choice), *optional_parameters(choice)]


def compare(name: str, recorded: object, recomputed: object) -> None:
    """Refuse a figure that does not follow.

    Raises:
        ValueError: they differ.
    """
    if isinstance(recorded, float) and isinstance(recomputed, float):
        agree = math.isclose(recorded, recomputed, rel_tol=_TOLERANCE)
    else:
        agree = recorded == recomputed
    if not agree:
        raise ValueError(
            f"{name} of the stream's plan is {recorded!r}; from the rest of the plan follows {recomputed!r}. "
            "The record was altered: restore it from a copy."
        )
