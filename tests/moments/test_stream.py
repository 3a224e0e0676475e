"""The running estimator: exact without noise, the stated noise with it, and resumable."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from support.moment_methods import pp

from fedmf.matrices.factorization import Factorization
from fedmf.matrices.joint_sensitivity import UserRange
from fedmf.matrices.second_moment import (
    BlockEnergies,
    DiagonalMoment,
    FullMatrix,
    SecondMoment,
)
from fedmf.mechanisms.closed_forms import bisr, identity, square_root
from fedmf.mechanisms.workload import (
    ToeplitzWorkload,
    average,
    exponential,
    momentum,
    prefix,
    weighted,
    window,
)
from fedmf.moments.methods import jme
from fedmf.moments.moment_stream import MomentStream
from fedmf.moments.running import RunningWorkload
from fedmf.noise.key import NoiseKey
from fedmf.participation import Participation

Array = NDArray[np.float64]
KEY = NoiseKey.from_seed(11)
ALL_WORKLOADS: list[ToeplitzWorkload] = [
    prefix(9),
    average(9),
    exponential(0.8, 9),
    momentum(0.5, 9, 0.9),
    window(2, 9),
    window(6, 9),
    ToeplitzWorkload("odd", [1.0, 0.0, 0.3, 0.2] + [0.0] * 5),
    weighted(prefix(9), rows=np.linspace(1, 2, 9), columns=np.linspace(2, 1, 9)),
]


def rows(n: int, d: int, seed: int = 0) -> torch.Tensor:
    x = torch.from_numpy(np.random.default_rng(seed).normal(size=(n, d)))
    return x / x.norm(dim=1, keepdim=True).clamp_min(1.0)


def test_running_workloads_equal_the_matrix() -> None:
    for workload in ALL_WORKLOADS:
        x = rows(9, 4)
        running = RunningWorkload(workload, 4)
        got = torch.stack([running.update(row) for row in x])
        np.testing.assert_allclose(
            got.numpy(), workload.materialize() @ x.numpy(), rtol=1e-12, atol=1e-13
        )
        with pytest.raises(ValueError, match="horizon"):
            running.update(x[0])


SECOND: list[SecondMoment] = [
    FullMatrix(4),
    DiagonalMoment(4),
    BlockEnergies([1, 3]),
]


@pytest.mark.parametrize("second", SECOND, ids=lambda s: type(s).__name__)
def test_second_moments_are_contractions_with_the_stated_bias(second: SecondMoment) -> None:
    x = rows(500, 4, 1)
    y = rows(500, 4, 2)
    wide = torch.einsum("ti,tj->tij", x, x) - torch.einsum("ti,tj->tij", y, y)
    for a, b, w in zip(x, y, wide, strict=True):
        moved = float((second.features(a[None]) - second.features(b[None])).norm())
        assert moved <= float(w.norm()) * (1 + 1e-6) + 1e-12
        if isinstance(second, FullMatrix):
            assert moved == pytest.approx(float(w.norm()), rel=1e-12)
    basis = second.features(torch.eye(4, dtype=torch.float64))
    torch.testing.assert_close(basis, second.of_isotropic_noise(), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(
        second.features(x), sum(second.features(a[None]) for a in x), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("second", SECOND, ids=lambda s: type(s).__name__)
def test_without_noise_the_stream_is_the_moment(second: SecondMoment) -> None:
    C = square_root(9)
    x = rows(9, 4)
    made = jme(C, C, Participation(9, 1, 9), UserRange(1.0, 4), noise_multiplier=1e-12)
    stream = MomentStream(made, second, average(9), exponential(0.8, 9), key=KEY)
    releases = [stream.update(row) for row in x]
    features = torch.stack([second.features(row[None]) for row in x]).numpy()
    first = average(9).materialize() @ x.numpy()
    squares = exponential(0.8, 9).materialize() @ features
    for t, release in enumerate(releases):
        assert release.t == t + 1
        np.testing.assert_allclose(release.first.numpy(), first[t], atol=1e-8)  # a unit is 5e-10
        unpacked = second.unpack(torch.from_numpy(squares[t]))
        np.testing.assert_allclose(release.second.numpy(), unpacked.numpy(), atol=1e-8)


def whitened(
    stream: MomentStream, steps: int, moment: int, workload: Array, C: Array, std: float
) -> Array:
    """(std·A·C⁻¹)⁻¹ times the released noise of zero data: independent N(0, 1) if everything is as
    stated.
    """
    width = stream.second_moment.dimension
    released = []
    for _ in range(steps):
        release = stream.update(torch.zeros(width))
        released.append(release.first if moment == 1 else release.second)
    return np.linalg.solve(std * workload @ np.linalg.inv(C), torch.stack(released).numpy())


def independent_normal(z: Array) -> bool:
    """χ² on all second moments over coordinates, false alarm 1e-6 in all."""
    steps, count = z.shape
    gram = z @ z.T / count
    off = gram[np.triu_indices(steps, 1)] * np.sqrt(count)
    diagonal = (np.diag(gram) - 1) * np.sqrt(count / 2)
    statistic = float(np.sum(off**2) + np.sum(diagonal**2))
    return stats.chi2.sf(statistic, off.size + steps) > 1e-6


@pytest.mark.parametrize("make", [identity, square_root, lambda n: bisr(2, n)])
@pytest.mark.parametrize("moment", [1, 2])
def test_released_noise_is_the_stated_one(  # type: ignore[no-untyped-def]
    make, moment: int
) -> None:
    n = 5
    d = 20_000
    C: Factorization = make(n)
    made = jme(C, C, Participation(n, 2, 2), UserRange(2.0, d, "replace-one"), noise_multiplier=0.7)
    std = made.first_std if moment == 1 else made.second_std
    assert std is not None
    for work in (prefix(n), average(n), window(2, n)):
        stream = MomentStream(made, DiagonalMoment(d), work, key=KEY)
        z = whitened(stream, n, moment, work.materialize(), C.materialize(), std)
        assert independent_normal(z)
        assert not independent_normal(z * 1.1)
        assert not independent_normal(z / 1.1)


def test_the_two_noises_are_independent() -> None:
    n = 4
    d = 20_000
    C = identity(n)
    made = jme(C, C, Participation(n, 1, n), UserRange(1.0, d), noise_multiplier=1.0)
    stream = MomentStream(made, DiagonalMoment(d), window(1, n), key=KEY)
    releases = [stream.update(torch.zeros(d)) for _ in range(n)]
    both = np.stack([r.first.numpy() for r in releases] + [r.second.numpy() for r in releases])
    both[:n] /= made.first_std
    both[n:] /= made.second_std or 0.0
    assert independent_normal(both)
    both[n] = both[0]
    assert not independent_normal(both)


@pytest.mark.parametrize("debias", [True, False])
def test_squaring_is_debiased_exactly(debias: bool) -> None:
    """Zero data: the mean of Ŝ over d = 20,000 coordinates against τ₁²·Σ_i a_i [C⁻¹C⁻ᵀ]_ii, or
    0.
    """
    n = 4
    d = 20_000
    C = square_root(n)
    work = prefix(n)
    made = pp(C, Participation(n, 1, n), UserRange(1.0, d), 1.0, debias)
    stream = MomentStream(made, DiagonalMoment(d), work, key=KEY)
    means = np.array([float(stream.update(torch.zeros(d)).second.mean()) for _ in range(n)])
    inverse = np.linalg.inv(C.materialize())
    bias = made.first_std**2 * np.cumsum(np.diag(inverse @ inverse.T))
    spread = made.first_std**2 * np.sqrt(2 * n * 3 / d) * 5
    assert np.abs(means - (0.0 if debias else bias)).max() < spread < bias[0]


def test_several_blocks_need_the_constant_of_the_plane() -> None:
    """Rows on two axes move two block energies further than r_1 allows; one block does not see
    it.
    """
    from fedmf.matrices.joint_sensitivity import joint_diameter_square

    x = torch.tensor([[1.0, 0.0]])
    y = torch.tensor([[0.0, 1.0]])
    nu = 2.0
    for sizes, dimension in (([2], 1), ([1, 1], 2)):
        second = BlockEnergies(sizes)
        assert second.sensitivity_dimension == dimension
        apart = float((second.features(x) - second.features(y)).square().sum())
        reach = float((x - y).square().sum()) + nu * apart
        assert reach <= float(joint_diameter_square(nu, dimension))
        assert (reach > float(joint_diameter_square(nu, 1))) == (dimension == 2)
    made = jme(identity(4), identity(4), Participation(4, 1, 4), UserRange(1.0, 1), 1.0)
    with pytest.raises(ValueError, match="sensitivity dimension"):
        MomentStream(made, BlockEnergies([1, 1]), prefix(4), key=KEY)


@pytest.mark.parametrize("where", ["first_noise", "second_noise", "_first", "_second"])
def test_nothing_is_released_after_an_interrupted_step(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C between the parts of a step: noise rows would no longer be those of their data
    rows.
    """
    C = square_root(6)
    made = jme(C, C, Participation(6, 1, 6), UserRange(1.0, 3), 1.0)
    stream = MomentStream(made, FullMatrix(3), prefix(6), key=KEY)
    stream.update(torch.zeros(3))
    saved = stream.state_dict()
    expected = MomentStream(made, FullMatrix(3), prefix(6), key=KEY)
    expected.update(torch.zeros(3))
    after = expected.update(torch.ones(3) / 2)
    with monkeypatch.context() as patched:
        noise = stream._rows.noises.get(where)
        part = getattr(stream._estimates, where) if noise is None else noise

        def interrupted(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        step = "extend" if noise is None else "release_rows"
        patched.setattr(part, step, interrupted, raising=False)
        with pytest.raises(KeyboardInterrupt):
            stream.update(torch.ones(3) / 2)
    for again in (lambda: stream.update(torch.zeros(3)), lambda: stream.extend(torch.zeros(1, 3))):
        with pytest.raises(RuntimeError, match="interrupted"):
            again()
    stream.load_state_dict(saved)
    assert torch.equal(stream.update(torch.ones(3) / 2).second, after.second)
    with pytest.raises(ValueError, match="same in all parts"):
        stream.load_state_dict({**saved, "t": 2})


def test_full_matrix_noise_is_symmetric_with_half_the_variance_off_the_diagonal() -> None:
    d = 200
    C = identity(1)
    made = jme(C, C, Participation(1, 1, 1), UserRange(1.0, d), noise_multiplier=1.0)
    second = (
        MomentStream(made, FullMatrix(d), prefix(1), key=KEY).update(torch.zeros(d)).second
        / made.second_std
    )
    assert torch.equal(second, second.mT)
    off = second[torch.triu_indices(d, d, 1).unbind()].numpy() * 2**0.5
    assert independent_normal(np.concatenate([off, second.diagonal().numpy()])[None])
