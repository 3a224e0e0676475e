"""Machine code that is kept is that of today's source, of whatever file it came from."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
    "outer.py": """
from fedmf.compiled import compiled
from kernels.inner import inner

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
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
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
