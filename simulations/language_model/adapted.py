"""SmolLM2 with adapters in its last block, and the task of training them on roles' sequences.

`make` is the task that configurations name. It reads what ``fetch.py`` stored.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from fedmf.data import InMemoryDataset
from fedmf.models import FlatModel, split_causal_lm, with_lora
from fedmf.runs.tasks import FunctionTask
from fedmf.training import Task
from fedmf.training.losses import token_cross_entropy
from fedmf.training.metrics import PERPLEXITY, TOKEN_ACCURACY

#: Positions in a sequence, and most sequences of a role.
LENGTH = 16
SEQUENCES = 2
#: Roles on which rates and clip norms are tuned, and roles held out in a reported run.
TUNING_ROLES = 150
TEST_ROLES = 150
#: Seeds from this one on evaluate on the tuning roles.
FIRST_TUNING_SEED = 1000
#: Layers of the last block that have adapters, their rank r and their factor α.
ADAPTED = ("self_attn.o_proj", "mlp.down_proj")
RANK = 4
ALPHA = 4
FOLDER = Path(os.environ.get("FEDMF_LM_DATA", "data"))


def adapted_model(folder: Path = FOLDER / "smollm2") -> PreTrainedModel:
    """SmolLM2 with adapters of rank 4, of which only B is trained: 4,608 parameters."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    last = f"model.layers.{model.config.num_hidden_layers - 1}"
    targets = [f"{last}.{name}" for name in ADAPTED]
    with_lora(model, rank=RANK, alpha=ALPHA, targets=targets, train_a=False)
    return model


def split_roles(count: int, users: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The training roles and the test roles of a seed, which are disjoint.

    The first `TUNING_ROLES` of a fixed order are the test roles of tuning runs alone: no reported
    run trains or evaluates on them.
    """
    order = np.random.default_rng(0).permutation(count)
    others = np.random.default_rng([1, seed]).permutation(order[TUNING_ROLES:])
    test = others[:TEST_ROLES]
    if seed >= FIRST_TUNING_SEED:
        test = order[:TUNING_ROLES]
    return others[TEST_ROLES : TEST_ROLES + users], test


def make(settings: FunctionTask) -> Task:
    """The task of a run: training roles are the users, the test part is that of other roles."""
    stored = load_file(FOLDER / "language-model.safetensors")
    roles = (FOLDER / "language-model-roles.txt").read_text().splitlines()
    owners = stored["owners"].numpy()
    training, test = split_roles(len(roles), settings.users, settings.seed)
    test_rows = torch.from_numpy(np.flatnonzero(np.isin(owners, test)))
    dataset = InMemoryDataset(
        features=stored["features"],
        labels=stored["labels"],
        owned=[np.flatnonzero(owners == role) for role in training],
        user_ids=[roles[role] for role in training],
        test_features=stored["features"][test_rows],
        test_labels=stored["labels"][test_rows],
    )
    model = adapted_model()
    last_block = split_causal_lm(model)[1]
    shapes = dataset.structure
    labels = replace(shapes.labels, bound=model.config.vocab_size)
    return Task(
        dataset,
        FlatModel(last_block),
        token_cross_entropy,
        (PERPLEXITY, TOKEN_ACCURACY),
        replace(shapes, labels=labels),
    )
