"""The shape of the package: which way imports point, who may import what, and how heavy a start-up is."""

from __future__ import annotations

import ast
import graphlib
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import directories

import fedmf

PACKAGE = Path(__file__).resolve().parents[1] / "fedmf"
MODULES = sorted(path for path in PACKAGE.rglob("*.py"))
MOST_LINES = 400

#: Rooms from the ground up; a room may import itself and rooms on lower floors, never its neighbours.
FLOORS = (
    {"errors", "lazy", "lines", "typing", "values", "version"},
    {"addresses", "functions", "kept_files", "participation"},
    {"compiled"},
    {"workload"},
    {"cohorts", "factorization"},
    {"accounting"},
    {"noise"},
    {"moments"},
    {"data", "models"},
    {"training"},
    {"optim"},
    {"parts"},
    {"statements"},
    {"records"},
    {"streaming"},
    {"runs"},
    {"rounds"},
    {"flower"},
    {"running"},
    {"audit", "sweeps"},
    {"report"},
    {"cli"},
    {"__main__"},
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}

#: Packages that only these rooms may import, and rooms whose other imports are limited to these packages.
ONLY_IN = {
    "flwr": {"flower"},
    "ray": {"flower"},
    "dp_accounting": {"accounting", "statements"},
    "jinja2": {"report", "statements"},
    "typer": {"cli"},
    "rich": {"cli", "flower"},
    "numba": {"compiled", "noise", "training"},
    "llvmlite": {"noise", "training"},
    "triton": {"noise", "training"},
    "peft": {"models"},
    "transformers": set(),
}
LIMITED = {
    "addresses": set(),
    "compiled": {"numba"},
    "errors": set(),
    "functions": set(),
    "kept_files": set(),
    "lazy": set(),
    "lines": set(),
    "typing": {"numpy"},
    "values": set(),
    "participation": set(),
    "version": set(),
    "workload": {"numpy"},
    "cohorts": {"numpy"},
    "factorization": {"numpy", "scipy", "threadpoolctl"},
    "accounting": {"numpy", "scipy", "dp_accounting"},
    "parts": {"numpy", "scipy", "torch"},
    "statements": {"numpy", "scipy", "dp_accounting", "jinja2"},
    "noise": {"numpy", "torch", "cryptography", "numba", "llvmlite", "triton"},
    "optim": {"numpy", "torch"},
    "streaming": {"numpy", "torch", "pyarrow"},
    "report": {"numpy", "pyarrow", "jinja2"},
}
#: Folders within a room that have a face of their own, from the ground up.
FOLDERS = {
    "factorization": (
        "algebra",
        "streaming",
        "matrices",
        "sensitivity",
        "objectives",
        "bounds",
        "mechanisms",
    ),
    "noise": ("key", "kernels", "source", "rows"),
    "accounting": ("gaussian", "deterministic", "amplification", "composition"),
}
MOST_FILES = 16
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
    if room == "__init__":  # the public face: names of rooms' faces, and nothing is loaded for them
        faces = {f"fedmf.{other}" for other in FLOOR} | {"typing"}
        imported = imports_of(source, path)
        return [
            f"{path.name}:{line} imports {name}"
            for line, name in imported
            if name.rpartition(".")[0] not in faces
        ]
    for line, name in imports_of(source, path):
        top, *rest = name.split(".")
        if top == "fedmf":
            wrong = not _points_down(room, rest) or _passes_a_face(path, name)
        elif top in sys.stdlib_module_names:
            wrong = False
        else:
            wrong = room not in ONLY_IN.get(top, {room}) or top not in LIMITED.get(room, {top})
        if wrong:
            found.append(f"{path.relative_to(PACKAGE)}:{line} imports {name}")
    return found


def _points_down(room: str, target: list[str]) -> bool:
    other = target[0] if target else "__init__"
    return other == room or FLOOR.get(other, len(FLOORS)) < FLOOR[room]


def _passes_a_face(path: Path, name: str) -> bool:
    """Whether an import reaches into another folder with a face of its own, past that face."""
    folder = path.relative_to(PACKAGE).parent.parts
    target = _folder_of(name)
    if target == folder[: len(target)]:  # its own folder, or one that it stands in
        return False
    module = PACKAGE.joinpath(*name.split(".")[1:-1])
    return module.with_suffix(".py").is_file() and len(target) > 0


def _folder_of(name: str) -> tuple[str, ...]:
    """The folder of the package that holds what is imported."""
    parts, folder = name.split(".")[1:], ()
    while parts and PACKAGE.joinpath(*folder, parts[0]).is_dir():
        folder, parts = (*folder, parts[0]), parts[1:]
    return folder


def test_folders_stay_small() -> None:
    folders = {path.parent for path in MODULES} - {PACKAGE}
    crowded = {str(folder.name): len(list(folder.glob("*.py"))) for folder in folders}
    assert {name: files for name, files in crowded.items() if files > MOST_FILES} == {}


