"""The baselines of Joint Moment Estimation: independent, concatenated and post-processed moments."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from fedmf.mechanisms.joint import UserRange
from fedmf.mechanisms.matrix import Factorization
from fedmf.mechanisms.sensitivity import Sensitivity, stated_sensitivity
from fedmf.moments.mechanism import (
    MomentMechanism,
    MomentMethod,
    MomentWeight,
    checked_multiplier,
    separate_sensitivities,
)
from fedmf.participation import Participation


def ime(
    first: Factorization,
    second: Factorization,
    participation: Participation,
    users: UserRange,
    noise_multiplier: float,
    share: float = 0.5,
) -> MomentMechanism:
    """Independent Moment Estimation: two mechanisms under the GDP split μ₁² = αμ², μ₂² = (1 − α)μ².

    Args:
        first: C₁.
        second: C₂.
        participation: (n, k, b).
        users: ζ, dimension class and adjacency.
        noise_multiplier: σ = 1/μ of the pair.
        share: α in (0, 1), the first moment's share of μ².

    Raises:
        ValueError: α or σ is out of range.

    References:
        Kalinin, Upadhyay and Lampert (2025), Algorithm 4, with the split of its proof.
    """
    sigma = checked_multiplier(noise_multiplier)
    _ALPHA.checked(share)
    s1, s2 = separate_sensitivities(first, second, participation, users)
    exact = s1.kind == s2.kind == "exact"
    stated = Sensitivity(s1.value, "exact" if exact else "upper_bound", "each moment on its own")
    tau_1, tau_2 = s1.value * sigma / math.sqrt(share), s2.value * sigma / math.sqrt(1 - share)
    return MomentMechanism(IME, first, second, tau_1, tau_2, participation, users, sigma, stated, share)


def cs(
    factorization: Factorization,
    participation: Participation,
    users: UserRange,
    noise_multiplier: float,
    scale: float,
) -> MomentMechanism:
    """Concatenate and split: (x, √τ·x⊗x) as one vector of norm at most √(ζ² + τζ⁴).

    Args:
        factorization: C of both moments.
        participation: (n, k, b).
        users: ζ, dimension class and adjacency.
        noise_multiplier: σ.
        scale: τ > 0 (units of 1/x²).

    Raises:
        ValueError: τ or σ is out of range.

    References:
        Kalinin, Upadhyay and Lampert (2025), Algorithm 5, with the norm of C that it leaves out.
    """
    sigma = checked_multiplier(noise_multiplier)
    _TAU.checked(scale)
    alone = stated_sensitivity(factorization, participation)
    zeta = users.norm_bound
    norm = math.sqrt(zeta**2 + scale * zeta**4) * (2 if users.adjacency == "replace-one" else 1)
    s = replace(alone, value=alone.value * norm)
    std = s.value * sigma
    return MomentMechanism(
        CS,
        factorization,
        factorization,
        std,
        std / math.sqrt(scale),
        participation,
        users,
        sigma,
        s,
        scale,
    )


def pp(
    factorization: Factorization,
    participation: Participation,
    users: UserRange,
    noise_multiplier: float,
    debias: bool = True,
) -> MomentMechanism:
    """Post-processing: only x̂ is made private; x̂⊗x̂, less its known bias if asked for, is the second moment.

    Args:
        factorization: C₁.
        participation: (n, k, b).
        users: ζ, dimension class and adjacency.
        noise_multiplier: σ.
        debias: whether τ₁²·[C₁⁻¹C₁⁻ᵀ]_tt·I is subtracted at step t.

    References:
        Kalinin, Upadhyay and Lampert (2025), Algorithm 6, corrected as docs/dev/errata.md tells.
    """
    sigma = checked_multiplier(noise_multiplier)
    alone = stated_sensitivity(factorization, participation)
    reach = users.norm_bound * (2 if users.adjacency == "replace-one" else 1)
    s = replace(alone, value=alone.value * reach)
    std = s.value * sigma
    return MomentMechanism(
        PP, factorization, None, std, None, participation, users, sigma, s, debiased=debias
    )


def _split_multiplier(made: MomentMechanism, participation: Participation) -> float:
    second, second_std = made.second_noise
    s1, s2 = separate_sensitivities(made.first, second, participation, made.users)
    return 1 / math.hypot(s1.value / made.first_std, s2.value / second_std)


def _single_multiplier(made: MomentMechanism, participation: Participation) -> float:
    planned = stated_sensitivity(made.first, made.participation).value
    return made.noise_multiplier * planned / stated_sensitivity(made.first, participation).value


_ALPHA: Final = MomentWeight("alpha", "share of the first moment", 1.0, "1/2", lambda *_: 0.5)
_TAU: Final = MomentWeight(
    "tau",
    "scale of the second moment",
    math.inf,
    "1/zeta^2",
    lambda first, second, participation, users: users.norm_bound**-2,
)
#: Independent Moment Estimation.
IME: Final = MomentMethod("ime", "a mechanism for each moment", 2, True, _ALPHA, ime, _split_multiplier)
#: Concatenate and split.
CS: Final = MomentMethod(
    "cs",
    "both moments as one vector",
    1,
    True,
    _TAU,
    lambda first, second, *rest: cs(first, *rest),
    _single_multiplier,
)
#: Post-processing; streams take the form without bias.
PP: Final = MomentMethod(
    "pp",
    "squares of private rows, less their bias",
    1,
    False,
    None,
    lambda first, second, participation, users, sigma, weight: pp(first, participation, users, sigma),
    _single_multiplier,
)
