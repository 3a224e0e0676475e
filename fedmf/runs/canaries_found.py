"""What the canaries in a run directory show."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedmf.accounting import gaussian_epsilon, gaussian_mu
from fedmf.errors import ConfigError
from fedmf.noise import KeySchedule
from fedmf.parts import CONFIDENCE, PARTS, CanaryBound, CanaryTeam, canary_bound
from fedmf.runs.recorded import key_of, opened_evidence, read_of_part
from fedmf.values import value_of


@dataclass(frozen=True)
class CanaryFinding:
    """A run's claim and what its canaries show of it.

    Attributes:
        bound: from below.
        mu_claimed: μ of the planned noise of training.
        epsilon_claimed: likewise.
        delta: δ of both.
        rounds: released when it was read.
    """

    bound: CanaryBound
    mu_claimed: float
    epsilon_claimed: float
    delta: float
    rounds: int

    @property
    def refuted(self) -> bool:
        """Whether the bound is above the claim."""
        return self.bound.mu > self.mu_claimed


def canary_finding(path: Path, confidence: float = CONFIDENCE) -> CanaryFinding:
    """Guess the coins of a run's canaries from what it released, and say what that shows.

    Args:
        path: the run directory, with its key.
        confidence: of the lower bound.

    Raises:
        ConfigError: not a run directory, a run without canaries, or a file of them is missing.
        LedgerError: a damaged record.
    """
    with opened_evidence(path) as evidence:
        header, ledger, _ = evidence.records
        plan = header.plan
        if "canaries" not in header.run:
            raise ConfigError(
                f"{path} is a run without canaries ([canaries] count = 0): nothing in it can be audited. "
                "fedmf audit CONFIG.toml audits its mechanism."
            )
        last = ledger.last_round()
        rounds = 0 if last is None else last + 1
        canaries = value_of(PARTS["canaries"], header.run["canaries"])
        team = canaries.open(plan.stage(KeySchedule.constant(key_of(path)), header.dimension))
    assert isinstance(team, CanaryTeam)
    guessed = team.guessed(rounds, partial(read_of_part, path))
    bound = canary_bound(guessed, team.count, plan.privacy.delta, confidence)
    return CanaryFinding(
        bound,
        gaussian_mu(plan.noise_multiplier),
        gaussian_epsilon(plan.noise_multiplier, plan.privacy.delta),
        plan.privacy.delta,
        rounds,
    )
