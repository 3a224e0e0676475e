"""A user's failure changes no bit of the others' updates, and all users are counted."""

import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.training_cases import cohort, mlp, trainer_for
from support.wrapped_data import WrappedData
from torch import Tensor, nn

from fedmf.clipping.clipped_sum import ClippedSum
from fedmf.data import Dataset
from fedmf.models import FlatModel
from fedmf.training import LocalSGD, LocalTrainer, UserFailure, classification
from fedmf.training.user_failures import Group

SIZES = [5, 9, 4, 1, 8, 9, 3, 12, 9, 9]
VICTIM = 4
ROUND = 3

Examples = tuple[Tensor, Tensor]


def _raise(error: BaseException) -> Callable[[Tensor, Tensor], Examples]:
    def fail(features: Tensor, labels: Tensor) -> Examples:
        raise error

    return fail


def _warn(features: Tensor, labels: Tensor) -> Examples:
    return torch.from_numpy(np.full(features.shape, 1e300).astype(np.float32)), labels


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


#: What the victim's examples become, and the stage at which that is seen.
FAULTS: dict[str, tuple[Callable[[Tensor, Tensor], Examples], str]] = {
    "raises": (_raise(OSError("row 3 cannot be decoded")), "loading"),
    "raises something without words": (_raise(Unspeakable()), "loading"),
    "exits": (_raise(SystemExit(3)), "loading"),
    "no memory": (_raise(MemoryError()), "loading"),
    "NaN": (lambda x, y: (torch.full_like(x, torch.nan), y), "loading"),
    "infinite": (lambda x, y: (torch.full_like(x, torch.inf), y), "loading"),
    "overflows": (lambda x, y: (torch.full_like(x, 1e38), y), "update"),
    "one row more": (lambda x, y: (torch.cat([x, x[:1]]), torch.cat([y, y[:1]])), "loading"),
    "one row less": (lambda x, y: (x[:-1], y[:-1]), "loading"),
    "a label less": (lambda x, y: (x, y[:-1]), "loading"),
    "wide": (lambda x, y: (torch.cat([x, x], dim=1), y), "loading"),
    "flat": (lambda x, y: (x.flatten(), y), "loading"),
    "doubles": (lambda x, y: (x.double(), y), "loading"),
    "float labels": (lambda x, y: (x, y.float()), "loading"),
    "no tensors": (lambda x, y: (x.tolist(), y), "loading"),  # type: ignore[return-value]
    "warns": (_warn, "loading"),
    "a rare label": (lambda x, y: (x, torch.full_like(y, 99)), "loading"),
    "a negative label": (lambda x, y: (x, torch.full_like(y, -3)), "loading"),
}


class Tampered(WrappedData):
    """A data set in which one user's examples are something else."""

    def __init__(self, inner: Dataset, change: Callable[[Tensor, Tensor], Examples]) -> None:
        super().__init__(inner)
        self.change = change

    def examples(self, users: NDArray[np.int64]) -> Examples:
        parts: list[Examples] = []
        for user in users:
            features, labels = self.inner.examples(np.array([user]))
            if user == VICTIM:
                features, labels = self.change(features, labels)
            parts.append((features, labels))
        if len(parts) == 1:
            return parts[0]
        all_features, all_labels = zip(*parts, strict=True)
        return torch.cat(all_features), torch.cat(all_labels)


class TogetherTampered(Tampered):
    """A data set that promises exact counts: users are loaded together, by halves on failure."""

    counts_are_exact = True


