"""What the GPU kernels of the noise cost, from their machine code; no GPU is needed, only Triton.

    python simulations/benchmarks/noise_gpu_instructions.py [--arch 90] [--clock 1.755] [--json]

Triton compiles for the given architecture, nvdisasm (in Triton's wheel) lists the machine code, and one
thread is followed through a tile inside the vector: ten double rounds per keystream block, no refinement
(one tile in 64 has one). Each instruction occupies the issue slot and its pipe; the busiest of these, or
memory, bounds the rate. A bound assumes perfect overlap: expect 80 to 95 % of it.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fedmf.noise.kernels import gpu_kernels

ROTATIONS_PER_BLOCK = 320
WIDTH = {"fp32": 4, "fp64": 8, "i16": 2}

#: Threads' worth of instructions per clock and multiprocessor of compute capability 9.0 (CUDA programming
#: guide, arithmetic throughput), and which instructions go there; what is in none only needs the issue slot.
PIPES = {
    "fp64": (64, r"D(ADD|MUL|FMA|SETP)"),
    "integer": (64, r"LOP3|SHF|IADD3|VIADD|VIMNMX|ISETP|F?SEL|FSETP|PRMT|LEA|P2R|SGXT|MOV"),
    "multiply-add": (64, r"IMAD|FFMA|FADD|FMUL"),
    "conversion": (16, r"MUFU|F2F|I2F|F2I"),
    "load/store": (32, r"LDG|STG|LDS|STS|LDSM|STSM|LDC|SHFL"),
}
ISSUE = 128
MULTIPROCESSORS = 132
MEMORY = 4.8e12
"""Bytes per second of an H200."""


@dataclass(frozen=True)
class Instruction:
    """One line of machine code."""

    predicate: str
    opcode: str
    target: str

    @property
    def name(self) -> str:
        """Without modifiers."""
        return self.opcode.split(".")[0]


@dataclass(frozen=True)
class Code:
    """A kernel as a list of instructions, with the position of each label."""

    instructions: tuple[Instruction, ...]
    labels: dict[str, int]
    registers: int
    shared: int
    ptx: str

    @property
    def spills(self) -> int:
        """Loads and stores of local memory."""
        return sum(i.name in ("LDL", "STL") for i in self.instructions)

    @property
    def threads(self) -> int:
        """Resident threads per multiprocessor: 65,536 registers given out by 8 per thread, 2,048 threads."""
        warp = -(-self.registers // 8) * 8 * 32
        return min(2048, 65536 // (warp * 4) * 128, (227 * 1024 // (self.shared + 1024)) * 128)


def compiled(
    name: str,
    out: str = "fp32",
    stored: str = "fp32",
    arch: int = 90,
    many: bool = False,
    kernels: Any = gpu_kernels,
) -> Code:
    """The machine code of a pass for aligned vectors.

    Args:
        name: add_row or add_stored_row.
        out: fp32, fp64 or i16 (bfloat16).
        stored: fp32 or fp64, of stored vectors.
        arch: ten times the compute capability.
        many: for rows of several keys.
        kernels: the module with the pass.
    """
    function = getattr(kernels, name)
    kinds = {"out": "*" + out, "stored": "*" + stored, "table": "*i64"}
    signature = {
        p: "constexpr" if p in ("BLOCKS", "MANY") else kinds.get(p, "i32") for p in function.arg_names
    }
    aligned = {(i,): [["tt.divisibility", 16]] for i, p in enumerate(function.arg_names) if p in ALIGNED}
    source = ASTSource(function, signature, {"BLOCKS": gpu_kernels.BLOCKS, "MANY": many}, aligned)
    return machine_code(source, arch, gpu_kernels.OPTIONS)


def machine_code(source: ASTSource, arch: int, options: dict[str, Any]) -> Code:
    """Any kernel, compiled without a GPU."""
    kernel = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(kernel.asm["cubin"])
        usage = _tool("cuobjdump", "-res-usage", str(path))
        listing = _tool("nvdisasm", "-c", str(path))
    registers = re.search(rf"Function {source.fn.__name__}:\s+REG:(\d+)", usage)
    assert registers
    return Code(*_parsed(listing), int(registers[1]), kernel.metadata.shared, kernel.asm["ptx"])


ALIGNED = ("out", "stored", "table", "length", "shift")


def _tool(name: str, *arguments: str) -> str:
    path = getattr(triton.knobs.nvidia, name).path
    return subprocess.run([path, *arguments], check=True, capture_output=True, text=True).stdout


_LINE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][A-Z0-9_.]*)([^;]*);")
_LABEL = re.compile(r"^(\.L_x_\d+|\$\S+):")


def _parsed(listing: str) -> tuple[tuple[Instruction, ...], dict[str, int]]:
    instructions, labels = [], {}
    for line in listing.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(instructions)
        elif found := _LINE.search(line):
            target = re.search(r"`\((\S+)\)", found[3])
            instructions.append(Instruction(found[1] or "", found[2], target[1] if target else ""))
    return tuple(instructions), labels


def followed(code: Code, rounds: int) -> Counter[str]:
    """Instructions that one thread issues in `add_row` over `rounds` rounds, in a tile inside the vector.

    Loops run as often as they do for that many rounds; of the ways to take the other branches, the one that
    computes each keystream block once and ends with fewest masked loads and stores is the thread's.
    """
    wanted = ROTATIONS_PER_BLOCK * rounds
    best: Counter[str] | None = None
    paths: list[tuple[int, int, dict[int, int], Counter[str]]] = [(0, 0, {}, Counter())]
    while paths:
        at, rotations, left, seen = paths.pop()
        while True:
            instruction = code.instructions[at]
            if instruction.name == "CALL" or rotations > wanted:
                break
            seen[instruction.opcode] += 1
            rotations += _rotates(instruction)
            if instruction.predicate and instruction.name in ("LDG", "STG"):
                seen["masked"] += 1
            if instruction.name == "EXIT" and not instruction.predicate:
                if rotations == wanted and (best is None or _rank(seen) < _rank(best)):
                    best = seen
                break
            goal = code.labels.get(instruction.target) if instruction.name == "BRA" else None
            if goal is None:
                at += 1
            elif not instruction.predicate:
                at = goal
            elif goal <= at:
                again = left.get(at) or _passes(code, goal, at, rounds)
                left[at] = again - 1
                at = goal if again > 1 else at + 1
            else:
                paths.append((at + 1, rotations, dict(left), Counter(seen)))
                at = goal
    assert best is not None, "no path through the kernel computes these blocks"
    return best


def _rotates(instruction: Instruction) -> bool:
    return instruction.opcode.startswith("SHF.L.W")


def _passes(code: Code, first: int, last: int, rounds: int) -> int:
    """How often the loop between two positions runs: double rounds inside, rounds of noise outside."""
    body = code.instructions[first:last]
    if any(i.name == "DFMA" for i in body):
        return rounds
    rotations = sum(map(_rotates, body))
    assert rotations, "a loop that is neither"
    return ROTATIONS_PER_BLOCK // rotations


def _rank(seen: Counter[str]) -> tuple[int, int]:
    return seen["masked"], seen.total()


@dataclass(frozen=True)
class Cost:
    """Per normal variable."""

    instructions: float
    pipes: dict[str, float]
    bytes: int

    def clocks(self) -> dict[str, float]:
        """Clocks of a multiprocessor per normal that each resource needs."""
        needed = {name: self.pipes[name] / lanes for name, (lanes, _) in PIPES.items()}
        return {"issue": self.instructions / ISSUE, **needed}

    def rate(self, gigahertz: float) -> tuple[float, str]:
        """Elements per second, at most, and what limits them."""
        bounds = {name: MULTIPROCESSORS * gigahertz * 1e9 / c for name, c in self.clocks().items() if c}
        bounds["memory"] = MEMORY / self.bytes
        name = min(bounds, key=lambda key: bounds[key])
        return bounds[name], name


def cost(code: Code, rounds: int, width: int) -> Cost:
    """Of `add_row` with elements of `width` bytes."""
    seen = followed(code, rounds)
    total = sum(count for opcode, count in seen.items() if opcode != "masked")
    pipes = {
        name: sum(n for opcode, n in seen.items() if re.fullmatch(pattern, opcode.split(".")[0])) / 16
        for name, (_, pattern) in PIPES.items()
    }
    return Cost(total / 16, pipes, 2 * width)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--arch", type=int, default=90)
    parser.add_argument("--clock", type=float, default=1.755, help="GHz; an H200 runs at up to 1.98")
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    options = parser.parse_args()
    columns = ("issue", *PIPES)
    if not options.json:
        print("per normal: instructions by pipe; bound at 132 multiprocessors; % of a copy at 4.8 TB/s")
        print(f"{'kernel':<28}{'registers':>10}{'threads':>8}" + "".join(f"{c:>13}" for c in columns)
              + f"{'10^9/s':>8}{'copy %':>8}  limit")  # fmt: skip
    for out, label in (("fp32", "float32"), ("i16", "bfloat16"), ("fp64", "float64")):
        code = compiled("add_row", out, arch=options.arch)
        for rounds in (1, 2, 4):
            spent = cost(code, rounds, WIDTH[out])
            rate, limit = spent.rate(options.clock)
            share = 100 * rate * spent.bytes / MEMORY
            if options.json:
                row = {"name": f"add_row {label} p={rounds}", "value": rate, "unit": "normals/s"}
                print(json.dumps({**row, "copy_percent": share, "limit": limit, "per_normal": spent.pipes}))
                continue
            values = "".join(f"{v:>13.1f}" for v in (spent.instructions, *spent.pipes.values()))
            print(f"{f'add_row {label} p={rounds}':<28}{code.registers:>10}{code.threads:>8}{values}"
                  f"{rate / 1e9:>8.0f}{share:>8.0f}  {limit}")  # fmt: skip
    if not options.json:
        code = compiled("add_stored_row", arch=options.arch)
        print(f"{'add_stored_row float32':<28}{code.registers:>10}{code.threads:>8}   spills: {code.spills}")


if __name__ == "__main__":
    main()
