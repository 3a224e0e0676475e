"""Baselines of Joint Moment Estimation in a line each, and the exact errors that simulations
state.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from fedmf.matrices.factorization import Factorization
from fedmf.matrices.joint_sensitivity import UserRange
from fedmf.moments import METHODS, MomentMechanism
from fedmf.participation import Participation

sys.path.insert(0, str(Path(__file__).parents[2] / "simulations" / "moments"))
import theory

__all__ = ["cs", "ime", "pp", "theory"]


def ime(
    first: Factorization,
    second: Factorization,
    participation: Participation,
    users: UserRange,
    sigma: float,
    share: float | None = None,
) -> MomentMechanism:
    return METHODS["ime"].mechanism([first, second], participation, users, sigma, share)


def cs(
    C: Factorization,
    participation: Participation,
    users: UserRange,
    sigma: float,
    scale: float | None = None,
) -> MomentMechanism:
    return METHODS["cs"].mechanism([C], participation, users, sigma, scale)


def pp(
    C: Factorization,
    participation: Participation,
    users: UserRange,
    sigma: float,
    debias: bool = True,
) -> MomentMechanism:
    return dataclasses.replace(
        METHODS["pp"].mechanism([C], participation, users, sigma), debiased=debias
    )
