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
    for figure in (
        *lambda_cgd.FIGURES,
        *gamma_bifr.FIGURES,
        *bandmf.FIGURES,
        *nu_dp_ftrl.FIGURES,
        *jme.FIGURES,
    )
}
