"""The folder of a run's released integers, which ``execution.keep-releases`` adds to a run."""

from __future__ import annotations

from typing import Any, Final

import safetensors.torch
from torch import Tensor

from fedmf.ledger.released_integers import FOLDER, PLAN, ReleasedIntegers, create_folder, part
from fedmf.runs.directory import RunDirectory, RunHeader
from fedmf.runs.model_layout import named_parts

INITIAL: Final = "initial.safetensors"


def released_integers(directory: RunDirectory, initial: Tensor) -> ReleasedIntegers | None:
    """Return the file of a run's released integers; None if the run does not keep them.

    Args:
        directory: the run directory.
        initial: θ_0, shape (d,), which is stored before the first release.

    Raises:
        LedgerError: the folder cannot be created.
    """
    if not directory.header.run["execution"]["keep_releases"]:
        return None
    folder = directory.path / FOLDER
    if not folder.exists() and not directory.ledger.released:
        named = named_parts(initial.detach().cpu(), directory.header.arrays)
        tensors = {name: tensor.contiguous().clone() for name, tensor in named.items()}
        content = safetensors.torch.save(tensors)
        create_folder(folder, public_plan(directory.header), {INITIAL: content})
    width = sum(each.size for each in directory.header.plan.parts)
    return ReleasedIntegers(folder, width, (PLAN, INITIAL))


def public_plan(header: RunHeader) -> dict[str, Any]:
    """Describe the integers of a run, and how its models follow from them."""
    plan = header.plan
    names = ["updates"]
    bounds = [1]
    second_form = None
    if plan.second is not None:
        names.append("second moment")
        bounds.append(1)
        second_form = plan.second.form
    for statistic in plan.statistics:
        names.append(statistic.name)
        bounds.append(statistic.summed().bound)
    parts = []
    for index, each in enumerate(plan.parts):
        bits = plan.bits_of(index)
        noise = plan.noise_of(index)
        parts.append(part(names[index], each.factorization, each.size, bounds[index], bits, noise))
    return {
        "kind": "run",
        "parts": parts,
        "users_per_round": plan.users_per_round,
        "clip_norm": plan.clip_norm,
        "clipping": header.run["clipping"],
        "second_form": second_form,
        "server": header.run["server"],
        "arrays": [[name, list(shape)] for name, shape in header.arrays],
    }
