"""A sweep of seconds."""

from __future__ import annotations

from typing import Any

from fedmf.sweeps import Sweep

BASE: dict[str, Any] = {
    "data.kind": "synthetic",
    "data.users": 20,
    "data.examples-per-user": 6,
    "cohorts.rounds": 10,
    "cohorts.users-per-round": 4,
    "cohorts.min-separation": 5,
    "execution.evaluate-every": 5,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "identity": {"mechanism.kind": "identity"},
    "bisr p=2": {"mechanism.kind": "bisr", "mechanism.bands": 2},
    "no noise": {"privacy.kind": "none", "mechanism.kind": "identity"},
}


def small_sweep(**changes: Any) -> Sweep:
    """Three variants at two ε, a tuned rate, a tuning and two reported seeds."""
    fields: dict[str, Any] = {
        "base": BASE,
        "variants": VARIANTS,
        "grid": {"privacy.epsilon": (2.0, 8.0)},
        "tuned": {"server.learning-rate": (0.1, 0.4)},
        "tuning_seeds": (100,),
        "seeds": (0, 1),
    }
    return Sweep(**{**fields, **changes})