class Careful(nn.Module):
    """A layer that no program is written out for."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 4)

    def forward(self, features: Tensor) -> Tensor:
        return torch.sin(self.inner(features))


def summed(trainer: LocalTrainer, users: list[str]) -> tuple[ClippedSum, list[UserFailure]]:
    total = ClippedSum(trainer.task.model.dimension, 0.5)
    return total, trainer.add_updates(trainer.task.model.initial(), users, ROUND, total)


ENGINES = ("auto", "vmap", "loop")
MODULES: dict[str, Callable[[], nn.Module | FlatModel]] = {
    "mlp": lambda: mlp(6, (7,), 4, seed=2),
    "own": Careful,
}
WAYS = {"loop": (1, False), "together on threads": (3, True)}
#: Every fault; engines, modules and ways of loading by turns.
TURNS = [
    (fault, ("mlp", "own")[i % 2], ENGINES[(i + i // 3) % 3], tuple(WAYS)[i // 2 % 2])
    for i, fault in enumerate(FAULTS)
]


@pytest.mark.parametrize(("fault", "module", "engine", "way"), TURNS)
def test_everybody_elses_contribution_keeps_its_bits(
    fault: str, module: str, engine: str, way: str
) -> None:
    change, stage = FAULTS[fault]
    threads, together = WAYS[way]
    torch.manual_seed(0)
    dataset = cohort(SIZES)
    model = MODULES[module]()
    if not isinstance(model, FlatModel):
        model = FlatModel(model)
    tampered = Tampered(dataset, change)
    if together:
        tampered = TogetherTampered(dataset, change)
    users = list(dataset.user_ids)  # type: ignore[arg-type]
    local = LocalSGD(2, 4, 0.3, engine=engine)  # type: ignore[arg-type]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        clean = LocalTrainer(classification(dataset, model), local, group_size=4)
        trainer = LocalTrainer(classification(tampered, model), local, group_size=4)
        total, failures = summed(trainer, users)
        with_all, none = summed(clean, users)
        if engine == "vmap":  # where bits depend on which users are in the group
            alone = ClippedSum(with_all.fixed_point.numel(), 0.5)
            alone.add_updates(clean.updates(model.initial(), users, ROUND)[VICTIM : VICTIM + 1])
        else:
            alone, _ = summed(clean, [users[VICTIM]])
    finally:
        torch.set_num_threads(before)
    assert none == []
    assert [(failure.user, failure.stage) for failure in failures] == [(users[VICTIM], stage)]
    assert failures[0].reason
    assert total.users == len(users)
    assert torch.equal(with_all.fixed_point - total.fixed_point, alone.fixed_point)
    assert int(alone.fixed_point.abs().max()) > 0


class Refusing(Careful):
    """A layer that raises an error if it sees large numbers."""

    def forward(self, features: Tensor) -> Tensor:
        if float(features.abs().max()) > 1e3:
            raise ValueError("too large")
        return super().forward(features)


def test_a_model_that_raises_for_one_user_makes_that_user_zero() -> None:
    """The other users of its group are trained as they are without it."""
    dataset = cohort(SIZES)
    users = list(dataset.user_ids)
    model = FlatModel(Refusing())
    local = LocalSGD(2, 4, 0.3, engine="loop")
    tampered = Tampered(dataset, lambda x, y: (torch.full_like(x, 1e4), y))
    trainer = LocalTrainer(classification(tampered, model), local, group_size=4)
    total, failures = summed(trainer, users)
    clean = LocalTrainer(classification(dataset, model), local)
    others, none = summed(clean, [user for u, user in enumerate(users) if u != VICTIM])
    assert none == []
    assert [(each.user, each.stage) for each in failures] == [(users[VICTIM], "training")]
    assert total.users == len(users)
    assert torch.equal(total.fixed_point, others.fixed_point)


def test_nothing_about_a_failure_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    for change, _ in FAULTS.values():
        trainer = LocalTrainer(
            classification(Tampered(cohort(SIZES), change), mlp(6, (7,), 4, seed=2)),
            LocalSGD(1, 4, 0.1),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            _, failures = summed(trainer, list(trainer.task.dataset.user_ids))
        assert len(failures) == 1
    assert capfd.readouterr() == ("", "")


def test_an_interrupt_by_the_operator_is_no_users_failure() -> None:
    tampered = Tampered(cohort(SIZES), _raise(KeyboardInterrupt()))
    trainer = LocalTrainer(classification(tampered, mlp(6, (7,), 4, seed=2)), LocalSGD(1, 4, 0.1))
    with pytest.raises(KeyboardInterrupt):
        summed(trainer, list(tampered.user_ids))


class Counting(Tampered):
    def __init__(self, inner: Dataset, counts: object) -> None:
        super().__init__(inner, lambda x, y: (x, y))
        self.counts = counts

    def sizes(self, users: NDArray[np.int64]) -> NDArray[np.int64]:
        counts = super().sizes(users).copy()
        if isinstance(self.counts, Exception) and VICTIM in users:
            raise self.counts
        if isinstance(self.counts, float):
            return np.where(users == VICTIM, self.counts, counts)
        if not isinstance(self.counts, Exception):
            counts[users == VICTIM] = self.counts
        return counts


@pytest.mark.parametrize(
    ("counts", "stage"), [(KeyError("gone"), "sizes"), (-1, "sizes"), (0, None), (9, "loading")]
)
def test_users_whose_examples_cannot_be_counted_contribute_nothing(
    counts: object, stage: str | None
) -> None:
    dataset = cohort(SIZES)
    users = list(dataset.user_ids)
    local = LocalSGD(2, 4, 0.3)
    task = classification(dataset, mlp(6, (7,), 4, seed=2))
    clean = LocalTrainer(task, local)
    total, failures = summed(
        LocalTrainer(classification(Counting(dataset, counts), task.model), local), users
    )
    others, _ = summed(clean, [user for u, user in enumerate(users) if u != VICTIM])
    assert [failure.stage for failure in failures] == ([] if stage is None else [stage])
    assert total.users == len(users)
    assert torch.equal(total.fixed_point, others.fixed_point)


def test_a_group_that_fails_only_as_a_whole_is_trained_in_halves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a device does that has memory for some users at a time."""
    dataset = cohort([4] * 8)
    trainer = trainer_for(Careful(), dataset, LocalSGD(1, 4, 0.1))
    users = list(dataset.user_ids)
    expected, _ = summed(trainer, users)
    trained = LocalTrainer._trained

    def scarce(self: LocalTrainer, origin: Tensor, group: Group) -> Tensor:
        if len(group) > 3:
            raise torch.OutOfMemoryError("no memory")
        return trained(self, origin, group)

    monkeypatch.setattr(LocalTrainer, "_trained", scarce)
    total, failures = summed(trainer, users)
    assert failures == []
    assert torch.equal(total.fixed_point, expected.fixed_point)