@pytest.mark.parametrize("room", FOLDERS)
def test_folders_of_a_room_import_downwards(room: str) -> None:
    order = {folder: floor for floor, folder in enumerate(FOLDERS[room])}
    wrong = []
    for folder, floor in order.items():
        for path in (PACKAGE / room / folder).glob("*.py"):
            for line, name in imports_of(path.read_text(encoding="utf-8"), path):
                parts = name.split(".")
                other = order.get(parts[2], -1) if parts[:2] == ["fedmf", room] and len(parts) > 2 else -1
                if other > floor:
                    wrong.append(f"{path.relative_to(PACKAGE)}:{line} imports {name}")
    assert wrong == []


@pytest.mark.parametrize("folder", sorted({path.parent for path in MODULES}), ids=lambda folder: folder.name)
def test_no_name_of_a_face_is_that_of_a_module(folder: Path) -> None:
    """`from fedmf.data import digits` must not mean a module one day and a function the next."""
    face = (folder / "__init__.py").read_text(encoding="utf-8")
    exported = {
        alias for _, name in imports_of(face, folder / "__init__.py") for alias in name.split(".")[-1:]
    }
    assert exported & {path.stem for path in folder.iterdir()} == set()


def test_every_room_has_a_floor() -> None:
    assert {room_of(path) for path in MODULES} - {"__init__"} <= set(FLOOR)


def test_imports_only_point_downwards() -> None:
    found = [line for path in MODULES for line in violations(path.read_text(encoding="utf-8"), path)]
    assert found == []


def circle_of(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import one another in a ring; empty if there is none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_itself_through_others() -> None:
    """Imports within functions and for type checkers alone count too: a value does not know its verbs."""
    names = {
        ".".join(("fedmf", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in MODULES
    }
    graph = {}
    for name, path in names.items():
        found = (other for _, other in imports_of(path.read_text(encoding="utf-8"), path))
        imported = {other if other in names else other.rpartition(".")[0] for other in found}
        graph[name] = (imported & names.keys()) - {name, "fedmf"}
    assert circle_of(graph) == []
    assert len(circle_of({**graph, "fedmf.runs.run": {"fedmf.running"}})) > 2


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("records/ledger.py", "from fedmf.runs import Session"),
        ("runs/run.py", "def f():\n    from fedmf.flower import run_in_process"),
        ("records/ledger.py", "def f():\n    from fedmf import runs"),
        ("records/ledger.py", "from ..streaming import StreamRun"),
        ("records/ledger.py", "from fedmf.accounting.patterns import PatternTable"),
        ("accounting/release.py", "from fedmf.accounting.gaussian.calibration import gaussian_mu"),
        ("factorization/matrices/dense.py", "import fedmf.accounting"),
        ("factorization/matrices/dense.py", "import torch"),
        ("participation.py", "import numpy"),
        ("runs/server.py", "def f():\n    import flwr.common"),
        ("runs/plan.py", "from dp_accounting.pld import common"),
        ("accounting/comparison.py", "from fedmf.noise import NoiseKey"),
        ("training/local.py", "from fedmf import nonsense"),
        ("__init__.py", "import numpy"),
    ],
)
def test_a_forbidden_import_is_seen(module: str, source: str) -> None:
    assert len(violations(source, PACKAGE / module)) == 1


def test_files_stay_short() -> None:
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {path: count for path, count in lines.items() if count > MOST_LINES} == {}


DESIGN = "design --rounds 16 --max-participations 2 --min-separation 8 --epsilon 8 --delta 1e-5"
COMMANDS = {
    "help": ["--help"],
    "simulate-help": ["simulate", "--help"],
    "stream-help": ["stream", "--help"],
    "sweep-help": ["sweep", "--help"],
    "init-help": ["init", "--help"],
    "report-help": ["report", "--help"],
    "design-identity": [*DESIGN.split(), "--mechanism", "identity", "--json"],
    "design-all": [*DESIGN.split(), "--json"],
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
        timeout=600,
        check=True,
        cwd=tmp_path,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [0, []]


def test_accounting_for_a_run_loads_no_framework(tmp_path: Path) -> None:
    """The second accountant is all that it adds to the light commands."""
    with directories.create(tmp_path / "run") as opened:
        for t in range(3):
            directories.commit(opened, t, float(t))
    heavy = [name for name in HEAVY if not name.startswith(("dp_accounting", "scipy"))]
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            PROBE,
            json.dumps(["account", str(tmp_path / "run"), "--json"]),
            json.dumps(heavy),
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
        cwd=tmp_path,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [0, []]


def test_importing_the_public_face_loads_nothing_but_itself(tmp_path: Path) -> None:
    probe = (
        "import sys, fedmf; print(sorted(m for m in sys.modules if m.startswith('fedmf.') or m == 'numpy'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.strip() == "['fedmf.lazy', 'fedmf.version']"


def test_the_public_face() -> None:
    assert [name for name in fedmf.__all__ if not hasattr(fedmf, name)] == []
    with pytest.raises(AttributeError, match="module 'fedmf' has no attribute 'Runn'"):
        _ = fedmf.Runn  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "room", sorted({path.parent.name for path in MODULES if path.parent.parent == PACKAGE} - {"cli"})
)
def test_packages_export_what_they_name(room: str) -> None:
    module = importlib.import_module(f"fedmf.{room}")
    assert len(set(module.__all__)) == len(module.__all__)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []
