"""Which frozen layers and low-rank adapters are trained in one compiled call, and which are not."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from support.fused import RULES, TOLERANCE, frozen, reference, task_of
from torch import Tensor, nn

from fedmf.training import LocalSGD, classification
from fedmf.training.fused import FusedProgram
from fedmf.training.fused.layout import laid_out
from fedmf.training.local import LocalTrainer


def test_partly_frozen_layers_and_other_adapters_are_left_to_others() -> None:
    import peft

    local, task = LocalSGD(), task_of([2, 3], "low-rank head")

    def changed(change: Callable[[Any], object]) -> FusedProgram | None:
        module = copy.deepcopy(task.model.module)
        change(module)
        return FusedProgram.of(classification(task.dataset, module), local)

    def configured(**values: Any) -> FusedProgram | None:
        module = nn.Sequential(nn.Flatten(), nn.Linear(42, 5))
        config = peft.LoraConfig(r=2, target_modules=["1"], **values)
        peft.inject_adapter_in_model(config, module)
        return FusedProgram.of(classification(task.dataset, module), local)

    assert changed(lambda _: None) is not None
    assert configured() is not None
    assert configured(lora_dropout=0.1) is None
    assert configured(use_dora=True) is None
    assert configured(lora_bias=True) is None
    assert configured(bias="lora_only") is None
    switched_off: Any = nn.Sequential(copy.deepcopy(task.model.module), nn.Linear(5, 5))
    assert FusedProgram.of(classification(task.dataset, switched_off), local) is not None
    switched_off[0][3].enable_adapters(False)
    assert FusedProgram.of(classification(task.dataset, switched_off), local) is None

    def with_two(module: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there are two
            second = peft.LoraConfig(r=3, target_modules=["3"])
            peft.inject_adapter_in_model(second, module, "another")
        module[3].set_adapter(["default", "another"])

    for change in (
        with_two,
        lambda m: m[3].merge(),
        lambda m: m[3].lora_A.requires_grad_(False),
        lambda m: m[3].lora_B.requires_grad_(False),
        lambda m: m[3].base_layer.weight.requires_grad_(True),
        lambda m: m[3].register_forward_hook(lambda _module, _inputs, z: 2 * z),
        lambda m: m[3].lora_A["default"].register_forward_hook(lambda _module, _inputs, z: 2 * z),
        lambda m: m[1].register_forward_hook(lambda _module, _inputs, z: 2 * z),
        lambda m: m[1].weight.requires_grad_(True),
        lambda m: m[1].bias.requires_grad_(True),
        lambda m: m.insert(2, nn.Dropout(0.5)),
        lambda m: m.insert(2, nn.LayerNorm(70)),
        lambda m: m.insert(2, nn.Tanh()),
    ):
        assert changed(change) is None


def test_a_frozen_layer_of_another_type_is_left_to_others() -> None:
    for place in (1, 3):
        module: Any = task_of([2, 3], "low-rank head").model.module
        assert laid_out(list(module), (6, 7)) is not None
        getattr(module[place], "base_layer", module[place]).to(torch.bfloat16)
        assert laid_out(list(module), (6, 7)) is None


def test_what_is_written_by_hand_beside_a_frozen_layer_is_left_to_others() -> None:
    class Beside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.whole, self.down = frozen(nn.Linear(42, 5)), nn.Linear(42, 2, bias=False)
            self.up = nn.Linear(2, 5, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.whole(x) + self.up(self.down(x))

    task, local = task_of([4, 7], "low-rank head"), RULES["momentum"]
    own = classification(task.dataset, nn.Sequential(nn.Flatten(), Beside()))
    assert FusedProgram.of(own, local) is None
    updates = LocalTrainer(own, local).updates(own.model.initial(), own.dataset.user_ids, 3)
    for user, update in enumerate(updates):
        exact = reference(own, local, user)
        assert float((update - exact).abs().max()) < TOLERANCE * float(exact.abs().max())
