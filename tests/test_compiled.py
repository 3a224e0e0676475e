"""Machine code that is kept is that of today's source and one signature, by this user; else there is none."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmf.compiled import compiled

FILES = {
    "__init__.py": "",
    "constants.py": "OFFSET = 1.0\n",
    "inner.py": """
from fedmf.compiled import compiled
from kernels.constants import OFFSET

@compiled
def inner(x):
    return 2.0 * x + OFFSET
""",
    "face.py": """
from typing import TYPE_CHECKING

from fedmf.lazy import lazily

if TYPE_CHECKING:
    from kernels.inner import inner
else:
    __getattr__ = lazily(__name__)
""",
    "outer.py": """
from fedmf.compiled import compiled
from kernels.face import inner

@compiled
def outer(x):
    return 10.0 * inner(x)
""",
}
PROGRAM = """
from kernels.outer import outer
print(outer(3.0), sum(outer.stats.cache_hits.values()))
"""


def run(folder: Path) -> list[float]:
    """What the outer function finds, and how often it was found compiled."""
    path = os.pathsep.join([str(folder), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "NUMBA_CACHE_DIR": str(folder / "cache")}
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    return [float(word) for word in found.stdout.split()]


def test_kept_code_follows_every_file_it_was_made_from(tmp_path: Path) -> None:
    package = tmp_path / "kernels"
    package.mkdir()
    for name, text in FILES.items():
        (package / name).write_text(text)
    assert run(tmp_path) == [70.0, 0.0]
    assert run(tmp_path) == [70.0, 1.0]  # kept
    inner = package / "inner.py"
    inner.write_text(inner.read_text().replace("2.0", "4.0"))  # as long as before
    assert run(tmp_path) == [130.0, 0.0]
    (package / "constants.py").write_text("OFFSET = 2.0\n")
    assert run(tmp_path) == [140.0, 0.0]
    assert run(tmp_path) == [140.0, 1.0]


def fresh(function: Callable[..., Any]) -> Any:
    """The function as another process compiles it."""
    copy = types.FunctionType(function.__code__, function.__globals__, function.__name__)
    copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
    return compiled(copy)


def last(x: Any) -> Any:
    return x[-1]


SINGLE, DOUBLE = np.arange(3, dtype=np.float32), np.arange(3, dtype=np.float64)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    return tmp_path / f"code-{os.geteuid()}"


def files(folder: Path) -> set[Path]:
    return set(folder.iterdir()) if folder.exists() else set()


def hits(program: Any) -> int:
    return sum(program.stats.cache_hits.values())


def test_exchanged_and_damaged_files_are_compiled_again(folder: Path) -> None:
    fresh(last)(SINGLE)
    (single,) = files(folder)
    fresh(last)(DOUBLE)
    (double,) = files(folder) - {single}
    one, two = single.read_bytes(), double.read_bytes()
    for contents in ((two, one), (one[:-1], b""), (pickle.dumps(print), os.urandom(50))):
        single.write_bytes(contents[0])
        double.write_bytes(contents[1])
        program = fresh(last)
        assert (program(SINGLE), program(DOUBLE), hits(program)) == (2.0, 2.0, 0)
    program = fresh(last)
    assert (program(SINGLE), program(DOUBLE), hits(program)) == (2.0, 2.0, 2)
