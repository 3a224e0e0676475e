"""The training figure of "Correlated Noise Provably Beats Independent Noise" (ν-DP-FTRL): Figure 4.

Full size: ε of the axis, δ and StackOverflow's cohort are not given (1,000 is that of the setting it cites);
the learning rate falls linearly over the whole run instead of over the last quarter.
"""

from __future__ import annotations

from typing import Final

from figures import Claim, Figure, Form, Keys, Line
from settings import CIFAR, DIGITS, POISSON, STACKOVERFLOW, budgets, epochs, named

__all__ = ["FIGURES"]

#: Momentum and a learning rate that falls at the end, for all but DP-SGD on images.
_MOMENTUM: Final[Keys] = {"server.momentum": 0.95, "server.schedule": "linear"}
_USERS: Final[Keys] = {
    "privacy.kind": "user-level",
    **STACKOVERFLOW,
    "cohorts.rounds": 2052,
    "cohorts.users-per-round": 1000,
    "client.epochs": 1,
    "client.batch-size": 16,
    "client.learning-rate": 1.0,
    "server.kind": "sgd",
    **_MOMENTUM,
}
_LINES: Final = {
    "DP-SGD, amplified": Line({**POISSON, "server.momentum": 0.0}),
    "independent": Line({**_MOMENTUM, **named("identity")}),
    "tree": Line({**_MOMENTUM, **named("tree")}),
    "ν-DP-FTRL": Line({**_MOMENTUM, **named("nu-ftrl")}),
    "ME (dense)": Line({**_MOMENTUM, **named("dense")}),
}
FIGURES: Final = (
    Figure(
        name="nu-dp-ftrl-fig4",
        paper="ν-DP-FTRL",
        item="Fig. 4 (a, b)",
        shows="mechanisms against ε on images (examples) and language (users)",
        x="ε",
        baseline="DP-SGD, amplified",
        claims=tuple(
            Claim(
                "ν-DP-FTRL outperforms all other efficient and anytime mechanisms (Fig. 4)", "ν-DP-FTRL", line
            )
            for line in ("DP-SGD, amplified", "independent", "tree")
        ),
        full=Form(
            keys={},
            panels={
                "CIFAR-10": {
                    **CIFAR,
                    "model.kind": "vgg",
                    "privacy.clip-norm": 1.0,
                    "cohorts.users-per-round": 500,
                    "cohorts.rounds": 2000,
                },
                "StackOverflow": _USERS,
            },
            lines=_LINES,
            places=budgets(1, 2, 4, 8, 16),
            rates=tuple(c * 10.0**p for p in range(-2, 1) for c in (1, 2, 5)),
            seeds=12,
        ),
        reduced=Form(
            keys={**DIGITS, **epochs(1438, 72, 10)},
            panels={
                "digits, examples": {},
                "digits, 360 users": {
                    "privacy.kind": "user-level",
                    "data.users": 360,
                    "data.partition": "iid",
                    "client.batch-size": 4,
                    "client.learning-rate": 0.5,
                    "privacy.clip-norm": 0.3,
                    "cohorts.users-per-round": 36,
                    "cohorts.rounds": 190,
                },
            },
            lines={name: line for name, line in _LINES.items() if name != "ME (dense)"},
            places=budgets(4),
            rates=(0.1, 0.2, 0.4),
        ),
    ),
)
