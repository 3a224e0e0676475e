"""A user's integers are the same before, after and among hostile users, on every path.

Planted faults are seen.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.broken_tasks import with_loss, with_model
from support.training_cases import Plain, task_of_kind
from torch import Tensor, nn

from fedmf.data import InMemoryDataset
from fedmf.data.structure import TensorStructure
from fedmf.errors import ConfigError
from fedmf.models import FlatModel
from fedmf.training import (
    LocalSGD,
    LocalTrainer,
    Task,
    classification,
    engines,
    interference,
    next_token,
    preflight,
)
from fedmf.training.batches import user_orders
from fedmf.training.compiled import CompiledEngine
from fedmf.training.compiled import engine as compiled_engine
from fedmf.training.engines import LoopEngine, OwnRows, VmapEngine
from fedmf.training.interference import HOSTILE, Fill, clipped_integers, hostile_users
from fedmf.training.local import Path, trainer_on
from fedmf.training.losses import cross_entropy
from fedmf.training.rng import draw_seed
from fedmf.training.user_failures import Failures, Group

LOCAL = LocalSGD(batch_size=4, learning_rate=0.1, momentum=0.5)


def _outside(values: Tensor, structure: TensorStructure) -> None:
    """Numbers beyond the declared ones, above and below."""
    if structure.bound is not None:
        values.view(-1)[::2] = structure.bound
        values.view(-1)[1::2] = -1


KINDS: dict[str, tuple[Fill, int]] = {**HOSTILE, "outside": (_outside, 1)}


def images(module: nn.Module, channels: int = 1) -> Task:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(6, channels, 9, 8, generator=generator)
    labels = torch.tensor([0, 1, 2, 3, 0, 1])
    owned = tuple(np.split(np.arange(6), 2))
    return classification(
        InMemoryDataset(features, labels, owned, ("u0", "u1"), features, labels, 4), module
    )


def cnn(channels: int = 1, first: int = 6, second: int = 17) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(channels, first, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(
            nn.Conv2d(first, second, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(second * 16, 4),
        ),
    )


class Recurring(nn.Module):
    """The next word, by an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 6)
        self.layer = nn.LSTM(6, 9, batch_first=True)
        self.head = nn.Linear(9, 50)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layer(self.embedding(tokens))[0])


