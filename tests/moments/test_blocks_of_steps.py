"""Steps taken together are steps taken one by one, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.moment_methods import ime, pp

from fedmf.matrices.joint_sensitivity import UserRange
from fedmf.matrices.second_moment import (
    BlockEnergies,
    DiagonalMoment,
    FullMatrix,
    SecondMoment,
)
from fedmf.mechanisms.closed_forms import bisr, identity, square_root
from fedmf.mechanisms.registry import build
from fedmf.mechanisms.workload import (
    ToeplitzWorkload,
    average,
    prefix,
    weighted,
    window,
)
from fedmf.moments.methods import MomentMechanism, jme
from fedmf.moments.moment_stream import MomentStream
from fedmf.noise.key import NoiseKey
from fedmf.participation import Participation

KEY = NoiseKey.from_seed(11)
N = 24
D = 4
PART = Participation(N, 3, 8)
USERS = UserRange(1.0, D)
WORKLOADS = [
    prefix(N),
    average(N),
    window(3, N),
    ToeplitzWorkload("odd", [1.0, 0.0, 0.3, 0.2] + [0.0] * (N - 4)),
    weighted(prefix(N), rows=np.linspace(1, 2, N), columns=np.linspace(2, 1, N)),
]
METHODS = {
    "jme": lambda: jme(bisr(3, N), square_root(N), PART, USERS, 1.0),
    "jme-banded": lambda: jme(
        build("banded-toeplitz", PART, bands=4).factorization, identity(N), PART, USERS, 1.0
    ),
    "ime": lambda: ime(bisr(3, N), bisr(2, N), PART, USERS, 1.0, 0.3),
    "pp-debiased": lambda: pp(bisr(3, N), PART, USERS, 1.0),
}
SECOND: list[SecondMoment] = [
    FullMatrix(D),
    DiagonalMoment(D),
    BlockEnergies([1, 3]),
]


def rows() -> torch.Tensor:
    """Short rows, rows on the bound, and rows over it by rounding."""
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(N, D)))
    x[::3] *= 0.1
    x = x / x.norm(dim=1, keepdim=True).clamp_min(1.0)
    x[1::6] *= 1 + 1e-7
    return x


def by_steps(made: MomentMechanism, second: SecondMoment, work: ToeplitzWorkload) -> torch.Tensor:
    stream = MomentStream(made, second, work, key=KEY)
    found = []
    for t, row in enumerate(rows(), start=1):
        release = stream.update(row)
        assert release.t == t
        found.append(torch.cat([release.first, release.second.reshape(-1)]))
    return torch.stack(found)


def by_blocks(
    made: MomentMechanism, second: SecondMoment, work: ToeplitzWorkload, cuts: tuple[int, ...]
) -> torch.Tensor:
    stream = MomentStream(made, second, work, key=KEY)
    x = rows()
    found = []
    for low, high in zip((0, *cuts), (*cuts, N), strict=True):
        block = stream.extend(x[low:high])
        assert block.t == low + 1
        for first, packed in zip(block.first, block.second, strict=True):
            found.append(torch.cat([first, second.unpack(packed).reshape(-1)]))
        saved = stream.state_dict(with_vectors=low % 2 == 0)
        stream = MomentStream(made, second, work, key=KEY)
        stream.load_state_dict(saved)
    return torch.stack(found)


@pytest.mark.parametrize("work", WORKLOADS, ids=lambda work: work.name)
def test_for_every_workload(work: ToeplitzWorkload) -> None:
    made = METHODS["jme"]()
    assert torch.equal(
        by_steps(made, FullMatrix(D), work), by_blocks(made, FullMatrix(D), work, (1, 5, 6, 17))
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("second", SECOND, ids=lambda second: type(second).__name__)
def test_for_every_method_and_second_moment(method: str, second: SecondMoment) -> None:
    made = METHODS[method]()
    assert torch.equal(
        by_steps(made, second, average(N)), by_blocks(made, second, average(N), (2, 3, 13))
    )


def test_nothing_is_consumed_where_a_row_is_refused() -> None:
    stream = MomentStream(METHODS["jme"](), FullMatrix(D), prefix(N), key=KEY)
    x = rows()
    for row, word in ((torch.full((D,), torch.nan), "finite"), (torch.full((D,), 9.0), "zeta")):
        bad = x.clone()
        bad[3] = row
        with pytest.raises(ValueError, match=word):
            stream.extend(bad)
    for bad, word in ((x[:, :2], "shape"), (x[0], "shape"), (torch.cat([x, x]), "horizon")):
        with pytest.raises(ValueError, match=word):
            stream.extend(bad)
    assert stream.t == 0
    assert torch.equal(
        stream.extend(x).first, by_steps(METHODS["jme"](), FullMatrix(D), prefix(N))[:, :D]
    )
