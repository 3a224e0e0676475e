"""What the GPU kernels move, hold and branch, before and now, computed where there is no GPU.

    python simulations/benchmarks/gpu_without_gpu.py [--json]

Machine code is compiled for compute capability 9.0 and counted. Before, in the noise kernels, is the same
pass with Triton's own division and square root; before, in clipping, is the route by torch's operations,
whose reads, writes and memory are counted operation by operation on a processor. Nothing here is a measured
time.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from noise_gpu_instructions import WIDTH, Code, compiled, cost, machine_code
from torch.utils._pytree import tree_leaves
from triton.compiler import ASTSource

from fedmf.data import InMemoryDataset
from fedmf.models.architectures import mlp
from fedmf.noise.kernels import gpu_kernels as noise
from fedmf.training import LocalSGD, LocalTrainer
from fedmf.training.clipping import clip_to_fixed_point, gpu_kernels
from fedmf.training.clipping.kernel import BLOCK
from fedmf.training.grouping import HeldBytes
from fedmf.training.kinds import classification

#: Name, unit, before (None: not known), now.
Row = tuple[str, str, float | None, float]

USERS, WIDTH_OF_STEP = 4, 20
PLANNED_BEFORE = 12.0
#: A thread's entries in one turn of a loop: `AHEAD` loads of four numbers.
PER_TURN = 4 * gpu_kernels.AHEAD


class MovedBytes(HeldBytes):
    """Bytes that operations read and write, views left out; and those held."""

    moved = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        made = super().__torch_dispatch__(func, types, args, kwargs)
        out = [x for x in tree_leaves(made) if isinstance(x, torch.Tensor)]
        places = {x.untyped_storage().data_ptr() for x in given}
        view = all(x.untyped_storage().data_ptr() in places for x in out)
        if not view or func._schema.is_mutable:
            self.moved += sum(x.numel() * x.element_size() for x in (*given, *out))
        return made


def with_branches() -> Any:
    """The noise kernels with Triton's own division and square root."""
    text = Path(str(noise.__file__)).read_text()
    for now, before in (
        ("s = quotient(f)", "s = f / (f + double(2.0))"),
        ("return root(", "return tl.sqrt("),
    ):
        assert text.count(now) == 1
        text = text.replace(now, before)
    folder = TemporaryDirectory()
    path = Path(folder.name) / "branching_kernels.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("branching_kernels", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["branching_kernels"] = importlib.util.module_from_spec(spec)
    module.folder = folder  # type: ignore[attr-defined]
    spec.loader.exec_module(module)
    return module


def noise_rows() -> list[Row]:
    """Of `add_row` for float32 numbers and of `add_stored_row`."""
    before, rows = with_branches(), []
    for name in ("add_row", "add_stored_row"):
        codes = [compiled(name, kernels=kernels) for kernels in (before, noise)]
        names = [Counter(i.name for i in code.instructions) for code in codes]
        rows += [
            (f"{name}: {what}", unit, *(float(n[opcode]) for n in names)) for what, unit, opcode in OPCODES
        ]
        rows.append((f"{name}: registers", "a thread", *(float(code.registers) for code in codes)))
        if name == "add_row":
            costs = [cost(code, 1, WIDTH["fp32"]) for code in codes]
            rows.append((f"{name}: issued", "instructions/normal", *(c.instructions for c in costs)))
            rows.append((f"{name}: float64", "instructions/normal", *(c.pipes["fp64"] for c in costs)))
    return rows


OPCODES = (
    ("calls of subroutines", "instructions", "CALL"),
    ("regions where threads meet again", "regions", "BSSY"),
    ("approximate reciprocals", "instructions", "MUFU"),
)


def clip_code(name: str, **constants: Any) -> Code:
    """A kernel of clip-and-sum for aligned float32 rows and models."""
    function = getattr(gpu_kernels, name)
    kinds = {"rows": "*fp32", "origin": "*fp32", "squares": "*fp64", "factors": "*fp64", "total": "*i64"}
    signature = {p: "constexpr" if p in constants else kinds.get(p, "i32") for p in function.arg_names}
    aligned = {
        (i,): [["tt.divisibility", 16]] for i, p in enumerate(function.arg_names) if p in kinds or p == "step"
    }
    return machine_code(ASTSource(function, signature, constants, aligned), 90, gpu_kernels.OPTIONS)


def loaded(code: Code) -> tuple[float, float]:
    """Bytes and instructions an entry of the shortest loop that loads 128 bits at a time."""
    loops = []
    for last, instruction in enumerate(code.instructions):
        first = code.labels.get(instruction.target, last)
        if instruction.name == "BRA" and first < last:
            body = code.instructions[first : last + 1]
            if loads := sum(i.opcode.startswith("LDG.E.128") for i in body):
                loops.append((len(body), 16 * loads))
    length, read = min(loops)
    return read / PER_TURN, length / PER_TURN


def clip_rows() -> list[Row]:
    """Clip-and-sum of users of an MLP."""
    task = classification(made_up(), mlp(784, (512,), 10, seed=0))
    d = task.model.dimension
    rows, origin = torch.randn(USERS, d), torch.zeros(d)
    total = torch.zeros(d, dtype=torch.int64)
    with MovedBytes(torch.device("cpu")) as counted:
        total += clip_to_fixed_point(rows - origin, 1.0)[0].sum(dim=0)
    entries = USERS * d
    norms = clip_code("sum_squares", SHIFTED=True)
    checks = clip_code("square_integers", SHIFTED=True)
    sums = clip_code("add_scaled", COLUMNS=gpu_kernels.COLUMNS, USERS=gpu_kernels.USERS, SHIFTED=True)
    assert norms.spills == checks.spills == sums.spills == 0
    (norm_bytes, norm_work), (check_bytes, check_work) = loaded(norms), loaded(checks)
    sum_bytes, sum_work = loaded(sums)
    moved = norm_bytes + check_bytes + 16 / BLOCK + sum_bytes + (4 + 8 + 8) / gpu_kernels.USERS
    held = (8 * -(-d // BLOCK) + 8 + 8 + 2) / d
    local = LocalSGD(batch_size=WIDTH_OF_STEP)
    grouping = LocalTrainer(task, local, group_size=8)._grouping
    grouping._exact = False  # as on a GPU
    user = grouping._measured(WIDTH_OF_STEP)[1] / d
    return [
        ("clip and sum: read and written", "bytes/entry", counted.moved / entries, moved),
        ("clip and sum: held beside rows", "bytes/entry", counted.most / entries, held),
        ("clip and sum: issued", "instructions/entry", None, norm_work + check_work + sum_work),
        ("a user of an MLP, steps of 20: held", "bytes/entry", user + counted.most / entries, user),
        ("a user of an MLP, steps of 20: planned for", "bytes/entry", PLANNED_BEFORE, user),
    ]


def made_up() -> InMemoryDataset:
    features, labels = torch.zeros(2, 784), torch.zeros(2, dtype=torch.int64)
    return InMemoryDataset(features, labels, (torch.arange(2).numpy(),), ("a",), features, labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    options = parser.parse_args()
    for name, unit, before, now in (*noise_rows(), *clip_rows()):
        if options.json:
            row = {"name": name, "value": now, "unit": unit, "baseline": before}
            print(json.dumps({**row, "ratio": before / now if before and now else None}))
        else:
            print(f"{name:<50}{'-' if before is None else f'{before:.4g}':>10} -> {now:<12.4g}{unit}")


if __name__ == "__main__":
    main()