CASES: dict[str, tuple[Callable[[], Task], Path]] = {
    "compiled, channels that fill no vector": (lambda: images(cnn()), "compiled"),
    "compiled, colors": (lambda: images(cnn(3, 16, 3), 3), "compiled"),
    "compiled, dense": (
        lambda: images(nn.Sequential(nn.Flatten(), nn.Linear(72, 19), nn.Tanh(), nn.Linear(19, 4))),
        "compiled",
    ),
    "vmap, convolutions": (lambda: images(Plain(cnn())), "vmap"),
    "vmap, words": (lambda: task_of_kind("next token", [2, 3]), "vmap"),
    "vmap, numbers": (lambda: task_of_kind("regression", [2, 3]), "vmap"),
    "loop, convolutions": (lambda: images(Plain(cnn())), "loop"),
    "loop, dropout": (
        lambda: images(
            nn.Sequential(nn.Flatten(), nn.Linear(72, 19), nn.Dropout(0.5), nn.Linear(19, 4))
        ),
        "loop",
    ),
    "loop, an LSTM": (
        lambda: next_token(task_of_kind("next token", [2, 3]).dataset, Recurring(), 50),
        "loop",
    ),
}


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@pytest.fixture
def _poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill all memory that engines may still have of the user before with NaN."""

    compiled = CompiledEngine.train
    new_vector = compiled_engine.new_vector

    def poisoned_arena(engine: CompiledEngine, origin: Tensor, group: Group) -> Tensor:
        engine._arena.fill(np.nan)
        return compiled(engine, origin, group)

    def poisoned_vector(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        return new_vector(count, dtype, device).fill_(torch.nan)

    train = LoopEngine._train
    rows = engines._rows

    def poisoned_train(engine: LoopEngine, *arguments: object) -> None:
        engine._flat.fill_(torch.nan)
        engine._gradient.fill_(torch.nan)
        train(engine, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(CompiledEngine, "train", poisoned_arena)
    monkeypatch.setattr(compiled_engine, "new_vector", poisoned_vector)
    monkeypatch.setattr(LoopEngine, "_train", poisoned_train)
    monkeypatch.setattr(engines, "_rows", lambda like, users: rows(like, users).fill_(torch.nan))


@pytest.mark.usefixtures("_poisoned")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES)
def test_integers_do_not_depend_on_any_hostile_user(case: str) -> None:
    """Memory that is not cleared holds NaN (FEDMF-2026-6)."""
    make, path = CASES[case]
    task = hostile_users(make(), 5, KINDS)
    trainer = LocalTrainer(task, LOCAL, path=path, threads=1)
    alone, reasons = clipped_integers(trainer, task, ["A"])
    assert not reasons
    assert alone.any()

    def of_a(users: list[str], others: Tensor | int = 0) -> Tensor:
        return clipped_integers(trainer, task, users)[0] - others

    for kind in KINDS:
        hostile, _ = clipped_integers(trainer, task, [kind])
        assert torch.equal(of_a(["A"]), alone), kind
        assert torch.equal(of_a([kind, "A"], hostile), alone), kind
        assert torch.equal(of_a(["A", kind], hostile), alone), kind
    all_kinds = list(KINDS)
    hostile, reasons = clipped_integers(trainer, task, all_kinds)
    assert torch.equal(of_a([*all_kinds[:4], "A", *all_kinds[4:]], hostile), alone)
    assert ("outside" in reasons) == (task.structure.labels.bound is not None)


class Stateful(nn.Module):
    """Has state that its outputs depend on."""

    def __init__(self, step: Callable[[Stateful, Tensor], Tensor]) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 4)
        self.step = step
        self.scale = 0.0
        self.first: Tensor | None = None
        self.generator = np.random.default_rng(0)

    def forward(self, features: Tensor) -> Tensor:
        return self.step(self, features)


def _running_scale(module: Stateful, features: Tensor) -> Tensor:
    module.scale = 0.9 * module.scale + 0.1 * float(features.detach().abs().max())
    return module.inner(features / module.scale)


def _first_mean(module: Stateful, features: Tensor) -> Tensor:
    if module.first is None:
        module.first = features.detach().mean(dim=0)
    return module.inner(features - module.first)


def _own_generator(module: Stateful, features: Tensor) -> Tensor:
    return module.inner(features * float(1.0 + module.generator.random()))


def _python_random(module: Stateful, features: Tensor) -> Tensor:
    return module.inner(features * (1.0 + random.random()))


def _numpy_random(module: Stateful, features: Tensor) -> Tensor:
    return module.inner(features * float(1.0 + np.random.rand()))  # noqa: NPY002


def _clamped(module: Stateful, features: Tensor) -> Tensor:
    module.inner.weight.data.clamp_(min=0)
    return module.inner(features)


DEPENDS = "update of a user must depend on that user's examples alone"
DRAWS = "model and loss must draw random numbers from torch's generator alone"
CHANGES = "model must not change its parameters or buffers in a pass; got another 'inner.weight'"


@pytest.mark.parametrize("engine", ["auto", "loop"])
@pytest.mark.parametrize(
    ("step", "message"),
    [
        (_running_scale, DEPENDS),
        (_first_mean, DEPENDS),
        (_own_generator, DEPENDS),
        (_python_random, f"{DRAWS}.*from Python's random"),
        (_numpy_random, f"{DRAWS}.*from NumPy's generator"),
        (_clamped, CHANGES),
    ],
)
def test_a_model_that_keeps_something_of_a_user_is_refused(
    step: Callable[[Stateful, Tensor], Tensor], message: str, engine: str
) -> None:
    """State in attributes, generators or parameters is noticed (FEDMF-2026-8)."""
    python = random.getstate()  # type: ignore[union-attr]
    numpy = np.random.get_state()[1].tolist()  # type: ignore[union-attr] # noqa: NPY002
    with pytest.raises(ConfigError, match=message):
        preflight(with_model(Stateful(step)), LocalSGD(engine=engine))  # type: ignore[arg-type]
    assert random.getstate() == python
    assert np.random.get_state()[1].tolist() == numpy  # type: ignore[union-attr] # noqa: NPY002


class MovingAverage:
    """A loss over its own moving average: an update shows it, single examples do not."""

    def __init__(self) -> None:
        self.mean = torch.tensor(1.0)

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        losses = cross_entropy(outputs, labels)
        if losses.requires_grad:
            self.mean = 0.9 * self.mean + 0.1 * losses.detach().mean()
        return losses / self.mean


@pytest.mark.parametrize("engine", ["auto", "loop"])
def test_a_loss_that_keeps_something_of_a_user_is_refused(engine: str) -> None:
    with pytest.raises(ConfigError, match=DEPENDS):
        preflight(with_loss(MovingAverage()), LocalSGD(engine=engine))  # type: ignore[arg-type]


def test_a_model_without_gradient_tells_nothing_and_is_refused() -> None:
    with pytest.raises(ConfigError, match="update of a made-up user is zero, which shows nothing"):
        preflight(with_loss(lambda outputs, labels: 0.0 * outputs[:, 0]), LocalSGD())


def beyond_the_table() -> Task:
    """Declared tokens go to 50, the table to 49: token 50 is none."""
    task = task_of_kind("next token", [4, 3])
    assert isinstance(task.structure.features, TensorStructure)
    return replace(
        task, structure=replace(task.structure, features=replace(task.structure.features, bound=51))
    )


def with_the_token_beyond(
    monkeypatch: pytest.MonkeyPatch, flattens: bool
) -> tuple[bool, list[str]]:
    """Whether A's update is the same after a user with token 50 in its group; the failures."""

    def only_beyond(values: Tensor, structure: TensorStructure) -> None:
        if structure.bound == 51:
            values.fill_(50)

    def within(values: Tensor, structure: TensorStructure) -> None:
        values.clamp_(max=49)

    if flattens:
        monkeypatch.setattr(
            OwnRows, "__torch_function__", lambda _, f, __, a=(), k=None: f(*a, **(k or {}))
        )
    kinds = {"first": (within, 1), "B": (only_beyond, 1)}
    task = hostile_users(beyond_the_table(), 4, kinds)
    task.dataset.features.clamp_(max=50)[:4].clamp_(max=49)  # type: ignore[attr-defined]
    trainer = LocalTrainer(task, LOCAL, path="vmap")
    origin = task.model.initial()
    failures = Failures()
    alone = trainer.updates(origin, ["first", "A"], 0)[1]
    together = trainer.updates(origin, ["first", "B", "A"], 0, failures)[2]
    assert alone.any()
    named = failures.named(["first", "B", "A"])
    return torch.equal(alone, together), [f"{failure.user}: {failure.reason}" for failure in named]


