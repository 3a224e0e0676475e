"""Compiled functions over arrays, and their machine code, which is kept."""

from __future__ import annotations

import os
import pickle
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedmf.kept_files import KeptFiles, cache_directory

_IMPORT = re.compile(r"^ *from ([\w.]+) import (\([^)]*\)|.*)$", re.MULTILINE)
_LARGEST, _MOST = 2**26, 2**29


def compiled(function: Callable[..., Any]) -> Any:
    """Compile for this processor, free of the interpreter lock; keep the machine code where possible.

    Machine code holds the functions and constants that it uses, those of other files too. So its name says
    what was read: the contents of the file and of all that it imports from its own package.
    """
    from numba import njit

    function.__qualname__ += f"_{_contents(function.__module__)}"
    program: Any = njit(nogil=True, error_model="numpy")(function)
    program._cache = _KeptCode(function)
    unwrapped: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    unwrapped["pipeline_class"] = _part_compiler()
    part: Any = njit(nogil=True, error_model="numpy", **unwrapped)(function)
    program.get_call_template, program.get_overload = part.get_call_template, part.get_overload
    return program


@cache
def _part_compiler() -> Any:
    """Compiles a function for those compiled ones that call it: no machine code is made of it alone.

    numba optimises each function, makes machine code of it, and does both again in every caller. Here a
    function goes unoptimised into whoever calls it, and what Python calls is optimised once with all its
    parts. Neither may change what is computed: no option permits other arithmetic.
    """
    from numba.core.codegen import JITCodeLibrary
    from numba.core.compiler import CompilerBase, DefaultPassBuilder

    class Unplaced:
        def set_env(self, name: str, environment: Any) -> None:
            """There is no code that could have one."""

    class PartLibrary(JITCodeLibrary):
        @property
        def codegen(self) -> Any:
            return Unplaced()

        def _optimize_final_module(self) -> None:
            pass

        def _finalize_final_module(self) -> None:
            self._finalize_dynamic_globals()
            self._finalized = True

        def get_pointer_to_function(self, name: str) -> int:
            return 0

    class PartCompiler(CompilerBase):
        def define_pipelines(self) -> list[Any]:
            state: Any = self.state
            state.library = PartLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
            return [DefaultPassBuilder.define_nopython_pipeline(state)]

    return PartCompiler


def inlined(function: Callable[..., Any]) -> Any:
    """The same for a part of compiled functions: it is compiled with each that calls it, never alone.

    A call hands over every array of a tuple one by one, and a function's machine code is made again for each
    level of callers above it; this saves both.
    """
    from numba import njit

    return njit(inline="always", nogil=True, error_model="numpy")(function)


class _KeptCode:
    """What numba asks a function's cache, answered by one file for each signature.

    numba's own cache has an index beside numbered files, which processes that start together may leave at
    odds with each other: one signature's code was then called with another's arguments. It also reads its
    files as they are, wherever it may write, whoever wrote them.

    Guarantees:
        Code that is loaded was made from this function's source, for this signature, this processor and these
        versions of numba and Python, by this user. All else is compiled again; nothing here is an error.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    @property
    def cache_path(self) -> str | None:
        """Where the code is."""
        files = kept_code()
        return None if files is None else str(files.folder)

    def load_overload(self, signature: Any, target: Any) -> Any:
        """Code for a signature; None if there is none."""
        from numba.core.compiler import CompileResult
        from numba.core.runtime.nrt import rtsys

        rtsys.initialize(target)  # all that loaded code needs; what is compiled asks for the rest
        files = kept_code()
        name = self._name(signature, target.codegen())
        content = None if files is None or name is None else files.read(name)
        if content is None:
            return None
        with suppress(Exception):  # whatever it is, the code is made again
            found: Any = CompileResult._rebuild(target, *pickle.loads(content))
            if self._describes(found, signature):
                return found
        return None

    def save_overload(self, signature: Any, result: Any) -> None:
        """Keep code for a signature."""
        from numba.core.serialize import dumps

        files = kept_code()
        name = self._name(signature, result.codegen)
        if files is None or name is None or result.lifted or result.library.has_dynamic_globals:
            return
        with suppress(Exception):  # what cannot be pickled is made again
            files.write(name, dumps(result._reduce()))

    def _describes(self, found: Any, signature: Any) -> bool:
        own = (self._function.__module__, self._function.__qualname__, _arguments(signature))
        return (found.fndesc.modname, found.fndesc.qualname, tuple(found.signature.args)) == own

    def _name(self, signature: Any, codegen: Any) -> str | None:
        """Of the file; None for types that are of this process alone."""
        import numba
        from numba.core.serialize import dumps

        arguments = str(_arguments(signature))
        if " at 0x" in arguments:
            return None
        code = self._function.__code__
        cells = tuple(cell.cell_contents for cell in self._function.__closure__ or ())
        digest = sha256()
        for part in (
            self._function.__module__,
            self._function.__qualname__,
            str(code.co_firstlineno),
            arguments,
            repr(codegen.magic_tuple()),
            numba.__version__,
            sys.version,
        ):
            digest.update(part.encode() + b"\0")
        digest.update(sha256(code.co_code).digest() + dumps(cells))
        return digest.hexdigest()


def kept_code() -> KeptFiles | None:
    """Where machine code is: NUMBA_CACHE_DIR if that is set, else beside designs; None to keep nothing."""
    chosen = os.environ.get("NUMBA_CACHE_DIR", "")
    root = Path(chosen) if chosen else cache_directory()
    return None if root is None else KeptFiles(root, "code", _LARGEST, _MOST)


def _arguments(signature: Any) -> tuple[Any, ...]:
    from numba.core.sigutils import normalize_signature

    return tuple(normalize_signature(signature)[0])


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


@cache
def _contents(module: str) -> str:
    """A digest of a module's file and of those of its package that it imports, directly or not."""
    package = module.partition(".")[0]
    found: dict[Path, bytes] = {}
    waiting = [module]
    while waiting:
        path = _file(waiting.pop())
        if path is not None and path not in found:
            found[path], imported = _read(path, package)
            waiting.extend(imported)
    digest = sha256()
    for path in sorted(found):
        digest.update(found[path])
    return digest.hexdigest()[:16]


@cache
def _read(path: Path, package: str) -> tuple[bytes, tuple[str, ...]]:
    """A file's digest, and the names in it that may be modules of the package."""
    content = path.read_bytes()
    return sha256(content).digest(), tuple(_imported(content.decode(), package))


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
