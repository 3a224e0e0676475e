"""Users are trained in groups only where updates are the loop's, with equal bits at each place."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from support.training_cases import Plain, cohort, plain_update, trainer_for
from torch import Tensor, nn

from fedmf.errors import ConfigError
from fedmf.training import LocalSGD, Task, agreement, classification, local
from fedmf.training.agreement import disagreement, mixed_examples, uneven_places, uneven_products
from fedmf.training.engines import LoopEngine, VmapEngine
from fedmf.training.user_failures import Group

PLAN = LocalSGD(batch_size=5, learning_rate=0.1, momentum=0.5)
REFUSED = "must be 'auto' or 'loop' here; got 'vmap'. In groups of users, "


class Mixing(nn.Module):
    """A user's examples change each other's outputs."""

    def __init__(self, mixed: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.mixed = mixed
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.inner = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.mixed(x))


MIXING: dict[str, Callable[[Tensor], Tensor]] = {
    "centered": lambda x: x - x.mean(0),
    "normalized": lambda x: F.normalize(x, dim=0),
    "largest": lambda x: x - x.amax(dim=0),
    "a little": lambda x: x - 0.001 * x.mean(0),
}


def task_of(module: nn.Module) -> Task:
    return classification(cohort([3, 12, 7]), module)


@pytest.mark.parametrize("name", MIXING)
def test_models_that_mix_examples_are_trained_as_by_the_loop(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    module = Mixing(MIXING[name])
    dataset = cohort([3, 12, 7])
    local._warn_once.cache_clear()
    with caplog.at_level(logging.WARNING, "fedmf"):
        trainer = trainer_for(module, dataset, PLAN)
    (line,) = caplog.messages
    how = "users are trained on the slower path 'loop', not 'vmap'"
    assert line == f"{how}: the model mixes a user's examples, so that padding changes updates"
    updates = trainer.updates(trainer.task.model.initial(), list(dataset.user_ids), 3)
    for user, update in zip(dataset.user_ids, updates, strict=True):
        expected = plain_update(module, dataset, user, PLAN)
        assert (update - expected).norm() <= 1e-5 * expected.norm()
    with pytest.raises(ConfigError, match=f"{REFUSED}the model mixes"):
        trainer_for(module, dataset, PLAN, engine="vmap")


def test_modules_that_mix_nothing_are_told_from_those_that_do() -> None:
    plan = LocalSGD(batch_size=5)
    for function in (torch.tanh, lambda x: x - x.mean(1, keepdim=True), lambda x: x.cumsum(1)):
        assert mixed_examples(task_of(Mixing(function)), plan) == ""
        assert disagreement(VmapEngine, task_of(Mixing(function)), plan) == ""
    for function in MIXING.values():
        assert mixed_examples(task_of(Mixing(function)), plan) != ""


def test_a_module_that_magnifies_rounding_mixes_nothing() -> None:
    """Groups of two channels are ±1 once they are normalized, whatever they are."""
    for seed in range(5):
        torch.manual_seed(seed)
        task = task_of(nn.Sequential(nn.Linear(6, 4), nn.GroupNorm(2, 4)))
        assert mixed_examples(task, PLAN) == disagreement(VmapEngine, task, PLAN) == ""


def test_a_module_that_counts_padding_disagrees() -> None:
    task = task_of(Mixing(lambda x: x * len(x)))
    assert mixed_examples(task, PLAN) == ""
    fault = "updates differ from those of automatic differentiation"
    assert disagreement(VmapEngine, task, PLAN) == fault


def test_a_place_with_other_bits_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of(Plain(nn.Linear(6, 4)))
    train = VmapEngine.train
    assert uneven_places(task, PLAN) == ""

    def uneven(engine: VmapEngine, origin: Tensor, group: Group) -> Tensor:
        models = train(engine, origin, group)
        if group.width == 4:
            models[13:, 2] *= 1.0 + 2.0**-22
        return models

    monkeypatch.setattr(VmapEngine, "train", uneven)
    why = "a user's update depends on its place in a group, with steps of 4 examples"
    assert uneven_places(task, PLAN) == why
    if not uneven_products():
        with pytest.raises(ConfigError, match=REFUSED + why):
            trainer_for(Plain(nn.Linear(6, 4)), cohort([3]), PLAN, engine="vmap")
    assert trainer_for(Plain(nn.Linear(6, 4)), cohort([3]), PLAN).path == "loop"


def test_products_with_other_bits_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    product = torch.bmm

    def uneven(left: Tensor, right: Tensor) -> Tensor:
        return product(left, right).index_fill(0, torch.tensor([5]), 0.0)

    with monkeypatch.context() as patched:
        patched.setattr(torch, "bmm", uneven)
        why = uneven_products.__wrapped__()
    assert "depends on their place in a group; import fedmf before torch's first product" in why
    monkeypatch.setattr(local, "uneven_products", lambda: why)
    assert trainer_for(Plain(nn.Linear(6, 4)), cohort([3]), PLAN).path == "loop"
    with pytest.raises(ConfigError, match=f"{REFUSED}the rounding of matrix products"):
        trainer_for(Plain(nn.Linear(6, 4)), cohort([3]), PLAN, engine="vmap")


AWAKE = """
import torch
torch.ones(9, 9) @ torch.ones(9, 9)
torch.manual_seed(0)
even = True
for m, k, n in ((2, 33, 17), (7, 28, 6), (10, 17, 5), (5, 13, 7), (29, 61, 5)):
    products = torch.bmm(torch.randn(m, k).repeat(16, 1, 1), torch.randn(k, n).repeat(16, 1, 1))
    even &= torch.equal(products, products[:1].expand_as(products))
from fedmf.training import LocalSGD
from support.training_cases import Plain, cohort, trainer_for
trainer = trainer_for(Plain(torch.nn.Linear(6, 4)), cohort([3]), LocalSGD())
print(even, trainer.path)
"""


def of_child(code: str, **environment: str) -> str:
    """The output of a process that begins without a chosen mode of MKL."""
    given = dict(os.environ)
    given.pop("MKL_CBWR", None)
    given["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env=given | environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_groups_are_not_taken_where_products_were_made_before_the_import() -> None:
    """Unless this machine's products are even without the reproducible mode."""
    assert of_child(AWAKE) in ("False loop", "True vmap")


def test_importing_fedmf_chooses_reproducible_products_unless_told_otherwise() -> None:
    code = "import fedmf, os; print(os.environ['MKL_CBWR'])"
    assert of_child(code) == "AUTO"
    assert of_child(code, MKL_CBWR="COMPATIBLE") == "COMPATIBLE"


def test_a_group_and_its_user_alone_have_the_bits_of_all_widths() -> None:
    """Copies have each width that the batch size allows, and several steps of a narrow one."""
    task = task_of(Plain(nn.Linear(6, 4)))
    group = agreement._copies(task, 1, 32)
    assert group.steps.rows.shape == (4, 32, 1)
    assert len({*group.steps.rows.ravel().tolist()}) == 4
    models = VmapEngine(task, PLAN).train(task.model.initial(), group)
    loop = LoopEngine(task, PLAN).train(task.model.initial(), group.part(0, 1))
    torch.testing.assert_close(models[:1], loop)
