"""Training runs with the package's calibration, noise streams and optimizers, without messages or disk.

What a run of `fedmf simulate` does in a round, less transport, ledger and checkpoints: cohort, clipped sum,
[C₁⁻¹z]_t and [C₂⁻¹z]_t from keyed streams, division by m, one step. Keys come from public seeds: such runs
are simulations and protect nobody.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from problems import Clipping, Digits, Problem, ScaledBlocks
from scaled import ScaleThenPrivatize

from fedmf.accounting.gaussian.calibration import certified_sigma
from fedmf.cohorts import CyclicCohorts
from fedmf.factorization.matrices.strategy_matrix import Factorization
from fedmf.factorization.mechanisms.catalogue import build
from fedmf.factorization.sensitivity.joint import UserRange
from fedmf.factorization.sensitivity.stated import stated_sensitivity
from fedmf.moments.mechanism import jme
from fedmf.noise.domain import Domain
from fedmf.noise.key import NoiseKey
from fedmf.noise.rows.noise_stream import NoiseStream
from fedmf.noise.source import GaussianSource
from fedmf.optim.move import Move
from fedmf.optim.second_moment_weight import energy_weight, relative_energy_error
from fedmf.optim.server_optimizer import RoundRelease, ServerOptimizer
from fedmf.participation import Participation
from fedmf.workload.parse import parse_workload
from fedmf.workload.schedule import LearningRateSchedule

__all__ = ["DELTA", "PROBLEMS", "Make", "Method", "run"]

DELTA = 1e-5
Make = Callable[[Move, list[tuple[int, ...]], float], ServerOptimizer]
PROBLEMS: dict[str, Callable[[int], Problem]] = {"digits": Digits, "scaled blocks": ScaledBlocks}


@dataclass(frozen=True)
class Method:
    """A row of the comparison.

    Args:
        make: the optimizer from a move, the shapes of the model and ρ.
        dampings: values of ρ to choose from, of no meaning for rules without.
        workload: of C₁.
        decay: β₂, for C₂ and λ.
        joint: τζ² of joint clipping, 0 for none.
        share: p for λ, in even shares: the energy of the smallest block that counts.
        private: whether noise is added.
        schedule: of the learning rate.
    """

    make: Make
    dampings: tuple[float, ...] = (0.0,)
    workload: str = "prefix"
    decay: float = 0.99
    joint: float = 0.0
    share: float = 0.1
    private: bool = True
    schedule: str = "constant"


@dataclass(frozen=True)
class Noise:
    """Calibrated noise: C₁ and std of z in the sum; the same of the second moment, where there is one."""

    first: Factorization
    first_std: float
    second: Factorization | None = None
    second_std: float = 0.0


@functools.cache
def strategy(contract: Participation, workload: str) -> Factorization:
    """The best banded Toeplitz matrix with p ≤ b for a workload."""
    queries = parse_workload(workload, contract.rounds)
    return build("banded-toeplitz", contract, queries, bands=contract.min_separation).factorization


def calibrated(
    method: Method, optimizer: ServerOptimizer, problem: Problem, contract: Participation, epsilon: float
) -> Noise:
    """Noise levels for (ε, δ) under zero-out adjacency; absolute standard deviations for the sums."""
    first, sigma, zeta = (
        strategy(contract, method.workload),
        certified_sigma(epsilon, DELTA),
        problem.clip_norm,
    )
    if not method.private:
        return Noise(first, 0.0)
    moment = optimizer.second_moment
    sens = stated_sensitivity(first, contract).value
    if moment is None:
        return Noise(first, zeta * sigma * sens)
    if optimizer.second_form == "joint-clip":
        # (Σ c g, √τ·Σ c L(g⊗g)) under one C: one user's part has norm ζ at most.
        std = zeta * sigma * sens
        return Noise(first, std, first, std / math.sqrt(method.joint / zeta**2))
    second = strategy(contract, f"exponential:{method.decay:g}")
    share = method.share / moment.size
    if optimizer.second_form == "squared-mean":
        return _squared_mean(first, second, contract, sigma, problem, share)
    users = UserRange(zeta, 2, "zero-out")
    rho = relative_energy_error(second, contract, sigma, problem.cohort, share)
    made = jme(first, second, contract, users, sigma, energy_weight(first, second, contract, users, rho))
    assert made.second_std is not None
    return Noise(first, made.first_std, second, made.second_std)


def _squared_mean(
    first: Factorization,
    second: Factorization,
    contract: Participation,
    sigma: float,
    problem: Problem,
    share: float,
) -> Noise:
    """s² = Δ²(sens(C₁)² + 4λζ² sens(C₂)²), Δ = ζ/m; the first std is that of the sum, the second of x̄⊗x̄."""
    zeta, m = problem.clip_norm, problem.cohort
    ones = [stated_sensitivity(C, contract).value for C in (first, second)]
    rho = 2 * relative_energy_error(second, contract, sigma, m, share)
    nu = rho / math.hypot(1.0, rho)
    s = zeta / m * ones[0] * math.sqrt(1 + nu)
    weight = nu * ones[0] ** 2 / (4 * zeta**2 * ones[1] ** 2)
    return Noise(first, m * s * sigma, second, s * sigma / math.sqrt(weight))


def run(
    problem: Problem, method: Method, epsilon: float, rate: float, damping: float, seed: int, every: int = 0
) -> dict[str, float | list[float]]:
    """One training run.

    Returns:
        Final accuracy (percent) and loss, accuracies every so many rounds, and seconds of processor time.
    """
    began = time.process_time()
    n, m = problem.rounds, problem.cohort
    planned = CyclicCohorts(rounds=n, size=m, seed=seed)
    contract = planned.participation(problem.users)
    cohorts = planned.schedule(problem.users, contract, secret_seed=0)
    optimizer = method.make(Move(LearningRateSchedule(method.schedule, rate, n)), problem.shapes, damping)
    levels = calibrated(method, optimizer, problem, contract, epsilon)
    parameters, moment = problem.initial(), optimizer.second_moment
    blocks = None if moment is None else optimizer.energies.blocks  # type: ignore[attr-defined]
    clipping = Clipping(problem.clip_norm, method.joint / problem.clip_norm**2)
    state, key, d = optimizer.init(parameters), NoiseKey.from_seed(seed), parameters.numel()
    first_noise = _stream(levels.first, key, d, Domain.TRAINING)
    first_rows = levels.first.noise_row_variances()
    second_noise = second_rows = None
    if moment is not None and levels.second is not None:
        second_noise = _stream(levels.second, key, moment.size, Domain.SECOND_MOMENT)
        second_rows = levels.second.noise_row_variances()
    curve, squared = [], moment is not None and optimizer.second_form == "squared-mean"
    for t in range(n):
        if isinstance(optimizer, ScaleThenPrivatize):
            clipping = replace(clipping, scales=tuple(optimizer.scales(state).tolist()))
        total, second = problem.sums(parameters, cohorts.cohort(t), t, clipping, None if squared else blocks)
        if squared and blocks is not None:
            second = blocks.energies(total / m)
        elif second is not None:
            second = second / m
        if levels.first_std > 0:
            first_noise.add_(total, levels.first_std)
        mean, second_variance = total / m, None
        variance = (levels.first_std / m) ** 2 * float(first_rows[t])
        if second is not None:
            second_variance = 0.0
            if second_noise is not None and second_rows is not None:
                std = levels.second_std / (1 if squared else m)
                second_noise.add_(second, std)
                second_variance = std**2 * float(second_rows[t])
        release = RoundRelease(mean, variance, second, second_variance)
        parameters, state = optimizer.step(t, parameters, release, state)
        if every and (t + 1) % every == 0:
            curve.append(100 * problem.evaluate(parameters)["accuracy"])
        if not torch.isfinite(parameters).all():
            break
    final = problem.evaluate(torch.nan_to_num(parameters))
    return {
        "accuracy": 100 * final["accuracy"],
        "loss": final["loss"],
        "curve": curve,
        "seconds": round(time.process_time() - began, 2),
    }


def _stream(C: Factorization, key: NoiseKey, size: int, domain: Domain) -> NoiseStream:
    return NoiseStream(GaussianSource(key, size, domain), C.recurrence(), C.rounds)
