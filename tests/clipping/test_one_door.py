"""Every user enters every sum by `add_bounded`: without it no engine or reader adds anything."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from support.small_runs import small_run
from support.streams import BUDGET, releases, run_once, sample, write_rows

import fedmf
from fedmf.clipping import bounded_add, clipped_rows
from fedmf.clipping.clipped_rows import ClippedRows
from fedmf.clipping.clipped_sum import ClippedSum, SumSpec
from fedmf.clipping.user_statistics import SIGNS
from fedmf.matrices.second_moment import BlockEnergies, DiagonalMoment
from fedmf.runs.loop import Reply
from fedmf.streaming import Settings
from fedmf.training import LocalTrainer, checked_sum

D = 5
ROWS = torch.arange(10.0).reshape(2, D) - 4.0
PACKAGE = Path(fedmf.__file__).parent


class Shut(Exception):
    """Raised in place of `add_bounded`."""


def shut(*_: object) -> float:
    raise Shut


@cache
def trainer(engine: str, path: str) -> LocalTrainer:
    """A trainer of digits; it tries its engine on synthetic users while the door is open."""
    run = small_run(dataset="digits", local_engine=engine)
    local_trainer = LocalTrainer(run.task_source.build(), run.client, threads=1)
    assert local_trainer.path == path
    return local_trainer


def first_users(local_trainer: LocalTrainer) -> tuple[str, ...]:
    return tuple(map(str, local_trainer.task.dataset.user_ids[:3]))


def trained(engine: str, path: str) -> torch.Tensor:
    local_trainer = trainer(engine, path)
    model = local_trainer.task.model
    total = ClippedSum(model.dimension, 0.5)
    local_trainer.add_updates(model.initial(), list(first_users(local_trainer)), 0, total)
    return total.fixed_point


def slice_of_a_worker() -> torch.Tensor:
    local_trainer = trainer("auto", "compiled")
    model = local_trainer.task.model
    spec = SumSpec(model.dimension, 0.5)
    users = first_users(local_trainer)
    worker, _ = checked_sum(local_trainer, spec, model.initial(), users, 0)
    total = spec.empty()
    Reply(users, worker.parts).add_to(total)
    return total.fixed_point


def replied(rows: torch.Tensor, origin: torch.Tensor | None = None) -> torch.Tensor:
    total = ClippedSum(D, 0.5)
    Reply(("a", "b"), rows, origin=origin).add_to(total)
    return total.fixed_point


def signs() -> torch.Tensor:
    total = ClippedSum(D, 0.5, statistics=[SIGNS])
    total.add_updates(ROWS[:1])
    return torch.tensor([total.scalar(SIGNS)])


def features(moment: DiagonalMoment | BlockEnergies) -> torch.Tensor:
    total = ClippedSum(D, 0.5, second_moment=moment)
    total.add_updates(ROWS)
    return total.second_fixed_point


def own_rows() -> torch.Tensor:
    rows = ClippedRows(2, D, 0.5)
    rows.put([0, 1], ROWS)
    return rows.block


PATHS: dict[str, Callable[[], torch.Tensor]] = {
    "engine loop": lambda: trained("loop", "loop"),
    "engine vmap": lambda: trained("vmap", "vmap"),
    "compiled steps": lambda: trained("auto", "compiled"),
    "models of Flower clients": lambda: replied(ROWS, torch.ones(D)),
    "updates of Flower clients": lambda: replied(ROWS),
    "updates of float64": lambda: replied(ROWS.double()),
    "slice of a worker": slice_of_a_worker,
    "rows that a client sends": own_rows,
    "statistics": signs,
    "squares": lambda: features(DiagonalMoment(D)),
    "block energies": lambda: features(BlockEnergies([2, 3])),
}


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The loop over users as Python runs it: compiled code does not notice another
    `add_bounded`.
    """
    monkeypatch.setattr(bounded_add, "add_clipped", bounded_add.add_clipped.__wrapped__)
    return monkeypatch


