"""The audit of a run from raw data to all that leaves: canaries in real runs, and neighbouring worlds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from fedmf.accounting import DifferentialPrivacy, LeakageBound, at_most, gaussian_mu
from fedmf.errors import ConfigError
from fedmf.runs import Run
from support.worlds.canary_runs import audit_canary_runs
from support.worlds.hostile import BEHAVIOURS
from support.worlds.hostile_worlds import HostileWorld, hostile_worlds
from support.worlds.observed import Command

#: What part two tries unless told otherwise.
USUAL: Final = (
    "raise",
    "nan",
    "huge",
    "diverging",
    "slow",
    "wrong-shape",
    "wrong-rows",
    "rare-label",
    "empty",
)
_MOST_USERS: Final = 4000
#: Float32 models show the difference of two worlds up to this.
_ROUNDING: Final = 1e-3


@dataclass(frozen=True)
class EndToEnd:
    """What an end-to-end audit found.

    Args:
        mu_claimed: μ of the planned guarantee; of an amplified one against whoever knows the cohorts.
        epsilon_claimed: likewise.
        delta: at which ε is stated.
        confidence: with which all limits together hold.
        canaries: trials of part one.
        bound: its lower bound on what the released models tell about one user.
        worlds: of part two.
    """

    mu_claimed: float
    epsilon_claimed: float
    delta: float
    confidence: float
    canaries: int
    bound: LeakageBound
    worlds: tuple[HostileWorld, ...]

    @property
    def refuted(self) -> bool:
        """Whether anything contradicts the claim."""
        return bool(self.contradictions)

    @property
    def contradictions(self) -> tuple[str, ...]:
        """A line for each."""
        found = []
        if self.bound.mu > self.mu_claimed:
            found.append(f"canaries: mu >= {at_most(self.bound.mu, 4)}")
        for world in self.worlds:
            if max(world.mu_exact / (1 + _ROUNDING), world.mu_low) > self.mu_claimed:
                found.append(
                    f"{world.behaviour}: mu = {at_most(world.mu_exact, 4)} {world.measured}".rstrip()
                )
            found.extend(f"{world.behaviour}: {line}" for line in world.outside)
        return tuple(found)


def audit_end_to_end(
    run: Run,
    command: Command,
    behaviours: Sequence[str] = USUAL,
    canary_runs: int = 10,
    world_runs: int = 10,
    confidence: float = 0.99,
    on_run: Callable[[], None] = lambda: None,
) -> EndToEnd:
    """Try to refute a run's claim from its released models and from everything else that leaves.

    Part one: the run itself with linear users (`audit_task`), user i pulling along coordinate i by more than
    ζ. A coin decides whether i does so or misbehaves in one of the ways after which it should contribute
    nothing (for replace-one: pulls the other way). With s_i the rounds in which i was asked and Y the noisy
    sums, which the models show, the statistic of i is (Cs_i)ᵀ(CY)_i/‖Cs_i‖: one run gives as many trials as
    it has users.

    Part two: the whole command in two worlds that differ in one user's data; see `HostileWorld`.

    Args:
        run: cohorts, privacy, mechanism, local training and messages; data, model and optimizer are replaced.
        command: the command line, in this process.
        behaviours: of part two, names of `BEHAVIOURS`.
        canary_runs: runs of part one, each under a fresh key.
        world_runs: runs of each world of part two under fresh keys, beside one pair under one key; with
            sampled cohorts, whose difference changes from key to key, there is that pair alone.
        confidence: with which all limits together hold.
        on_run: called after each run.

    Raises:
        ConfigError: a run without noise, too many users, an unknown behaviour, numbers out of range.
    """
    _check(run, behaviours, canary_runs, world_runs, confidence)
    assert isinstance(run.privacy, DifferentialPrivacy)  # as checked
    privacy = dataclasses.replace(run.privacy, user_budgets="", noise_seed=None)
    failure = (1 - confidence) / (1 + len(behaviours))
    bound, plan, trials = audit_canary_runs(
        dataclasses.replace(run, privacy=privacy), canary_runs, 1 - failure, on_run
    )
    return EndToEnd(
        mu_claimed=gaussian_mu(plan.noise_multiplier),
        epsilon_claimed=privacy.epsilon
        if plan.amplification is None
        else plan.known_epsilon_after(plan.participation.rounds),
        delta=privacy.delta,
        confidence=confidence,
        canaries=trials,
        bound=bound,
        worlds=hostile_worlds(run, command, behaviours, world_runs, 1 - failure, on_run),
    )


def _check(run: Run, behaviours: Sequence[str], canary_runs: int, world_runs: int, confidence: float) -> None:
    if not isinstance(run.privacy, DifferentialPrivacy):
        raise ConfigError("privacy must be that of users for an audit: a run without noise claims nothing.")
    if run.clipping.moves_clip_norm:
        raise ConfigError(
            f"clipping must be 'fixed' for an end-to-end audit, which reads noise of one level; got "
            f"{run.clipping.kind!r}. fedmf audit follows the clip norm."
        )
    if run.task_source.users > _MOST_USERS:
        raise ConfigError(
            f"users must be at most {_MOST_USERS} for an end-to-end audit, whose model has a parameter for "
            f"each; got {run.task_source.users}. Use --set data.users=360."
        )
    if canary_runs < 1 or world_runs < 0 or world_runs == 1:
        raise ConfigError(
            "canary runs must be at least 1 and world runs 0 or at least 2; got "
            f"{canary_runs} and {world_runs}."
        )
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence must lie strictly between 0 and 1; got {confidence!r}.")
    if unknown := [name for name in behaviours if name not in BEHAVIOURS]:
        raise ConfigError(f"behaviour must be one of {', '.join(BEHAVIOURS)}; got {unknown[0]!r}.")
