"""An empirical audit: canary users try to be seen through the mechanism as it runs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.accounting import (
    DifferentialPrivacy,
    LeakageBound,
    SecondForm,
    SignedPattern,
    gaussian_mu,
    leakage_bound,
    worst_from,
)
from fedmf.errors import ConfigError
from fedmf.factorization import Factorization
from fedmf.moments import SecondMoment
from fedmf.noise import NoiseKey
from fedmf.optim import RoundRelease
from fedmf.participation import Participation
from fedmf.records import unguarded
from fedmf.runs import PrivateServer, Run, RunDirectory, plan_run

#: How much longer than the clip norm a canary's update is: an audit of a clip that clips nothing must fail.
_EXCESS = 1e3


@dataclass(frozen=True)
class Audit:
    """What an audit measured and what the mechanism claims.

    Attributes:
        bound: the lower bound at ``confidence``.
        mu_claimed: μ of the planned guarantee.
        epsilon_claimed: ε that was asked for; with an accountant that claims amplification the larger one
            against an observer who knows the cohorts, as this one does.
        pattern: 0-based rounds in which each canary takes part.
        canaries: canaries in all runs together.
    """

    bound: LeakageBound
    mu_claimed: float
    epsilon_claimed: float
    delta: float
    confidence: float
    pattern: tuple[int, ...]
    canaries: int

    @property
    def refuted(self) -> bool:
        """Whether the measured leakage contradicts the claim."""
        return self.bound.mu > self.mu_claimed


def audit(
    run: Run,
    canaries: int = 2000,
    repeats: int = 1,
    confidence: float = 0.99,
    seed: int | None = None,
    on_round: Callable[[], None] = lambda: None,
) -> Audit:
    """Run the mechanism of a run on canary users and bound its leakage from below.

    Each run is the private server of a real run (plan, clip, exact sum, noise stream, optimizer step,
    ledger) on a model of dimension d = number of canaries. Canary i tosses a coin. If it falls heads the
    canary sends 10³·ζ·e_i, with the sign that shifts most, in each round of the worst pattern; if tails it
    is zeroed out or, for replace-one, sends the opposite. The observer sees only the released models,
    recovers the noisy sums Y = G + ζσ·sens·C⁻¹Z, and computes for each canary the likelihood-ratio statistic
    of its coordinate, wᵀY_{:,i} with w = Cᵀ(Cs)/‖Cs‖ and s the pattern with its signs. The canaries'
    coordinates carry independent noise and independent coins, so that one run is d independent trials. Where
    the run releases a second moment too, its noise is calibrated for both and the observer looks at the sums
    alone, which makes the audit weaker but no less sound.

    Args:
        run: mechanism, participation and budget; its data set is not used, nor the optimizer's rule.
        canaries: d, canaries in each repetition.
        repeats: independent repetitions, each with a key of its own.
        confidence: of the lower bound.
        seed: of coins and, if the run has a noise seed, an offset to it; None tosses unseeded coins.
        on_round: called after each round of each repetition.

    Raises:
        ConfigError: a run without noise, or numbers out of range.
    """
    privacy = run.privacy
    if not isinstance(privacy, DifferentialPrivacy):
        raise ConfigError("privacy must be that of users for an audit: a run without noise claims nothing.")
    if canaries < 16 or repeats < 1:
        raise ConfigError(
            f"canaries must be at least 16 and repeats at least 1; got {canaries} canaries and {repeats} "
            "repeats."
        )
    configured = run.optimizer_source.build([(canaries,)], run.cohorts.rounds)
    optimizer = SummedReleases(configured.second_moment, configured.second_form)
    plan = plan_run(run, optimizer, canaries, {})
    C = plan.mechanism.factorization
    pattern, signs = worst_canary(C, plan.participation)
    signal = np.zeros(C.rounds)
    signal[list(pattern)] = signs
    dense = C.materialize()
    shift = dense @ signal
    weights = dense.T @ shift / np.linalg.norm(shift)
    coins = np.random.default_rng(seed)
    inside, outside = [], []
    for repeat in range(repeats):
        heads = coins.random(canaries) < 0.5
        key = (
            NoiseKey.from_os()
            if privacy.noise_seed is None
            else NoiseKey.from_seed(privacy.noise_seed + (seed or 0) * repeats + repeat)
        )
        with (
            tempfile.TemporaryDirectory() as folder,
            unguarded(),
            RunDirectory.create(Path(folder) / "run", run, plan, key, canaries) as directory,
        ):
            storage = run.noise.storage
            server = PrivateServer(plan, directory, torch.zeros(canaries), optimizer, storage=storage)
            statistic = _observe(server, heads, dict(zip(pattern, signs, strict=True)), weights, on_round)
        inside.append(statistic[heads])
        outside.append(statistic[~heads])
    bound = leakage_bound(np.concatenate(inside), np.concatenate(outside), privacy.delta, confidence)
    known = plan.known_epsilon_after(plan.participation.rounds)
    return Audit(
        bound=bound,
        mu_claimed=gaussian_mu(plan.joint_multiplier),
        epsilon_claimed=privacy.epsilon if plan.amplification is None else known,
        delta=privacy.delta,
        confidence=confidence,
        pattern=pattern,
        canaries=canaries * repeats,
    )


@dataclass(frozen=True)
class SummedReleases:
    """θ ← θ + u: models that show the noisy sums, beside whatever else the run would release."""

    second_moment: SecondMoment | None
    second_form: SecondForm

    def init(self, parameters: Tensor) -> dict[str, Tensor]:
        """No state."""
        return {}

    def step(
        self, t: int, parameters: Tensor, release: RoundRelease, state: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The mean update as it is."""
        return parameters + release.mean.to(parameters.dtype), {}


