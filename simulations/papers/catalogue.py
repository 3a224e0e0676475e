"""The training figures of the five papers, by name."""

from __future__ import annotations

from typing import Final

import bandmf
import gamma_bifr
import jme
import lambda_cgd
import nu_dp_ftrl
from figures import Figure

__all__ = ["FIGURES"]

FIGURES: Final[dict[str, Figure]] = {
    figure.name: figure
    for module in (lambda_cgd, gamma_bifr, bandmf, nu_dp_ftrl, jme)
    for figure in module.FIGURES
}
