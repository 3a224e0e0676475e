"""Write the adapters of a run in peft's format, load them in plain transformers, compare the loss.

    python simulations/language_model/adapters.py runs/language-model --output adapters

The loss of the test part in transformers, from tokens through all blocks, must be the last one that
the run recorded, which it computed from stored features. The directory can be given to
``peft.PeftModel.from_pretrained``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from adapted import FOLDER, adapted_model, split_roles
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import fedmf
from fedmf.models import save_adapters
from fedmf.runs.tasks import FunctionTask
from fedmf.training.losses import token_cross_entropy


def write_adapters(run: Path, output: Path) -> None:
    """Write A and B of a run as peft does."""
    model = adapted_model()
    unexpected = model.load_state_dict(fedmf.load_model(run), strict=False).unexpected_keys
    assert not unexpected
    save_adapters(model, output)


@torch.no_grad()
def loss_in_transformers(adapters: Path, users: int, seed: int) -> float:
    """The mean loss of the test part of a seed, by transformers and peft alone."""
    stored = load_file(FOLDER / "language-model.safetensors")
    _, test = split_roles(int(stored["owners"].max()) + 1, users, seed)
    rows = torch.from_numpy(np.isin(stored["owners"].numpy(), test))
    model = AutoModelForCausalLM.from_pretrained(FOLDER / "smollm2", dtype=torch.bfloat16)
    model = PeftModel.from_pretrained(model, str(adapters))
    losses: list[torch.Tensor] = []
    parts = zip(stored["tokens"][rows].split(64), stored["labels"][rows].split(64), strict=True)
    for tokens, labels in parts:
        losses.append(token_cross_entropy(model(input_ids=tokens).logits, labels))
    return float(torch.cat(losses).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="directory of a run")
    parser.add_argument("--output", type=Path, default=Path("adapters"))
    options = parser.parse_args()
    write_adapters(options.run, options.output)
    task = fedmf.recorded_run(options.run).task
    assert isinstance(task, FunctionTask)
    recorded = pd.read_parquet(options.run / "metrics.parquet")["loss"].iloc[-1]
    loaded = loss_in_transformers(options.output, task.users, task.seed)
    print(f"loss {recorded:.6f} in the run, {loaded:.6f} in transformers with {options.output}")
    if abs(recorded - loaded) > 1e-3:
        raise SystemExit("the losses differ")


if __name__ == "__main__":
    main()
