"""LoRA through peft, and models of transformers from tiny configurations: nothing is downloaded."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from support.named_features import exact_update
from support.small_runs import small_run
from torch import Tensor, nn

import fedmf
from fedmf.data import InMemoryDataset
from fedmf.data.structure import NamedStructures, TensorStructure, each
from fedmf.errors import ConfigError
from fedmf.models import FlatModel, LogitsOf, mlp, save_adapters, with_lora
from fedmf.runs.released_model import read_tensors, write_tensors
from fedmf.training import (
    LocalSGD,
    LocalTrainer,
    Task,
    classification,
    next_token,
    preflight,
)

if TYPE_CHECKING:
    from transformers import BertForSequenceClassification, GPT2LMHeadModel

TOKENS = 40
LENGTH = 6
USERS = 6
EACH = 5
PLAN = LocalSGD(epochs=2, batch_size=2, learning_rate=0.1)


def gpt2() -> GPT2LMHeadModel:
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
    )  # seconds, which other processes are spared

    config = GPT2Config(
        **{"vocab_size": TOKENS, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2},
        **{
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
            "bos_token_id": 0,
            "eos_token_id": 0,
        },
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return GPT2LMHeadModel(config)


def bert() -> BertForSequenceClassification:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        **{
            "vocab_size": TOKENS,
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
        },
        **{"intermediate_size": 32, "max_position_embeddings": 16, "num_labels": 3},
        **{"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return BertForSequenceClassification(config)


def split(features: Any, labels: Tensor, classes: int = 0) -> InMemoryDataset:
    last = USERS * EACH
    return InMemoryDataset(
        features=each(lambda x: x[:last], features),
        labels=labels[:last],
        owned=tuple(np.arange(last).reshape(USERS, EACH)),
        user_ids=tuple(f"u{u}" for u in range(USERS)),
        test_features=each(lambda x: x[last:], features),
        test_labels=labels[last:],
        classes=classes,
    )


def _texts() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(1, TOKENS, (USERS * EACH + 10, LENGTH + 1), generator=generator)


def language_task(module: nn.Module) -> Task:
    texts = _texts()
    return next_token(split(texts[:, :-1], texts[:, 1:]), LogitsOf(module), TOKENS)


def sequence_task(module: nn.Module) -> Task:
    """Texts of different lengths; the label is that of the first token."""
    texts = _texts()[:, :-1]
    mask = (torch.arange(LENGTH) < 2 + torch.arange(len(texts))[:, None] % (LENGTH - 1)).long()
    features = {"input_ids": texts * mask, "attention_mask": mask}
    task = classification(split(features, texts[:, 0] % 3, classes=3), LogitsOf(module))
    mask_structure = TensorStructure((LENGTH,), torch.int64, bound=2)
    declared = NamedStructures(
        {
            "attention_mask": mask_structure,
            "input_ids": TensorStructure((LENGTH,), torch.int64, TOKENS),
        }
    )
    return replace(task, structure=replace(task.structure, features=declared))


TASKS: dict[str, Any] = {
    "causal with LoRA": lambda: language_task(with_lora(gpt2(), rank=2, alpha=4.0)),
    "classifier with LoRA": lambda: sequence_task(
        with_lora(bert(), rank=2, alpha=4.0, targets=("query", "value"), heads=("classifier",))
    ),
}


def _released(module: nn.Module, place: Path) -> tuple[dict[str, Tensor], Tensor]:
    """The names of a released model, and its logits of a text."""
    task = language_task(module)
    run = small_run(task, users=USERS, cohort_size=3, rounds=2, mechanism="identity")
    result = fedmf.simulate(run, place)
    state = fedmf.load_model(place)
    write_tensors(place / "model.safetensors", state, {})
    assert read_tensors(place / "model.safetensors").keys() == state.keys()
    return state, task.model.forward(result.parameters, _texts()[:1])


def test_a_released_model_loads_into_the_users_own_module(tmp_path: Path) -> None:
    state, logits = _released(gpt2(), tmp_path / "run")
    own = gpt2()
    wrapped = LogitsOf(gpt2())
    with torch.no_grad():
        for module in (own, wrapped):
            for parameter in module.parameters():
                parameter.zero_()
        own.load_state_dict(state, strict=True)
        wrapped.load_state_dict(state, strict=True)
        assert torch.equal(own(_texts()[:1]).logits, logits)
        assert torch.equal(wrapped(_texts()[:1]), logits)


def test_released_adapters_load_into_the_users_own_module_with_adapters(tmp_path: Path) -> None:
    state, logits = _released(with_lora(gpt2(), rank=2), tmp_path / "run")
    own = with_lora(gpt2(), rank=2, seed=1)
    own.load_state_dict(state)
    with torch.no_grad():
        assert torch.equal(own(_texts()[:1]).logits, logits)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # of peft
def test_saved_adapters_are_loaded_by_peft_alone(tmp_path: Path) -> None:
    from peft import PeftModel

    adapted = with_lora(gpt2(), rank=2)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter)
    save_adapters(adapted, tmp_path)
    plain = PeftModel.from_pretrained(gpt2(), str(tmp_path)).eval()
    with torch.no_grad():
        assert torch.equal(plain(_texts()[:1]).logits, adapted(_texts()[:1]).logits)


@pytest.mark.parametrize(
    ("name", "engine"), [("causal with LoRA", "loop"), *((name, "auto") for name in TASKS)]
)
def test_models_of_transformers_train_in_the_default_engine_and_in_a_loop(
    name: str, engine: str, recwarn: pytest.WarningsRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    """Encoders look at the numbers of a mask, which torch.func cannot batch: the loop takes
    over.
    """
    task = TASKS[name]()  # type: ignore[arg-type]
    local = replace(PLAN, engine=engine)  # type: ignore[arg-type]
    preflight(task, local)
    assert caplog.records == []
    trainer = LocalTrainer(task, local)
    batched = engine == "auto" and name.startswith("causal")
    assert trainer.path == ("vmap" if batched else "loop")
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == (engine == "auto" and not batched)
    assert all(
        line.startswith("users are trained on the slower path") and "\n" not in line
        for line in told
    )
    updates = trainer.updates(task.model.initial(), task.dataset.user_ids, 1)
    for user, update in list(zip(task.dataset.user_ids, updates, strict=True))[:2]:
        expected = exact_update(task, user, 1, local)
        assert expected.norm() > 1e-3
        torch.testing.assert_close(update.double(), expected, rtol=1e-4, atol=2e-5)
    assert [str(warning.message) for warning in recwarn] == []


def test_only_adapters_are_trained_and_the_outputs_begin_as_they_were() -> None:
    plain = gpt2().eval()
    tokens = _texts()[:4]
    adapted = with_lora(gpt2(), rank=3, alpha=6.0)
    model = FlatModel(LogitsOf(adapted))
    assert all("lora_" in name for name in model.trained)
    layers = {
        "attn.c_attn": (16, 48),
        "attn.c_proj": (16, 16),
        "mlp.c_fc": (16, 64),
        "mlp.c_proj": (64, 16),
    }
    assert model.dimension == 2 * sum(3 * (a + b) for a, b in layers.values())
    torch.testing.assert_close(
        model.forward(model.initial(), tokens), plain(input_ids=tokens).logits
    )
    assert not torch.equal(
        model.forward(model.initial() + 0.1, tokens), plain(input_ids=tokens).logits
    )


def test_adapters_are_low_rank_updates_of_the_layers_named() -> None:
    """By the definition: W + (α/r)·B·A for the layers named, W elsewhere; heads as they are."""
    base = mlp(6, (7, 5), 4, seed=2)
    expected = copy.deepcopy(base)
    model = FlatModel(with_lora(base, rank=2, alpha=3.0, targets=["hidden0"], heads=["output"]))
    moved = {name: tensor + 0.3 for name, tensor in model.unflatten(model.initial()).items()}
    names = [
        "hidden0.lora_A.default.weight",
        "hidden0.lora_B.default.weight",
        "output.weight",
        "output.bias",
    ]
    assert list(moved) == names
    a = moved[names[0]]
    b = moved[names[1]]
    with torch.no_grad():
        expected.get_submodule("hidden0").weight += 3.0 / 2 * b @ a
        expected.get_submodule("output").weight += 0.3
        expected.get_submodule("output").bias += 0.3
    features = torch.randn(5, 6)
    torch.testing.assert_close(model.forward(model.flatten(moved), features), expected(features))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 0}, r"rank \(r, of LoRA\) must be an integer of at least 1; got 0"),
        ({"alpha": 0.0}, r"alpha \(α, of LoRA\) must be positive and finite; got 0\.0"),
        ({"seed": -1}, "seed .of LoRA. must lie in"),
        (
            {"targets": ("nowhere",)},
            r"targets \(of LoRA\) must name dense layers; got \['nowhere'\]",
        ),
        ({"heads": ("nowhere",)}, r"heads \(of LoRA\) must name modules; got 'nowhere'"),
    ],
)
def test_impossible_adapters_are_refused_in_one_line(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as refusal:
        with_lora(mlp(6, (7,), 4, seed=0), **arguments)
    assert "\n" not in str(refusal.value)


def test_dropout_and_modules_without_dense_layers_are_refused() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1))
    with pytest.raises(ConfigError, match=r"must have no dropout; got Dropout '1'\."):
        with_lora(module)
    assert not with_lora(module.eval(), rank=1).training
    with pytest.raises(
        ConfigError, match=r"targets .of LoRA. must name dense layers; the module has none"
    ):
        with_lora(nn.Conv2d(1, 1, 1))
