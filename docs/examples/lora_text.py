"""A language model trained on public texts, adapted privately to people's: python lora_text.py
RUN_DIR.

It needs fedmf[lm] and downloads nothing: texts are modules of Python's standard library, one a
person.
"""

import os
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import fedmf
from fedmf.data import InMemoryDataset
from fedmf.models import LogitsOf, with_lora
from fedmf.training import next_token

LENGTH = 32
TOKENS = 128
WINDOWS = 12


def windows(path):
    """The first windows of a text, with the byte after each position; shape (WINDOWS, LENGTH +
    1).
    """
    content = torch.tensor(list(path.read_bytes()[: WINDOWS * LENGTH + 1])).clamp(max=TOKENS - 1)
    return content.unfold(0, LENGTH + 1, LENGTH)


def public_model(texts, steps=60):
    """A small GPT-2, trained without privacy on texts that are nobody's."""
    shape = {"vocab_size": TOKENS, "n_positions": LENGTH, "n_embd": 32, "n_layer": 2, "n_head": 2}
    still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(**shape, **still, bos_token_id=0, eos_token_id=0))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(steps):
        batch = texts[8 * step % len(texts) :][:8]
        optimizer.zero_grad()
        logits = model(input_ids=batch[:, :-1]).logits
        torch.nn.functional.cross_entropy(logits.mT, batch[:, 1:]).backward()
        optimizer.step()
    return model


def task():
    modules = sorted(
        path for path in Path(os.__file__).parent.glob("*.py") if path.stat().st_size > 8192
    )
    public = modules[:8]
    tests = modules[8:12]
    people = modules[12:36]
    own, held_out = (torch.cat([windows(path) for path in part]) for part in (people, tests))
    dataset = InMemoryDataset(
        features=own[:, :-1],
        labels=own[:, 1:],
        owned=np.arange(len(own)).reshape(len(people), WINDOWS),
        user_ids=[path.stem for path in people],
        test_features=held_out[:, :-1],
        test_labels=held_out[:, 1:],
    )
    base = public_model(torch.cat([windows(path) for path in public]))
    return next_token(dataset, LogitsOf(with_lora(base, rank=4, alpha=8.0, seed=0)), TOKENS)


run = fedmf.Run(
    task=task(),
    cohorts=fedmf.CyclicCohorts(rounds=12, users_per_round=6),
    privacy=fedmf.UserLevel(epsilon=8.0, delta=1e-3, clip_norm=0.1),
    client=fedmf.LocalSGD(batch_size=4, learning_rate=0.1, micro_batch=2),
)

if __name__ == "__main__":
    result = fedmf.simulate(run, sys.argv[1])
    model = fedmf.load_model(sys.argv[1])  # for load_state_dict of the module with adapters
    print(result.statement.render_text(), len(model), result.metrics[12])
