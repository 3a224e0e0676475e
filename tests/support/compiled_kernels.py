"""What `triton_worker` runs with Triton's compiler: machine code and specialisation, without a GPU."""

from __future__ import annotations

import importlib.util
import os
import sys
from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

os.environ["TRITON_CACHE_DIR"] = mkdtemp()

from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime.jit import create_function_from_signature

from fedmf.noise.kernels import gpu_kernels

_PATH = Path(__file__).resolve().parents[2] / "simulations/benchmarks/noise_gpu_instructions.py"
_SPEC = importlib.util.spec_from_file_location("noise_gpu_instructions", _PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
instructions = sys.modules["noise_gpu_instructions"] = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(instructions)
compiled = lru_cache(instructions.compiled)


def machine_code(name: str, out: str, stored: str, arch: int, many: bool = False) -> dict[str, Any]:
    """Registers, spills, opcodes and PTX of a pass."""
    code = compiled(name, out, stored, arch, many)
    opcodes = {i.opcode for i in code.instructions}
    return {"registers": code.registers, "spills": code.spills, "opcodes": opcodes, "ptx": code.ptx}


def cost(out: str, rounds: int) -> dict[str, float]:
    """Instructions per normal of `add_row`, by pipe."""
    spent = instructions.cost(compiled("add_row", out, "fp32", 90), rounds, 4)
    return {"instructions": spent.instructions, **spent.pipes}


def specialisation(name: str, values: dict[str, int]) -> str:
    """What Triton makes of the arguments, from which it forms the name of the kernel in its cache."""
    function = getattr(gpu_kernels, name)
    bind = create_function_from_signature(
        function.signature, function.params, CUDABackend(GPUTarget("cuda", 90, 32))
    )
    arguments = {p: values.get(p, 64) for p in function.arg_names}
    return repr(bind(**arguments)[1])
