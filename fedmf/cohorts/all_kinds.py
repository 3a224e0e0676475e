"""Every kind of cohorts, by the name that configurations and records use."""

from __future__ import annotations

from typing import Final

from fedmf.cohorts.devices import CheckInCohorts
from fedmf.cohorts.kinds import (
    BallsInBinsCohorts,
    CyclicCohorts,
    CyclicPoissonCohorts,
    MinSeparatedCohorts,
    RandomCohorts,
)
from fedmf.values import by_kind

COHORTS: Final = by_kind(
    CyclicCohorts,
    RandomCohorts,
    CyclicPoissonCohorts,
    BallsInBinsCohorts,
    MinSeparatedCohorts,
    CheckInCohorts,
)