def watched(patch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """All integers that rows are added to from now on."""
    totals: list[torch.Tensor] = []
    add_rows = clipped_rows.add_rows

    def add(rows, origin, clip_norm, bits, into, *features):  # type: ignore[no-untyped-def]
        totals.extend([into, *(part.total for part in features)])
        return add_rows(rows, origin, clip_norm, bits, into, *features)

    patch.setattr("fedmf.clipping.clipped_sum.add_rows", add)
    patch.setattr(clipped_rows, "add_rows", add)
    return totals


def check(call: Callable[[], object], patch: pytest.MonkeyPatch) -> None:
    """With the door shut it fails at the door, and nothing was added."""
    totals = watched(patch)
    patch.setattr(bounded_add, "add_bounded", shut)
    with pytest.raises(Shut):
        call()
    assert totals
    assert not any(total.any() for total in totals)


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_added_past_the_door(path: str, interpreted: pytest.MonkeyPatch) -> None:
    assert bool(PATHS[path]().any())
    check(PATHS[path], interpreted)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_aggregator_adds_nothing_past_the_door(
    dtype: type[np.floating], tmp_path: Path, interpreted: pytest.MonkeyPatch
) -> None:
    aggregator = fedmf.PrivateAggregator(
        fedmf.UserLevel(epsilon=8.0, delta=1e-5, clip_norm=1.0, noise_seed=0),
        fedmf.CyclicCohorts(rounds=4, users_per_round=2),
        users=["a", "b", "c", "d"],
        run_dir=tmp_path,
    )
    with aggregator.begin({"w": np.zeros(D, np.float32)}) as opened:
        first, second = opened.cohort(0)
        update = {"w": np.ones(D, dtype)}
        assert opened.add(first, update) is None
        before = opened._total.fixed_point.clone()
        assert bool(before.any())
        interpreted.setattr(bounded_add, "add_bounded", shut)
        with pytest.raises(Shut):
            opened.add(second, update)
        assert torch.equal(opened._total.fixed_point, before)


@pytest.mark.parametrize("second", ["full", "diagonal"])
def test_a_stream_releases_nothing_past_the_door(
    second: str, tmp_path: Path, interpreted: pytest.MonkeyPatch
) -> None:
    """Neither rows of a file nor rows that are pushed."""
    source = write_rows(tmp_path / "rows.csv", sample(4, D))
    settings = Settings(**BUDGET, rounds=4, second_moment=second)
    check(lambda: run_once(tmp_path, settings, source), interpreted)
    assert releases(tmp_path / "out.jsonl") == []
    stream = fedmf.PrivateStream(tmp_path / "pushed", **BUDGET, dimension=D, rounds=4)
    with stream, pytest.raises(Shut):
        stream.push(np.ones(D), user="u0")


#: Rooms in which no user's row is seen.
BLIND = {"accounting", "matrices", "mechanisms", "noise"}
NORMS = {"norm", "norms", "root", "length", "lengths", "vector_norm"}


def clips(source: str) -> list[str]:
    """Functions that divide by a norm."""
    found = set()
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
                divisor = node.right
            elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div):
                divisor = node.value
            else:
                continue
            names = {getattr(part, "id", getattr(part, "attr", "")) for part in ast.walk(divisor)}
            if names & NORMS:
                found.add(function.name)
    return sorted(found)


def test_the_clip_is_written_once_and_once_for_a_gpu() -> None:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE)
        names = clips(path.read_text(encoding="utf-8"))
        if names and place.parts[0] not in BLIND:
            found[place.as_posix()] = names
    assert found == {
        "clipping/bounded_add.py": ["clip_factor"],
        "clipping/gpu_kernels.py": ["judge"],
        "moments/density.py": ["__post_init__"],  # of a released mean
    }


@pytest.mark.parametrize(
    "line",
    [
        "x * min(1.0, clip_norm / norm)",
        "rows * (zeta / torch.linalg.vector_norm(rows, dim=1))[:, None]",
        "numbers[over] * (clip_norm / norms[over])",
        "scale * (1.0 / root if norms[r] > 1.0 else size)",
    ],
)
def test_another_clip_is_seen(line: str) -> None:
    assert clips(f"def f():\n    return {line}") == ["f"]
