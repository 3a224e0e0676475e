"""A silo's own clock: what a person moves is that of one run, whichever rounds the silo attends.

The oracle enumerates all presences of the silo and all patterns of a person; it imports nothing of
fedmf.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from fedmf.matrices.factorization import Dense
from fedmf.matrices.sensitivity import sensitivity_of
from fedmf.mechanisms.choice import NamedMechanism
from fedmf.mechanisms.workload import parse_workload
from fedmf.participation import Participation

Matrix = NDArray[np.float64]
CONTRACTS = [(4, 2, 2), (5, 2, 2), (6, 3, 2), (6, 2, 3), (6, 2, 2)]


def strategies(n: int) -> dict[str, Matrix]:
    """Lower triangular C with positive diagonals; the last has entries of both signs."""
    root = np.cumprod([1.0, *((j - 0.5) / j for j in range(1, n))])
    lags = np.subtract.outer(np.arange(n), np.arange(n))
    toeplitz = np.where(lags >= 0, root[np.abs(lags)], 0.0)
    signed = np.tril(np.random.default_rng(n).standard_normal((n, n)), -1) + np.eye(n)
    band = np.where(lags < 2, toeplitz, 0.0)
    return {"identity": np.eye(n), "square root": toeplitz, "band": band, "signed": signed}


def subsets(rounds: int) -> Iterator[tuple[int, ...]]:
    for size in range(1, rounds + 1):
        yield from itertools.combinations(range(rounds), size)


def moved(C: Matrix, k: int, b: int, clock: str) -> dict[tuple[int, ...], float]:
    """The largest ‖C Δ‖ of a person, for each presence of the silo in n rounds of the server.

    The silo's j-th release has its j-th row. A person keeps (k, b) by the own or the server's
    clock.
    """
    n = len(C)
    found = dict[tuple[int, ...], float]()
    for present in subsets(n):
        released = C[: len(present)]
        worst = 0.0
        for own in subsets(len(present)):
            times = own if clock == "own" else tuple(present[j] for j in own)
            if len(own) > k or any(v - u < b for u, v in itertools.pairwise(times)):
                continue
            for signs in itertools.product((1.0, -1.0), repeat=len(own)):
                worst = max(worst, float(np.linalg.norm(released[:, own] @ np.array(signs))))
        found[present] = worst
    return found


@pytest.mark.parametrize("contract", CONTRACTS)
def test_the_own_clock_has_the_sensitivity_of_one_run(contract: tuple[int, int, int]) -> None:
    n, k, b = contract
    for name, C in strategies(n).items():
        stated = sensitivity_of(Dense(C.tolist()), Participation(n, k, b)).value
        by_presence = moved(C, k, b, "own")
        assert max(by_presence.values()) <= stated * (1 + 1e-12), name
        if (C >= 0).all():
            assert by_presence[tuple(range(n))] == pytest.approx(stated, rel=1e-12), name


@pytest.mark.parametrize("contract", CONTRACTS)
def test_the_servers_clock_exceeds_it(contract: tuple[int, int, int]) -> None:
    n, k, b = contract
    for name, C in strategies(n).items():
        stated = sensitivity_of(Dense(C.tolist()), Participation(n, k, b)).value
        by_presence = moved(C, k, b, "server")
        if name in ("square root", "band"):
            assert max(by_presence.values()) > 1.01 * stated, name


def test_a_person_in_two_silos() -> None:
    """The squares of μ add: both silos together are one release by a block matrix."""
    first = strategies(3)["square root"] / 2.0
    second = strategies(4)["band"] / 0.7
    blocks = np.zeros((7, 7))
    blocks[:3, :3] = first
    blocks[3:, 3:] = second
    worst = 0.0
    for own in subsets(3):
        for other in subsets(4):
            if all(v - u >= 2 for each in (own, other) for u, v in itertools.pairwise(each)):
                worst = max(
                    worst, float(np.linalg.norm(blocks[:, [*own, *(3 + t for t in other)]].sum(1)))
                )
    one = moved(first, 2, 2, "own")[0, 1, 2]
    two = moved(second, 2, 2, "own")[0, 1, 2, 3]
    assert worst == pytest.approx(np.hypot(one, two), rel=1e-12)


@pytest.mark.parametrize(("n", "k", "b", "ratio"), [(100, 10, 10, 2.02), (240, 24, 10, 2.63)])
def test_every_bth_round_of_the_server(n: int, k: int, b: int, ratio: float) -> None:
    """A silo that attends every b-th round would release consecutive rows of one person."""
    contract = Participation(n, k, b)
    choice = NamedMechanism("banded-toeplitz")
    factorization = choice.build(contract, parse_workload("prefix", n)).factorization
    released = factorization.materialize()[: n // b, : min(k, n // b)]
    stated = sensitivity_of(factorization, contract).value
    assert float(np.linalg.norm(released.sum(1))) / stated == pytest.approx(ratio, abs=0.01)
