"""Deployments of which mechanism, noise and participation are published, and what these give."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from fedmf.accounting.published.restatement import both_adjacencies
from fedmf.factorization import Factorization, stated_sensitivity, tree
from fedmf.participation import Participation

__all__ = ["DEPLOYED", "DeployedModel", "gallery"]

_TREE_SOURCE: Final = (
    "google-research/federated, dp_ftrl/blogpost_supplemental_privacy_accounting.ipynb (2022), supplement of "
    "https://research.google/blog/federated-learning-with-formal-differential-privacy-guarantees/"
)
_BANDED_SOURCE: Final = (
    "google-research/federated, mf_dpftrl_matrices/README.md and privacy_accounting.ipynb (2024)"
)


@dataclass(frozen=True)
class DeployedModel:
    """A model in production and what its operator published of it.

    Args:
        name: what it does, for whom.
        year: of the publication.
        mechanism: in words.
        participation: (n, k, b). b is the difference of two rounds; the sources count the rounds between.
        noise_multiplier: σ per clip norm.
        delta: δ.
        rho: as published.
        epsilon: as published, at δ.
        source: where all this is.
        strategy: C of n rounds, where it is known in closed form; else the sensitivity is √(2ρ)·σ, which is
            what the published ρ says.
    """

    name: str
    year: int
    mechanism: str
    participation: Participation
    noise_multiplier: float
    delta: float
    rho: float
    epsilon: float
    source: str
    strategy: Callable[[int], Factorization] | None = None

    @property
    def squared_sensitivity(self) -> float:
        """sens(C)² per squared clip norm."""
        if self.strategy is None:
            return 2 * self.rho * self.noise_multiplier**2
        return stated_sensitivity(self.strategy(self.participation.rounds), self.participation).value ** 2

    def restated(self) -> dict[str, Any]:
        """All of it, ready for JSON, with exact μ, ρ and ε for both adjacencies."""
        squared = self.squared_sensitivity
        return {
            "name": self.name,
            "year": self.year,
            "mechanism": self.mechanism,
            **dataclasses.asdict(self.participation),
            "noise_multiplier": self.noise_multiplier,
            "delta": self.delta,
            "published": {"rho": self.rho, "epsilon": self.epsilon},
            "squared_sensitivity": squared,
            "sensitivity_from": "published rho" if self.strategy is None else "strategy matrix",
            "adjacency": both_adjacencies(self.noise_multiplier / math.sqrt(squared), self.delta),
            "source": self.source,
        }


_TREE: Final = DeployedModel(
    name="Gboard next word, Spanish (Spain)",
    year=2022,
    mechanism="tree aggregation, all nodes",
    participation=Participation(2000, 6, 314),
    noise_multiplier=7.0,
    delta=1e-10,
    rho=0.81,
    epsilon=8.90,
    source=_TREE_SOURCE,
    strategy=partial(tree, full=True),
)
_SPANISH: Final = DeployedModel(
    name="Gboard next word, Spanish (Spain)",
    year=2024,
    mechanism="BandMF, 400 bands",
    participation=Participation(2000, 3, 485),
    noise_multiplier=1.411,
    delta=1e-10,
    rho=0.1506840301548885,
    epsilon=3.4240074094281336,
    source=_BANDED_SOURCE,
)
_PORTUGUESE: Final = dataclasses.replace(
    _SPANISH,
    name="Gboard next word, Portuguese (Brazil)",
    mechanism="BandMF, 1000 bands",
    participation=Participation(2000, 2, 1429),
    noise_multiplier=8.35,
    rho=0.014342572340349278,
    epsilon=0.9935500950539097,
)

DEPLOYED: Final = (
    _TREE,
    dataclasses.replace(
        _TREE,
        name="the same, what its estimator releases",
        mechanism="tree aggregation, Honaker online (use_efficient)",
        strategy=partial(tree, full=False),
    ),
    _SPANISH,
    _PORTUGUESE,
    dataclasses.replace(
        _PORTUGUESE,
        name="Gboard next word, Spanish (Latin America)",
        participation=Participation(2000, 2, 1133),
    ),
)


def gallery() -> list[dict[str, Any]]:
    """What each of `DEPLOYED` gives the worst user of its contract."""
    return [model.restated() for model in DEPLOYED]
