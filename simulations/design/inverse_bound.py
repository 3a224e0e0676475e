"""How small can the RMSE of a Toeplitz banded inverse be? A certified lower bound, by cutting planes.

    python simulations/design/inverse_bound.py [--rounds N] [--participations K] [--separation B] [--bands P]

The dual problem of `fedmf.factorization.duality.banded_inverse_bound` is solved by descent over the filters F
for users found so far, then users that move the noise Y(F Fᵀ) more are added, and so on. Every bound printed
holds, however far the search has come. Users are signs on patterns, so the bound holds for scalar streams.
RMSE of prefix sums at ε = 8, δ = 1e-5, noise multiplier included.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from numpy.typing import NDArray

from fedmf.accounting.calibration import gaussian_sigma
from fedmf.factorization import banded_inverse
from fedmf.factorization.duality import banded_inverse_bound, covariance_bands, filter_errors, heavier_users
from fedmf.factorization.separated import earliest_pattern
from fedmf.participation import Participation
from fedmf.workload import prefix

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


if __name__ == "__main__":
    main()
