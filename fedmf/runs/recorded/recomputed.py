"""Every number of a header that follows from others, computed again when the header is read.

What is recorded must agree to a relative 1e-9, far above rounding and far below anything that matters.
Figures of amplification take long and are left to the statement, which looks again whether the noise
suffices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from fedmf.accounting import UserLevel, certified_sigma
from fedmf.errors import LedgerError
from fedmf.factorization import Sensitivity
from fedmf.noise import NoiseKey
from fedmf.parts import parts_from
from fedmf.runs.mechanism import NoiseMechanism
from fedmf.statements import RunHeader

#: (name, recorded, recomputed)
Figure = tuple[str, Any, Any]
#: Relative, of every number that is computed again.
TOLERANCE: Final = 1e-9

#: Keys of smaller seeds are guessed.
_SEEDS: Final = 1000


def check_header(header: RunHeader) -> None:
    """Compute again what follows from privacy, cohorts and coefficients, and compare.

    Raises:
        LedgerError: a recorded figure differs from the one that follows; both are named.
        ValueError: what they follow from cannot be read.
    """
    for name, recorded, recomputed in _numbers(_figures(header)):
        if not _agree(recorded, recomputed):
            raise LedgerError(
                f"{name} of the header is {recorded!r}; from the rest of the header follows {recomputed!r}. "
                "The record was altered: restore it from a copy."
            )


def _figures(header: RunHeader) -> Iterator[Figure]:
    plan, run = header.plan, header.run
    noise = NoiseMechanism.from_dict(run["mechanism"])
    yield "participation", plan.participation, plan.cohorts.participation(plan.users, noise.bands)
    yield "sensitivity", plan.sensitivity, plan.release.stated(plan.participation)
    yield "parts", [part.name for part in plan.parts], [part.name for part in parts_from(run)]
    for part in plan.parts:
        yield part.name, part.to_dict(), run[part.name]
    if not isinstance(plan.privacy, UserLevel):
        yield "noise_multiplier", plan.noise_multiplier, 0.0
    elif plan.amplification is None:
        sigma = certified_sigma(plan.privacy.epsilon, plan.privacy.delta)
        yield "noise_multiplier", plan.noise_multiplier, sigma
    messages = run["execution"]["messages"]
    yield "clipped_by", header.clipped_by, "server" if messages == "per-user" else "workers"
    yield "key_fingerprint (whether there is one)", header.key_fingerprint is None, plan.noise_multiplier == 0
    if plan.noise_multiplier > 0 and plan.privacy.noise_seed is not None:
        yield "key_public", header.key_public, True
    elif plan.noise_multiplier > 0 and not header.key_public:
        yield (
            "whether a small public seed makes the noise key",
            header.key_fingerprint in _guessed_keys(),
            False,
        )
    strange = set(header.not_private) - {"central test part"}
    yield "not_private (names that are not known)", sorted(strange), []


@cache
def _guessed_keys() -> frozenset[str]:
    """How keys from a small public seed are named."""
    return frozenset(NoiseKey.from_seed(seed).fingerprint for seed in range(_SEEDS))


def _numbers(figures: Iterator[Figure]) -> Iterator[Figure]:
    """The same with what a sensitivity consists of."""
    for name, recorded, recomputed in figures:
        if isinstance(recorded, Sensitivity):
            yield name, recorded.value, recomputed.value
            yield f"kind of {name}", recorded.kind, recomputed.kind
            yield f"case of {name}", recorded.case, recomputed.case
        else:
            yield name, recorded, recomputed


def _agree(recorded: Any, recomputed: Any) -> bool:
    if isinstance(recorded, float) and isinstance(recomputed, float):
        return math.isclose(recorded, recomputed, rel_tol=TOLERANCE)
    return recorded == recomputed
