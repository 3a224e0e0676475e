"""What `triton_worker` runs here with Triton's compiler: machine code, without a GPU."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

os.environ["TRITON_CACHE_DIR"] = mkdtemp()

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fedmf.clipping import gpu_kernels as clipping


def clip_code(name: str, constants: dict[str, int]) -> dict[str, Any]:
    """Of a kernel of clip-and-sum for aligned float32 rows and models."""
    kinds = {
        "rows": "*fp32",
        "origin": "*fp32",
        "squares": "*fp64",
        "factors": "*fp64",
        "totals": "*i64",
    }
    return _compiled(
        getattr(clipping, name), kinds, constants, (*kinds, "step"), 90, clipping.OPTIONS
    )


def _compiled(
    function: Any,
    kinds: dict[str, str],
    constants: dict[str, Any],
    aligned: tuple[str, ...],
    arch: int,
    options: Any,
) -> dict[str, Any]:
    """Registers, spills, opcodes and PTX of a kernel."""
    signature = {
        p: "constexpr" if p in constants else kinds.get(p, "i32") for p in function.arg_names
    }
    divisible = {
        (i,): [["tt.divisibility", 16]] for i, p in enumerate(function.arg_names) if p in aligned
    }
    source = ASTSource(function, signature, constants, divisible)
    kernel = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(kernel.asm["cubin"])
        usage = _tool("cuobjdump", "-res-usage", str(path))
        listing = _tool("nvdisasm", "-c", str(path))
    registers = re.search(rf"Function {function.__name__}:\s+REG:(\d+)", usage)
    assert registers
    opcodes = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", listing)
    spills = sum(opcode.split(".")[0] in ("LDL", "STL") for opcode in opcodes)
    return {
        "registers": int(registers[1]),
        "spills": spills,
        "opcodes": set(opcodes),
        "ptx": kernel.asm["ptx"],
    }


def _tool(name: str, *arguments: str) -> str:
    path = getattr(triton.knobs.nvidia, name).path
    return subprocess.run([path, *arguments], check=True, capture_output=True, text=True).stdout
