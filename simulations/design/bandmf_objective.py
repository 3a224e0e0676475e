"""McKenna (2024/25), Figure 4: time of the objective and its gradient by rounds, for p = 16 bands.

    python simulations/design/bandmf_objective.py [--largest N]

General banded matrices (Algorithm 3 with its gradient; here in O(np²), as the inverse of a banded
matrix) and banded Toeplitz ones (Proposition 3.1; the recurrence until it has settled, Appendix I).
Each point is the least of three evaluations at a damped square root on one processor, up to a
minute.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from pictures import draw

from fedmf.mechanisms.banded_family import variances_of_band
from fedmf.mechanisms.banded_toeplitz import ToeplitzLoss
from fedmf.mechanisms.closed_forms import bsr
from fedmf.mechanisms.optimize import log_mean
from fedmf.mechanisms.workload import prefix
from fedmf.participation import Participation

BANDS = 16
LONGEST = 60.0


def banded_evaluation(n: int) -> Callable[[], object]:
    """log ‖A C⁻¹‖_F² of a general banded matrix, with n·p derivatives."""
    queries = prefix(n)
    band = np.tile(bsr(BANDS, BANDS).columns([0])[:, 0], (n, 1))
    variances = variances_of_band(queries, (n, BANDS))
    return with_gradient(lambda x: log_mean(variances(x), queries), band)


def toeplitz_evaluation(n: int) -> Callable[[], object]:
    """The same of a Toeplitz one, with p derivatives."""
    loss = ToeplitzLoss(BANDS, Participation(n, 1, n), prefix(n), 1.0)
    return with_gradient(loss, bsr(BANDS, BANDS).columns([0])[:, 0])


def with_gradient(
    loss: Callable[[torch.Tensor], torch.Tensor], x: np.ndarray
) -> Callable[[], object]:
    point = torch.tensor(x, requires_grad=True)
    return lambda: torch.autograd.grad(loss(point), point)


def seconds(evaluate: Callable[[], object]) -> float:
    """The least of three."""
    taken = []
    for _ in range(3):
        started = time.perf_counter()
        evaluate()
        taken.append(time.perf_counter() - started)
    return min(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--largest", type=int, default=10**7, help="n at most; memory grows with it"
    )
    largest = parser.parse_args().largest
    curves: dict[str, list[tuple[float, float]]] = {}
    limits = {
        "BandMF, general": (banded_evaluation, 10**6),
        "BandMF, Toeplitz": (toeplitz_evaluation, 10**7),
    }
    for label, (made, most) in limits.items():
        points = curves.setdefault(label, [])
        for n in (10**i for i in range(2, 8)):
            if n > min(largest, most) or (points and points[-1][1] > LONGEST / 10):
                break
            points.append((n, seconds(made(n))))
    draw(
        "bandmf-fig4", {"bandwidth 16": (curves, "rounds n", "time of loss and gradient (s)")}, "xy"
    )


if __name__ == "__main__":
    main()
