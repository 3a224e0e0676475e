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

_BENCHMARKS = Path(__file__).resolve().parents[2] / "simulations/benchmarks"


def _benchmark(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, _BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


instructions = _benchmark("noise_gpu_instructions")
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


def clip_loop(name: str, constants: dict[str, int]) -> dict[str, Any]:
    """Bytes that a kernel of clip-and-sum loads an entry, its spills and PTX."""
    counted = _benchmark("gpu_without_gpu")
    code = counted.clip_code(name, **constants)
    return {"bytes": counted.loaded(code)[0], "spills": code.spills, "ptx": code.ptx}
