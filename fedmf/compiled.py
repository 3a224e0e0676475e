"""Compiled functions over arrays."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

__all__ = ["compiled", "fused_multiply_add", "inlined"]

_IMPORT = re.compile(r"^from ([\w.]+) import (\([^)]*\)|.*)$", re.MULTILINE)


def compiled(function: Callable[..., Any]) -> Any:
    """Compile for this processor, free of the interpreter lock; keep the machine code where possible.

    Machine code holds the functions and constants that it uses, those of other files too, but numba looks at
    the function's own file only when it asks whether kept code is of today. So the name that code is kept
    under says what was read: the contents of the file and of all that it imports from its own package.
    """
    from numba import njit

    options = {"nogil": True, "error_model": "numpy"}
    function.__qualname__ += f"_{_contents(function.__module__)}"
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # numba finds no folder it may write to
        return njit(**options)(function)


def inlined(function: Callable[..., Any]) -> Any:
    """The same for a part of compiled functions: it is compiled with each that calls it, never alone.

    A call hands over every array of a tuple one by one, and a function's machine code is made again for each
    level of callers above it; this saves both.
    """
    from numba import njit

    return njit(inline="always", nogil=True, error_model="numpy")(function)


@cache
def fused_multiply_add() -> Any:
    """For compiled functions: (x, y, z) ↦ x·y + z of three float32, rounded once."""
    from numba import types
    from numba.extending import intrinsic

    def fused(typing_context: Any, x: Any, y: Any, z: Any) -> Any:
        del typing_context, x, y, z

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            del context, signature
            return builder.fma(*arguments)

        return types.float32(types.float32, types.float32, types.float32), generate

    return intrinsic(fused)


def _contents(module: str) -> str:
    """A digest of a module's file and of those of its package that it imports, directly or not."""
    found: dict[Path, bytes] = {}
    waiting = [module]
    while waiting:
        path = _file(waiting.pop())
        if path is not None and path not in found:
            found[path] = path.read_bytes()
            waiting.extend(_imported(found[path].decode(), module.partition(".")[0]))
    digest = sha256()
    for path in sorted(found):
        digest.update(sha256(found[path]).digest())
    return digest.hexdigest()[:16]


def _imported(source: str, package: str) -> Iterator[str]:
    """Names that may be modules of the package."""
    for module, names in _IMPORT.findall(source):
        if module.partition(".")[0] == package:
            yield module
            yield from (f"{module}.{name}" for name in re.findall(r"\w+", names))


@cache
def _file(module: str) -> Path | None:
    """Where a module of a package that is being imported is; None if it is none."""
    package, *names = module.split(".")
    place = Path(str(sys.modules[package].__file__)).parent.joinpath(*names)
    candidates = (place.with_suffix(".py"), place / "__init__.py")
    return next((path for path in candidates if path.is_file()), None)
