"""Causal language models of transformers, split before their last blocks; from tiny configurations.

Nothing is downloaded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedmf
from fedmf.errors import ConfigError
from fedmf.models import split_causal_lm, with_lora
from fedmf.training import LocalSGD, LocalTrainer, next_token
from fedmf.training.frozen_features import FrozenFeatures

TOKENS = 40
ADAPTED = ["model.layers.2.self_attn.o_proj", "model.layers.2.mlp.down_proj"]


def llama(dtype: torch.dtype = torch.float32) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=TOKENS,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=3,
        num_attention_heads=2,
        max_position_embeddings=16,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: Any = LlamaForCausalLM(config)
        model.to(dtype)
        with_lora(model, rank=2, targets=ADAPTED, train_a=False)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(parameter)
    return model


def texts() -> Tensor:
    return torch.randint(1, TOKENS, (24, 7), generator=torch.Generator().manual_seed(0))


def task_of(module: nn.Module) -> fedmf.Task:
    dataset = fedmf.data.InMemoryDataset(
        features=texts()[:20, :-1],
        labels=texts()[:20, 1:],
        owned=tuple(np.arange(20).reshape(5, 4)),
        user_ids=[f"person {u}" for u in range(5)],
        test_features=texts()[20:, :-1],
        test_labels=texts()[20:, 1:],
    )
    return next_token(dataset, module, TOKENS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_split_model_has_the_logits_and_the_updates_of_the_whole_one(dtype: torch.dtype) -> None:
    """Bit for bit; adapters are float32 whatever the model is."""
    model = llama(dtype)
    whole = task_of(fedmf.models.LogitsOf(llama(dtype)))
    split = task_of(split_causal_lm(model))
    assert torch.equal(split.model.initial(), whole.model.initial())
    with torch.no_grad():
        logits = model(input_ids=texts()).logits
        assert torch.equal(split.model.forward(split.model.initial(), texts()), logits)

    local = LocalSGD(batch_size=2, learning_rate=0.1)
    updates = list[Tensor]()
    for task in (split, whole):
        trainer = LocalTrainer(task, local, path="loop", threads=1)
        updates.append(trainer.updates(task.model.initial(), task.dataset.user_ids, 0))
        assert isinstance(trainer.task.dataset, FrozenFeatures) == (task is split)
    assert torch.equal(*updates)
    assert all(update.norm() > 1e-3 for update in updates[0])


def test_only_b_is_trained_if_a_is_frozen() -> None:
    names = [name for name, p in llama().named_parameters() if p.requires_grad]
    assert names == [f"{name}.lora_B.default.weight" for name in ADAPTED]


def test_a_model_that_cannot_be_split_is_rejected() -> None:
    with pytest.raises(ConfigError, match="fewer than the model has, 3; got 3"):
        split_causal_lm(llama(), trained_blocks=3)
    with pytest.raises(ConfigError, match=r"must train nothing before its last 1 blocks"):
        split_causal_lm(with_lora(llama(), rank=2, targets=["model.layers.1.mlp.down_proj"]))
    with pytest.raises(ConfigError, match="must be a causal language model of transformers"):
        split_causal_lm(nn.Linear(2, 2))