def worst_canary(
    C: Factorization, participation: Participation
) -> tuple[tuple[int, ...], NDArray[np.float64]]:
    """The evenly spaced pattern of k rounds, b apart, and the signs that move C·G furthest.

    The signs are those of the leading eigenvector of the pattern's Gram matrix, all one if it is
    non-negative. Any pattern gives a sound audit; one that is not the worst only makes it weaker.
    """
    n, k, b = participation.rounds, participation.max_participations, participation.min_separation
    best: SignedPattern | None = None
    for start in range(min(b, n - (k - 1) * b)):
        pattern = worst_from(C, participation, start)
        if best is None or pattern.shift > best.shift * (1 + 1e-12):
            best = pattern
    assert best is not None  # k rounds b apart fit into n
    return best.rounds, best.signs


def _observe(
    server: PrivateServer,
    heads: NDArray[np.bool_],
    signs: dict[int, float],
    weights: NDArray[np.float64],
    on_round: Callable[[], None],
) -> NDArray[np.float64]:
    """Run to the horizon; the statistic of each canary from the models that were released."""
    plan = server.plan
    names = [f"canary-{i}" for i in range(heads.size)]
    replaced = plan.privacy.adjacency == "replace-one"
    present = np.arange(heads.size) if replaced else np.flatnonzero(heads)
    statistic, before = np.zeros(heads.size), server.parameters.double().numpy()
    for t in range(server.horizon):
        total, users, norm = server.new_sum(), [], server.clip_norm
        if t in signs:
            # A block of rows at a time: the dense matrix of all updates has d² entries.
            for block in np.array_split(present, max(1, present.size // 32)):
                rows = torch.zeros(block.size, heads.size, dtype=torch.float64)
                size = _EXCESS * norm * signs[t] * np.where(heads[block], 1.0, -1.0)
                rows[torch.arange(block.size), torch.from_numpy(block)] = torch.from_numpy(size)
                total.add_updates(rows)
            users = [names[i] for i in present]
        after = server.release(total, users).double().numpy()
        scale = plan.privacy.clip_norm / norm * plan.unit(norm)  # noise goes with the clip norm
        statistic += weights[t] * scale * (after - before) * plan.cohorts.size
        before = after
        on_round()
    return statistic
