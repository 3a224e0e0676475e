"""How small can the RMSE of a Toeplitz banded inverse be? A certified bound, and what is minimised instead.

    python simulations/design/inverse_bound.py [--rounds N] [--participations K] [--separation B] [--bands P]

The dual problem of `banded_inverse_bound` is solved by descent over the filters F
for users found so far, then users that move the noise Y(F Fᵀ) more are added, and so on. Every bound printed
holds, however far the search has come. Users are signs on patterns, so the bound holds for scalar streams.
After it: the least error times norm of the earliest columns, what L-BFGS from BISR passes on its way
there, and the least error times largest sum of |CᵀC| over a pattern, with bounds on the RMSE of each C found.
RMSE of prefix sums at ε = 8, δ = 1e-5, noise multiplier included.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from numpy.typing import NDArray

from fedmf.accounting.gaussian.calibration import gaussian_sigma
from fedmf.factorization.algebra.series import multiply
from fedmf.factorization.bounds.dense_certificate import (
    banded_inverse_bound,
    covariance_bands,
    filter_errors,
    heavier_users,
)
from fedmf.factorization.matrices.closed_form import bifr, bisr
from fedmf.factorization.mechanisms.banded_inverse_optimizer import EarliestObjective, banded_inverse
from fedmf.factorization.sensitivity.pattern_search import heaviest_pattern
from fedmf.factorization.sensitivity.separated import comb_sum, comb_sum_adjoint, earliest_pattern
from fedmf.participation import Participation
from fedmf.workload.toeplitz import prefix

Array = NDArray[np.float64]


class SmoothObjective:
    """log tr(W̃ F Fᵀ) + log (Σ_u q_u^β)^{1/β} with q_u = uᵀY(F Fᵀ)⁻¹u, and the multipliers of the users."""

    def __init__(self, contract: Participation, errors: Array, users: Array, beta: float) -> None:
        self.rounds, self.errors, self.users, self.beta = contract.rounds, errors, users, beta
        self.multipliers = np.ones(users.shape[1])

    def __call__(self, filters: Array) -> tuple[float, Array]:
        """The value and its gradient in F."""
        from scipy.linalg import LinAlgError, cho_solve_banded, cholesky_banded

        p = len(filters)
        pushed = self.errors @ filters
        error = float(np.vdot(filters, pushed))
        try:
            root = cholesky_banded(covariance_bands(filters, self.rounds), lower=True, check_finite=False)
        except LinAlgError:
            return 1e3, np.zeros_like(filters)
        solved = cho_solve_banded((root, True), self.users, check_finite=False)
        squares = np.einsum("ij,ij->j", self.users, solved)
        shares = np.exp(self.beta * np.log(squares / squares.max()))
        value = np.log(error) + np.log(squares.max()) + np.log(shares.sum()) / self.beta
        shares /= shares.sum()
        self.multipliers = shares / squares
        pulled = np.zeros_like(filters)
        for u in np.flatnonzero(shares > 1e-9):
            windows = np.lib.stride_tricks.sliding_window_view(np.append(solved[:, u], np.zeros(p)), p)
            pulled += self.multipliers[u] * (windows[: self.rounds].T @ (windows[: self.rounds] @ filters))
        return float(value), 2.0 * (pushed / error - pulled)


def descend(objective: SmoothObjective, filters: Array, steps: int) -> Array:
    """L-BFGS over T⁻¹F with T Tᵀ = W̃⁻¹, in which the error is ‖T⁻¹F‖²."""
    from scipy.optimize import minimize

    root = np.linalg.cholesky(objective.errors).T
    shape, T = filters.shape, np.linalg.inv(root)

    def scaled(x: Array) -> tuple[float, Array]:
        value, slope = objective(T @ x.reshape(shape))
        return value, (T.T @ slope).ravel()

    options = {"maxfun": steps, "maxiter": steps, "maxcor": 50, "ftol": 1e-14, "gtol": 1e-9}
    found = minimize(scaled, (root @ filters).ravel(), jac=True, method="L-BFGS-B", options=options)
    return T @ found.x.reshape(shape)


def random_users(contract: Participation, count: int, rng: np.random.Generator) -> list[Array]:
    n, k, b = contract.rounds, contract.max_participations, contract.min_separation
    users = []
    for _ in range(count):
        user = np.zeros(n)
        user[np.sort(rng.integers(0, n - (k - 1) * b, k)) + earliest_pattern(k, b)] = 1.0
        users.append(user)
    return users


# L-BFGS over c_1, c_2, … in these units, so that its first step does not leave stable C⁻¹.
UNIT = 0.02


def least_earliest(objective: EarliestObjective, bands: int) -> Array:
    """c_1 … c_{p−1} with the least error times norm of the earliest columns, by L-BFGS from BISR."""
    from scipy.optimize import minimize

    def scaled(y: Array) -> tuple[float, Array]:
        value, slope = objective(UNIT * y)
        return value, UNIT * slope

    start = bisr(bands, objective.participation.rounds).strategy[1:bands] / UNIT
    options = {"maxiter": 3000, "maxfun": 3000, "maxcor": 30, "ftol": 1e-13, "gtol": 1e-8}
    return UNIT * minimize(scaled, start, jac=True, method="L-BFGS-B", options=options).x


def stopped_early(objective: EarliestObjective, bands: int, steps: int) -> Array:
    """The same over h_1 … h_{p−1} themselves, stopped after so many steps."""
    from scipy.optimize import minimize

    def tail(h: Array) -> Array:
        return objective.inverse(h)  # 1/h is as much h of c as c of h

    def of_inverse(h: Array) -> tuple[float, Array]:
        c = tail(h)
        value, slope = objective(c[1:])
        pulled = multiply(multiply(c, c, bands), np.append(0.0, slope)[::-1], bands)[::-1]
        return value, -pulled[1:]

    start = bisr(bands, objective.participation.rounds).correlation[1:bands]
    return tail(minimize(of_inverse, start, jac=True, method="L-BFGS-B", options={"maxiter": steps}).x)[1:]


def strategy_gram(objective: EarliestObjective, tail: Array) -> tuple[Array, Array]:
    """All of c, and CᵀC."""
    c = objective.strategy(objective.inverse(tail))
    assert c is not None
    gram = np.outer(c[::-1], c[::-1])
    for i in range(c.size - 2, -1, -1):
        gram[i, :-1] += gram[i + 1, 1:]
    return c, gram


def pattern_penalty(
    c: Array, patterns: list[Array], earliest: tuple[int, int], sharpness: float, width: float
) -> tuple[float, Array]:
    """A smooth log max_π Σ √([CᵀC]_ij² + width²) over these π, less what `EarliestObjective` adds instead."""
    n, sums, slopes = c.size, [], []
    for pattern in patterns:
        columns = np.column_stack([np.append(np.zeros(i), c[: n - i]) for i in pattern])
        gram = columns.T @ columns
        size = np.sqrt(gram**2 + width**2)
        pulls, slope = 2.0 * columns @ (gram / size), np.zeros(n)
        for m, i in enumerate(pattern):
            slope[: n - i] += pulls[i:, m]
        sums.append(float(size.sum()))
        slopes.append(slope)
    largest, first = max(sums), comb_sum(c, *earliest)
    shares = (np.array(sums) / largest) ** sharpness
    value = np.log(largest) + np.log(shares.sum()) / sharpness - np.log(first @ first)
    pull = (shares / (shares.sum() * np.array(sums))) @ np.array(slopes)
    return float(value), pull - 2.0 * comb_sum_adjoint(first, *earliest) / (first @ first)


def least_pattern_sum(objective: EarliestObjective, bands: int, rng: np.random.Generator) -> Array:
    """c_1 … c_{p−1} with a small error times largest sum of |CᵀC| over a pattern, by an active set."""
    from scipy.optimize import minimize

    contract = objective.participation
    k, b = contract.max_participations, contract.min_separation
    x, patterns = bifr(0.6, bands, contract.rounds).strategy[1:bands], [earliest_pattern(k, b)]
    for turn in range(14):
        sharpness, width, known = 100.0 * 1.8**turn, 0.1 * 0.5**turn, patterns

        def scaled(y: Array, known=known, sharpness=sharpness, width=width) -> tuple[float, Array]:
            value, slope = objective(UNIT * y, lambda c: pattern_penalty(c, known, (k, b), sharpness, width))
            return value, UNIT * slope

        options = {"maxfun": 80, "maxcor": 30}
        x = UNIT * minimize(scaled, x / UNIT, jac=True, method="L-BFGS-B", options=options).x
        size = np.abs(strategy_gram(objective, x)[1])
        users = heavier_users(size, contract, random_users(contract, 20, rng))
        heaviest = heaviest_pattern(size, k, b, work=1e8).pattern
        found = [*patterns, heaviest, *(np.flatnonzero(own) for own in users.T)]
        weights = [float(size[np.ix_(own, own)].sum()) for own in found]
        kept = {tuple(own): own for own, w in zip(found, weights, strict=True) if w > 0.99 * max(weights)}
        patterns = list(kept.values())
    return x


def print_minimised(contract: Participation, bands: int, sigma: float) -> None:
    """What each objective finds, and what is known of the true RMSE of the C it finds."""
    rng = np.random.default_rng(0)
    n, k, b = contract.rounds, contract.max_participations, contract.min_separation
    objective = EarliestObjective(contract, prefix(n))
    tails = {"earliest columns": least_earliest(objective, bands)}
    tails |= {f"earliest columns, {s} steps": stopped_early(objective, bands, s) for s in (10, 11)}
    tails["sum of |C^T C|"] = least_pattern_sum(objective, bands, rng)
    for label, tail in tails.items():
        c, gram = strategy_gram(objective, tail)
        named = sigma * np.exp(objective(tail)[0] / 2) / n**0.5
        scale = named / np.linalg.norm(comb_sum(c, k, b))
        users = heavier_users(gram, contract, random_users(contract, 60, rng))
        reached = scale * float(np.einsum("iu,ij,ju->u", users, gram, users, optimize=True).max()) ** 0.5
        at_most = scale * heaviest_pattern(np.abs(gram), k, b).bound ** 0.5
        print(
            f"error x {label}: earliest {named:.3f}, true RMSE {reached:.3f} to {at_most:.3f}, "
            f"least c {c.min():.3f}",
            flush=True,
        )
    exact = sigma * np.exp(objective(banded_inverse(bands, contract).strategy[1:bands])[0] / 2) / n**0.5
    print(f"banded_inverse: {exact:.3f}, exact")


def main() -> None:
    from scipy.linalg import cho_solve_banded, cholesky_banded

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, default in {"rounds": 3900, "participations": 10, "separation": 390, "bands": 390}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--cuts", type=int, default=8, help="how often users are added")
    options = parser.parse_args()
    contract = Participation(options.rounds, options.participations, options.separation)
    n, p, rng = contract.rounds, options.bands, np.random.default_rng(0)
    workload, sigma, started = prefix(n), gaussian_sigma(8.0, 1e-5), time.perf_counter()
    first = banded_inverse(p, contract).correlation[:p]
    filters = np.column_stack([first, *(0.05 * rng.standard_normal((2, p)) * np.abs(first))])
    users = np.zeros((n, 1))
    users[earliest_pattern(contract.max_participations, contract.min_separation)] = 1.0
    errors, best = filter_errors(workload, p), 0.0
    for cut in range(options.cuts):
        objective = SmoothObjective(contract, errors, users, 100.0 * 1.7**cut)
        filters = descend(objective, filters, 60)
        value, _ = objective(filters)
        bound = sigma * banded_inverse_bound(filters, users, objective.multipliers, workload)
        best = max(best, bound)
        if not cut:
            print(f"No h makes error x earliest columns smaller than {bound:.3f}.")
        print(
            f"cut {cut}: {users.shape[1]} users, optimum near {sigma * np.exp(value / 2) / n**0.5:.4f}, "
            f"bound {bound:.4f}, best {best:.4f}, {time.perf_counter() - started:.0f} s",
            flush=True,
        )
        if cut + 1 == options.cuts:
            break
        weight = objective.multipliers / objective.multipliers.max()
        kept = [users[:, u] for u in np.flatnonzero(weight > 1e-4)]
        root = cholesky_banded(covariance_bands(filters, n), lower=True)
        gram = cho_solve_banded((root, True), np.eye(n))
        worst = sorted(kept, key=lambda u: -float(u @ gram @ u))[:10]
        found = heavier_users(gram, contract, random_users(contract, 30, rng) + worst)
        users = np.unique(np.column_stack([*kept, found]), axis=1)
    print(f"No C^-1 = LTT(h) with {p} coefficients has an RMSE below {best:.4f}.")
    print_minimised(contract, p, sigma)


if __name__ == "__main__":
    main()
