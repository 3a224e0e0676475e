"""The fields of a privacy statement that are copied from the plan of a run or from its ledger."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Final

from fedmf.accounting.gaussian import gaussian_mu, gaussian_rho
from fedmf.accounting.recorded import ParticipationSummary
from fedmf.accounting.statement.header import RunHeader
from fedmf.accounting.statement.words import OPERATING_SYSTEM_KEY, PUBLIC_KEY, TRUST

__all__ = ["described", "recorded"]

_SECOND: Final = ("form", "moment", "features", "weight", "mechanism", "params")


def described(header: RunHeader) -> dict[str, Any]:
    """The fields that follow from the plan."""
    private = header.noise_multiplier > 0
    copied = (
        "adjacency mechanism dimension sampling users cohort_size clip_norm noise_multiplier sensitivity "
        "sensitivity_kind sensitivity_case delta software"
    )
    return {
        **{name: getattr(header, name) for name in copied.split()},
        **dataclasses.asdict(header.participation),
        "unit": "user",
        "params": dict(header.params),
        "noise_std": header.clip_norm * header.relative_noise_std,
        "epsilon_requested": header.epsilon,
        "mu_planned": gaussian_mu(header.noise_multiplier) if private else None,
        "rho_planned": gaussian_rho(header.noise_multiplier) if private else None,
        "amplification": None if header.amplification is None else dict(header.amplification),
        "second_moment": _second_moment(header),
        "noise_key": _noise_key(header),
        "noise_key_public": header.key_public if private else None,
        "trust": TRUST[header.message_mode],
    }


def _second_moment(header: RunHeader) -> dict[str, Any] | None:
    """What the statement says of the second stream."""
    if header.second is None:
        return None
    named = {name: header.second[name] for name in _SECOND}
    std = header.clip_norm * header.relative_noise_std / math.sqrt(header.second["weight"])
    return {**named, "noise_std": std}


def recorded(found: ParticipationSummary) -> dict[str, Any]:
    """The fields that follow from the ledger."""
    return {
        "rounds_released": found.rounds,
        "rounds_empty": found.empty_rounds,
        "users_participated": found.users,
        "realised_max_participations": found.max_participations,
        "realised_min_separation": found.min_separation,
    }


def _noise_key(header: RunHeader) -> str:
    if header.noise_multiplier == 0:
        return "none: no noise was added"
    return f"{header.key_fingerprint} ({PUBLIC_KEY if header.key_public else OPERATING_SYSTEM_KEY})"
