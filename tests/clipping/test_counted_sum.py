"""Signs beside sums: the same whichever engine trains, on whatever device and in whatever parts
they come.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.small_runs import small_run

from fedmf.clipping.clipped_sum import ClippedSum
from fedmf.clipping.user_statistics import SIGNS
from fedmf.training import LocalTrainer


def expected(norms: np.ndarray, zeta: float) -> int:
    return int(np.where(norms == 0, 0, np.where(norms <= zeta, 1, -1)).sum())


@pytest.mark.parametrize("engine", ["auto", "loop"])
@pytest.mark.parametrize("keys", [{}, {"local_epochs": 9}], ids=["low rank", "compiled"])
def test_engines_count_alike(keys: dict, engine: str) -> None:
    """Without users' weights, with them in the processor's cache, and from models of their own."""
    run = small_run(dataset="digits", local_engine=engine, **keys)
    task = run.task_source.build()
    trainer = LocalTrainer(task, run.client)
    users = [str(user) for user in task.dataset.user_ids]
    origin = task.model.initial()
    updates = trainer.updates(origin, users, 0)  # type: ignore[attr-defined]
    norms = updates.double().norm(dim=1).numpy()
    zetas = [0.5 * norms.min(), float(np.median(norms)) * 1.001, 2 * norms.max()]
    assert len(set(norms.round(5))) > 12
    for zeta in zetas:
        total = counted(origin.numel(), zeta)
        assert trainer.add_updates(origin, users, 0, total) == []
        assert total.scalar(SIGNS) == expected(norms, zeta)


def counted(dimension: int, zeta: float) -> ClippedSum:
    return ClippedSum(dimension, zeta, statistics=[SIGNS])


def rows() -> torch.Tensor:
    lengths = torch.tensor([0.0, 1e-15, 0.1, 0.999, 1.001, 50.0])
    units = torch.from_numpy(np.random.default_rng(0).standard_normal((6, 30)).astype(np.float32))
    return units / units.norm(dim=1, keepdim=True) * lengths[:, None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_signs_are_those_of_the_norms(dtype: torch.dtype) -> None:
    updates = torch.cat([rows(), torch.full((1, 30), float("nan"))]).to(dtype)
    total = counted(30, 1.0)
    total.add_updates(updates)
    assert (total.scalar(SIGNS), total.users) == (2 - 2, 7)
    alone = ClippedSum(30, 1.0)
    alone.add_updates(updates)
    assert torch.equal(total.fixed_point, alone.fixed_point)
    again = counted(30, 1.0)
    origin = torch.ones(30)
    again.add_updates(rows() + origin, origin)
    assert (
        abs(again.scalar(SIGNS)) <= 1
    )  # 1 + x − 1 is x up to rounding, so 1e-15 may become nothing


def test_parts_of_workers_add_up_and_lies_are_refused() -> None:
    whole = counted(30, 1.0)
    worker = counted(30, 1.0)
    total = counted(30, 1.0)
    whole.add_updates(rows())
    worker.add_updates(rows()[:4])
    other = worker.like()
    other.add_updates(rows()[4:])
    worker.merge(other)
    total.add_parts(worker.parts, 6)
    assert torch.equal(total.fixed_point, whole.fixed_point)
    assert total.scalar(SIGNS) == whole.scalar(SIGNS) == worker.scalar(SIGNS)
    assert total.lengths == {"sum": 30, "signs": 1}
    lies = [torch.tensor([7]), torch.tensor([-7]), torch.tensor([1, 1]), torch.tensor([1.0])]
    for signs in lies:
        with pytest.raises(ValueError, match="slice signs must"):
            total.add_parts({**worker.parts, "signs": signs}, 6)
    assert (total.scalar(SIGNS), total.users) == (whole.scalar(SIGNS), 6)
    with pytest.raises(TypeError, match="must hold"):
        total.merge(ClippedSum(30, 1.0))