def test_a_token_that_is_none_reaches_no_row_of_another_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A token beyond the table of word vectors fails its user alone (FEDMF-2026-7)."""
    same, failed = with_the_token_beyond(monkeypatch, flattens=False)
    assert same
    (line,) = failed
    assert line.startswith("B: RuntimeError: index 50 is out of bounds")
    with pytest.raises(ConfigError, match="model must take the declared features"):
        preflight(beyond_the_table(), LOCAL)


def test_a_token_that_is_flattened_into_a_neighbor_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert with_the_token_beyond(monkeypatch, flattens=True) == (False, [])


@pytest.mark.parametrize(
    "flattened",
    [
        lambda rows, tokens: torch.embedding(rows, tokens),
        lambda rows, tokens: rows.index_fill(0, tokens, 0.0),
    ],
)
def test_functions_that_flatten_rows_of_users_are_refused(flattened: Callable[..., Tensor]) -> None:
    """Number 4 of a table of 4 would be number 0 of the next user's."""
    with OwnRows(), pytest.raises(NotImplementedError, match="of users together"):
        torch.vmap(flattened)(torch.ones(3, 4, 2), torch.tensor([[0], [4], [1]]))


@pytest.mark.parametrize("fault", ["buffers stay", "the last user's model stays", "a group of one"])
def test_the_check_sees_an_engine_that_keeps_something(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = images(Plain(cnn()))
    path = "loop"
    if fault == "a group of one":
        together = VmapEngine.train

        def apart(engine: VmapEngine, origin: Tensor, group: Group) -> Tensor:
            if len(group) > 1:
                return together(engine, origin, group)
            return LoopEngine(task, LOCAL).train(origin, group)

        path = "vmap"
        monkeypatch.setattr(VmapEngine, "train", apart)
    elif fault == "buffers stay":
        task = with_model(Centered())
        monkeypatch.setattr(LoopEngine, "_restore_buffers", lambda engine: None)
    else:
        trained = LoopEngine._train
        before = list[LoopEngine]()

        def on(engine: LoopEngine, into: Tensor, origin: Tensor, group: Group, u: int) -> None:
            start = origin
            if engine in before and engine._flat.isfinite().all():
                start = engine._flat.clone()
            trained(engine, into, start, group, u)
            before.append(engine)

        monkeypatch.setattr(LoopEngine, "_train", on)
    seen = interference(trainer_on(path), task, LOCAL)  # type: ignore[arg-type]
    assert "differed after or together with other users" in seen


class Centered(nn.Module):
    """Subtracts a moving mean, a buffer."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 4)
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, features: Tensor) -> Tensor:
        self.mean.mul_(0.9).add_(0.1 * features.detach().mean(dim=0))
        return self.inner(features - self.mean)


def test_a_compiled_program_that_fails_the_check_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    task = images(cnn())
    assert LocalTrainer(task, LOCAL).path == "compiled"

    def planted(make_trainer: Callable[..., LocalTrainer], task: Task, local: LocalSGD) -> str:
        faults = {"compiled": "planted"}
        return faults.get(make_trainer(task, local).path, "")

    monkeypatch.setattr("fedmf.training.local.interference", planted)
    with caplog.at_level("WARNING", "fedmf"):
        assert LocalTrainer(images(cnn()), LOCAL).path == "loop"
    line = "users are trained on the slower path 'loop', not 'compiled': planted"
    assert caplog.messages == [line]
    assert FlatModel(cnn()).dimension == task.model.dimension


def test_dropout_is_that_of_a_loop_seeded_for_the_user_and_moves_no_generator() -> None:
    """Random numbers of a user depend on no other user (FEDMF-2026-4)."""
    task = with_model(nn.Sequential(nn.Linear(6, 9), nn.Dropout(0.5), nn.Linear(9, 4)))
    local = LocalSGD(batch_size=64, learning_rate=0.1)
    state = torch.get_rng_state()
    trainer = LocalTrainer(task, local)
    origin = task.model.initial()
    first, second = trainer.updates(origin, ["u0", "u1"], 3)
    assert torch.equal(torch.get_rng_state(), state)
    assert trainer.path == "loop"
    assert torch.equal(trainer.updates(origin, ["u1"], 3)[0], second)
    assert not torch.equal(trainer.updates(origin, ["u0"], 4)[0], first)
    module = task.model.copied().module
    features, labels = task.dataset.examples(np.array([0]))
    order = torch.from_numpy(user_orders(0, 3, "u0", len(labels), 1)[0])
    torch.manual_seed(draw_seed(0, 3, "u0"))
    cross_entropy(module(features[order]), labels[order]).mean().backward()
    slopes = [p.grad for p in module.parameters() if p.grad is not None]
    expected = -0.1 * nn.utils.parameters_to_vector(slopes)
    torch.testing.assert_close(first, expected, rtol=1e-5, atol=1e-7)
    assert task.evaluate(origin) == task.evaluate(origin)
