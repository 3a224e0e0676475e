"""Compare the losses of held-out roles after each run of a sweep with those of the model as it is.

    python simulations/language_model/compare.py sweeps/language-model

A line for each cell: perplexity over all held-out roles, the mean over seeds; by how much the loss
of a role is lower than zero-shot, with its standard error over roles (those of several seeds are
others, but may overlap); and the share of roles whose loss is lower.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from adapted import FOLDER, adapted_model, split_roles
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn

import fedmf
from fedmf.models import split_causal_lm
from fedmf.runs.tasks import FunctionTask
from fedmf.training.losses import token_cross_entropy

#: Sequences in one pass.
ROWS = 64


@torch.no_grad()
def losses_of_roles(module: nn.Module, features: Tensor, labels: Tensor, owners: Tensor) -> Tensor:
    """The mean loss of each role, in the order of `torch.unique`."""
    parts = zip(features.split(ROWS), labels.split(ROWS), strict=True)
    losses = torch.cat([token_cross_entropy(module(part), told) for part, told in parts])
    _, role = torch.unique(owners, return_inverse=True)
    sums = torch.zeros(int(role.max()) + 1, dtype=torch.float64)
    return sums.index_add(0, role, losses.double()) / torch.bincount(role)


def held_out(stored: dict[str, Tensor], run: Path) -> tuple[Tensor, Tensor, Tensor]:
    """Features, labels and roles of the sequences that a run is evaluated on."""
    task = fedmf.recorded_run(run).task
    assert isinstance(task, FunctionTask)
    _, test = split_roles(int(stored["owners"].max()) + 1, task.users, task.seed)
    rows = torch.from_numpy(np.isin(stored["owners"].numpy(), test))
    return stored["features"][rows], stored["labels"][rows], stored["owners"][rows]


def line(cell: str, before: NDArray[np.float64], after: NDArray[np.float64]) -> str:
    """A row of the table, from the losses of roles by seed, shape (seeds, roles)."""
    lower = (before - after).ravel()
    error = lower.std(ddof=1) / np.sqrt(lower.size)
    perplexity = np.exp(after.mean(axis=1)).mean()
    share = 100 * (lower > 0).mean()
    return (
        f"| {cell} | {perplexity:.1f} | {lower.mean():.3f} ± {error:.3f} |"
        f" {lower.mean() / max(error, 1e-12):.1f} | {share:.0f} % |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("sweep", type=Path, help="directory of a sweep with --keep-runs")
    sweep = parser.parse_args().sweep
    stored = load_file(FOLDER / "language-model.safetensors")
    model = adapted_model()
    module = split_causal_lm(model)[1]  # shares the tensors
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    runs = pd.read_parquet(sweep / "runs.parquet").query("part == 'reported'")
    print("| cell | perplexity | lower loss of a role | in errors | roles with a lower loss |")
    print("|---|---|---|---|---|")
    for cell, of_cell in runs.groupby("cell", sort=False):
        before = list[Tensor]()
        after = list[Tensor]()
        for name in of_cell.sort_values("seed")["run"].unique():
            run = sweep / "runs" / name
            examples = held_out(stored, run)
            model.load_state_dict(start)
            before.append(losses_of_roles(module, *examples))
            unexpected = model.load_state_dict(fedmf.load_model(run), strict=False).unexpected_keys
            assert not unexpected
            after.append(losses_of_roles(module, *examples))
        print(line(str(cell), torch.stack(before).numpy(), torch.stack(after).numpy()), flush=True)


if __name__ == "__main__":
    main()
