"""The shape of the package: which way imports point, who may import what, and how heavy a start-up is."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "fedmf"
MODULES = sorted(path for path in PACKAGE.rglob("*.py"))
MOST_LINES = 330

#: Rooms from the ground up; a room may import itself and rooms on lower floors, never its neighbours.
FLOORS = (
    {"participation", "version", "workload"},
    {"cohorts", "factorization"},
    {"accounting"},
    {"design", "noise"},
    {"moments"},
    {"optim", "streaming"},
    {"training"},
    {"runs"},
    {"flower"},
    {"report"},
    {"cli"},
    {"__main__"},
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}

#: Packages that only these rooms may import, and rooms whose other imports are limited to these packages.
ONLY_IN = {
    "flwr": {"flower"},
    "ray": {"flower"},
    "dp_accounting": {"accounting"},
    "jinja2": {"accounting"},
    "typer": {"cli"},
    "rich": {"cli"},
    "numba": {"noise"},
    "llvmlite": {"noise"},
    "triton": {"noise"},
}
LIMITED = {
    "participation": set(),
    "version": set(),
    "workload": {"numpy"},
    "cohorts": {"numpy"},
    "factorization": {"numpy", "scipy", "threadpoolctl"},
    "design": {"numpy", "scipy"},
    "accounting": {"numpy", "scipy", "dp_accounting", "jinja2"},
    "noise": {"numpy", "torch", "cryptography", "numba", "llvmlite", "triton"},
    "optim": {"numpy", "torch"},
    "streaming": {"numpy", "torch", "pyarrow"},
}
HEAVY = (
    "torch",
    "numba",
    "triton",
    "ray",
    "flwr",
    "pandas",
    "sklearn",
    "matplotlib",
    "scipy.stats",
    "scipy.signal",
    "dp_accounting",
    "jinja2",
)


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imports_of(source: str, path: Path) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything a module imports, wherever in the module it does."""
    folder = ("fedmf", *path.relative_to(PACKAGE).parent.parts)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(folder[: len(folder) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def violations(source: str, path: Path) -> list[str]:
    """What a module imports and should not."""
    room, found = room_of(path), []
    if room == "__init__":
        return [f"{path.name}:{line} imports {name}" for line, name in imports_of(source, path)]
    for line, name in imports_of(source, path):
        top, *rest = name.split(".")
        if top == "fedmf":
            target = rest[0] if rest else "__init__"
            wrong = target != room and FLOOR.get(target, len(FLOORS)) >= FLOOR[room]
        elif top in sys.stdlib_module_names:
            wrong = False
        else:
            wrong = room not in ONLY_IN.get(top, {room}) or top not in LIMITED.get(room, {top})
        if wrong:
            found.append(f"{path.relative_to(PACKAGE)}:{line} imports {name}")
    return found


def test_every_room_has_a_floor() -> None:
    assert {room_of(path) for path in MODULES} - {"__init__"} <= set(FLOOR)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_only_point_downwards(path: Path) -> None:
    assert violations(path.read_text(encoding="utf-8"), path) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("accounting/ledger.py", "from fedmf.training import clip"),
        ("accounting/ledger.py", "def f():\n    from fedmf import runs"),
        ("accounting/ledger.py", "from ..training import clip"),
        ("factorization/base.py", "import fedmf.accounting"),
        ("factorization/base.py", "import torch"),
        ("participation.py", "import numpy"),
        ("runs/server.py", "def f():\n    import flwr.common"),
        ("runs/plan.py", "from dp_accounting.pld import common"),
        ("design.py", "from fedmf.noise import NoiseKey"),
        ("training/local.py", "from fedmf import nonsense"),
        ("__init__.py", "import numpy"),
    ],
)
def test_a_forbidden_import_is_seen(module: str, source: str) -> None:
    assert len(violations(source, PACKAGE / module)) == 1


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_stay_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES


DESIGN = "design --rounds 64 --max-participations 4 --min-separation 16 --epsilon 8 --delta 1e-5"
COMMANDS = {
    "help": ["--help"],
    "simulate-help": ["simulate", "--help"],
    "stream-help": ["stream", "--help"],
    "design-identity": [*DESIGN.split(), "--mechanism", "identity", "--json"],
    "design-closed-forms": [*DESIGN.split(), "--mechanism", "square-root", "--mechanism", "bsr", "--json"],
}
PROBE = """
import json, sys
from fedmf.cli.app import run
code = run(json.loads(sys.argv[1]))
print(json.dumps([code, [name for name in json.loads(sys.argv[2]) if name in sys.modules]]))
"""


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_light_commands_load_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(arguments), json.dumps(HEAVY)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        cwd=tmp_path,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [0, []]


@pytest.mark.parametrize(
    "room", ["factorization", "accounting", "noise", "optim", "streaming", "training", "cli"]
)
def test_packages_export_what_they_name(room: str) -> None:
    module = importlib.import_module(f"fedmf.{room}")
    assert len(set(module.__all__)) == len(module.__all__)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []
