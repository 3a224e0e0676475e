"""A lower bound on the ε of a mechanism, from canary users in runs of it.

    python simulations/audit.py [--mechanism banded-toeplitz] [--epsilon 8] [--run-at 16] [--json]

Each of m canaries tosses a coin. With heads it sends 1000 ζ e_i in every round that it may take
part in (k rounds, b apart), with tails nothing. The observer sees the released models alone,
recovers the noisy sums Y = G + ζ σ sens C⁻¹ Z, and computes for canary i the likelihood-ratio
statistic wᵀ Y_i with w = CᵀCs/‖Cs‖, s the canary's rounds. Coordinates have independent noise, so
that one run is m independent trials. If the bound is above the claim, the claim is refuted (exit
code 1). If it is not, nothing is proved, but mistakes of scale show.

`--run-at` calibrates the noise for another ε than the one that is claimed, as a wrong program
would.

References:
    Nasr et al. (2023), "Tight Auditing of Differentially Private Machine Learning"; Dong, Roth, Su
    (2022), "Gaussian Differential Privacy".
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtri

import fedmf
from fedmf.accounting.gaussian import certified_sigma, gaussian_epsilon, gaussian_mu
from fedmf.mechanisms.choice import NamedMechanism
from fedmf.mechanisms.workload import parse_workload

Values = NDArray[np.float64]

EXCESS = 1e3
CLIP_NORM = 1.0


def statistics(options: argparse.Namespace, repeat: int) -> tuple[NDArray[np.bool_], Values]:
    """Coins and statistics of the canaries of one run."""
    m = options.canaries
    n = options.rounds
    k = options.participations
    b = n // k
    contract = fedmf.Participation(n, k, b)
    C = NamedMechanism(options.mechanism).build(contract, parse_workload("prefix", n)).factorization
    heads = np.random.default_rng([options.seed, repeat]).random(m) < 0.5
    with tempfile.TemporaryDirectory() as folder:
        aggregator = fedmf.PrivateAggregator(
            fedmf.UserLevel(
                epsilon=options.run_at or options.epsilon,
                delta=options.delta,
                clip_norm=CLIP_NORM,
                noise_seed=options.seed * options.repeats + repeat,
            ),
            fedmf.CyclicCohorts(rounds=n, users_per_round=m),
            users=[f"user-{i}" for i in range(b * m)],
            run_dir=f"{folder}/run",
            mechanism=C,
        )
        canaries: dict[str, int] = {}
        models = [np.zeros(m)]
        present = np.zeros(n)
        with aggregator.begin({"x": np.zeros(m, np.float32)}):
            for t in range(n):
                cohort = aggregator.cohort(t)
                canaries = canaries or {user: i for i, user in enumerate(cohort)}
                for user in cohort:
                    if user not in canaries:
                        continue
                    present[t] = 1.0
                    update = np.zeros(m, np.float32)
                    update[canaries[user]] = EXCESS * CLIP_NORM * heads[canaries[user]]
                    aggregator.add(user, {"x": update})
                models.append(aggregator.release()["x"].astype(np.float64))
    assert present.sum() == k, "canaries take part every b rounds"
    sums = m * np.diff(models, axis=0)
    dense = C.materialize()
    shift = dense @ present
    return heads, (dense.T @ shift / np.linalg.norm(shift)) @ sums


def upper(errors: int, trials: int, failure: float) -> float:
    """The Clopper–Pearson upper confidence limit of a probability: too low with chance at most
    `failure`.
    """
    return 1.0 if errors >= trials else float(betaincinv(errors + 1, trials - errors, 1 - failure))


def mu_of(
    inside: NDArray[np.float64], outside: NDArray[np.float64], threshold: float, failure: float
) -> float:
    """The μ that the errors of "statistic ≥ threshold" refute: Φ⁻¹(1 − α) − Φ⁻¹(β) ≤ μ under
    μ-GDP.
    """
    beta = upper(int((inside < threshold).sum()), inside.size, failure)
    alpha = upper(int((outside >= threshold).sum()), outside.size, failure)
    return max(0.0, float(ndtri(1 - alpha) - ndtri(beta))) if max(alpha, beta) < 1 else 0.0


def least_mu(heads: NDArray[np.bool_], values: Values, confidence: float) -> float:
    """A lower confidence bound on μ: half of the values choose the threshold, the others judge
    it.
    """
    inside = values[heads]
    outside = values[~heads]
    failure = (1 - confidence) / 2
    halves = [(inside[::2], outside[::2]), (inside[1::2], outside[1::2])]
    candidates = np.quantile(np.concatenate(halves[0]), np.linspace(0, 1, 101))
    best = max(candidates, key=lambda threshold: mu_of(*halves[0], threshold, failure))
    return mu_of(*halves[1], best, failure)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mechanism", default="banded-toeplitz")
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--participations", type=int, default=3, help="k; b is rounds // k")
    parser.add_argument("--epsilon", type=float, default=8.0, help="claimed")
    parser.add_argument(
        "--run-at", type=float, help="epsilon of the noise that is added; default: the same"
    )
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--canaries", type=int, default=1000, help="in each run")
    parser.add_argument("--repeats", type=int, default=1, help="independent runs")
    parser.add_argument("--confidence", type=float, default=0.99)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = [statistics(options, repeat) for repeat in range(options.repeats)]
    heads, values = (np.concatenate(parts) for parts in zip(*found, strict=True))
    measured = least_mu(heads, values, options.confidence)
    result = {
        "mu_claimed": gaussian_mu(certified_sigma(options.epsilon, options.delta)),
        "mu_measured": measured,
        "epsilon_claimed": options.epsilon,
        "epsilon_measured": gaussian_epsilon(1 / measured, options.delta) if measured > 0 else 0.0,
        "confidence": options.confidence,
        "canaries": heads.size,
    }
    result["refuted"] = result["mu_measured"] > result["mu_claimed"]
    if options.json:
        print(json.dumps(result))
    else:
        print(
            f"claimed   ε = {result['epsilon_claimed']:.4g} (μ ="
            f" {result['mu_claimed']:.4g})\nmeasured  ε ≥ {result['epsilon_measured']:.4g} (μ ≥"
            f" {measured:.4g}), {heads.size} canaries\n"
            + ("REFUTED: more leaks than is claimed." if result["refuted"] else "no contradiction.")
        )
    return int(result["refuted"])


if __name__ == "__main__":
    sys.exit(main())
