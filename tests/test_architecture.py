"""The shape of the package: imports point down; light commands load nothing heavy."""

from __future__ import annotations

import ast
import io
import json
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedmf

PACKAGE = Path(__file__).resolve().parents[1] / "fedmf"
MODULES = sorted(PACKAGE.rglob("*.py"))
#: Rooms from the ground up; a room may import itself and rooms on lower floors, never its
#: neighbors.
FLOORS = (
    {"errors", "figures", "lazy", "lines", "values", "version"},
    {"functions", "participation"},
    {"matrices"},
    {"noise"},
    {"accounting", "clipping", "ledger"},
    {"cohorts", "release"},
    {"mechanisms"},
    {"moments"},
    {"data", "models"},
    {"training"},
    {"optim"},
    {"statements"},
    {"streaming"},
    {"runs"},
    {"flower"},
    {"sweeps"},
    {"cli"},
    {"__main__"},
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
#: Packages that only these rooms may import: whoever does without the extra has the rest.
ONLY_IN = {
    "flwr": {"flower"},
    "ray": {"flower"},
    "dp_accounting": {"accounting"},
    "typer": {"cli"},
    "rich": {"cli", "flower", "runs"},
    "triton": {"clipping"},
    "peft": {"models"},
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
    "dp_accounting",
    "scipy.stats",
)


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
    """What a module imports and should not; the public face names rooms' faces and loads none."""
    room = path.relative_to(PACKAGE).with_suffix("").parts[0]
    found = []
    for line, name in imports_of(source, path) if room != "__init__" else ():
        top, *rest = name.split(".")
        other = rest[0] if rest else "__init__"
        up = top == "fedmf" and other != room and FLOOR.get(other, len(FLOORS)) >= FLOOR[room]
        if up or room not in ONLY_IN.get(top, {room}):
            found.append(f"{path.relative_to(PACKAGE)}:{line} imports {name}")
    return found


def test_imports_only_point_downwards() -> None:
    assert [
        line for path in MODULES for line in violations(path.read_text(encoding="utf-8"), path)
    ] == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("ledger/ledger.py", "def f():\n    from fedmf import runs"),
        ("ledger/ledger.py", "from ..streaming import StreamRun"),
        ("release/plan.py", "def f():\n    import flwr.common"),
    ],
)
def test_a_forbidden_import_is_seen(module: str, source: str) -> None:
    assert len(violations(source, PACKAGE / module)) == 1


def graph() -> dict[str, set[str]]:
    """Which modules each module imports, wherever in it and for whatever purpose."""
    names = {}
    for path in MODULES:
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        names[path] = ".".join(parts).removesuffix(".__init__")
    known = set(names.values())
    found = {name: set[str]() for name in known}
    for path, name in names.items():
        if name == "fedmf":  # the public face, which loads what it names on demand
            continue
        for _, imported in imports_of(path.read_text(encoding="utf-8"), path):
            target = imported if imported in known else imported.rpartition(".")[0]
            found[name] |= {target} & (known - {name})
    return found


def circle_of(imports: dict[str, set[str]]) -> list[str]:
    """Modules that import one another, directly or through others: what is left without leaves."""
    left = {name: set(others) for name, others in imports.items()}
    while leaves := [name for name, others in left.items() if not others & left.keys()]:
        for leaf in leaves:
            del left[leaf]
    while tops := left.keys() - set().union(*left.values()):
        for top in tops:
            del left[top]
    return sorted(left)


def test_no_modules_import_one_another() -> None:
    assert circle_of(graph()) == []


def test_a_circle_is_seen() -> None:
    imports = graph()
    imports["fedmf.release.plan"].add("fedmf.release.private_server")
    assert "fedmf.release.plan" in circle_of(imports)


LOADED = """
import importlib, json, sys
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
print(json.dumps(sorted({name.split(".")[1] for name in sys.modules if name.startswith("fedmf.")})))
"""
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
#: All that a release may rest on.
CORE = {
    "accounting",
    "clipping",
    "errors",
    "ledger",
    "matrices",
    "noise",
    "participation",
    "release",
}
#: What the core still loads in addition.
LOADED_TOO = {"lazy", "version"}


#: Code lines of the core, and of what a run on a processor without amplification needs of it. What
#: grows must take something else out, or say here why it is worth an auditor's time.
#: 40 lines: `StreamServer.release_means` bounds what a user adds to a period.
#: Numbers that users report took 30 lines: they are functions of no update, and have a bound of
#: their own.
#: 15 lines: `Histories.record_round` reads a round in arrays, so that a run of 10⁷ participations
#: is opened in seconds.
#: 40 lines: `noise/jit.py` imports numba when it compiles, and compiles no type and no wrapper that
#: a run does not use. The first run of a machine then compiles in three quarters of the time.
#: 40 lines: each commit has the digests of the released files, so that a statement names the files
#: that it is about, and a run continues with no others.
CORE_LINES = 8580
PLAIN_CORE_LINES = 6680
#: Read only where a statement relies on secret cohorts, or where sums are made on a GPU.
SELDOM_READ = {
    "balls_in_bins",
    "balls_in_bins_draws",
    "equal_bins",
    "gpu",
    "gpu_kernels",
    "min_separated",
    "min_separated_law",
    "monte_carlo",
    "noise_level",
    "poisson",
    "sampled_cohorts",
    "sampling",
}


def code_lines(source: str) -> int:
    """Count lines with code: no comments, docstrings or blank lines."""
    tree = ast.parse(source)
    lines = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(lines)


def test_the_core_stays_within_its_budget() -> None:
    total = 0
    plain = 0
    for path in MODULES:
        if path.relative_to(PACKAGE).with_suffix("").parts[0] in CORE:
            lines = code_lines(path.read_text())
            total += lines
            plain += lines * (path.stem not in SELDOM_READ)
    assert total <= CORE_LINES
    assert plain <= PLAIN_CORE_LINES


def test_release_loads_the_core_alone() -> None:
    modules = [f"fedmf.release.{path.stem}" for path in (PACKAGE / "release").glob("[a-z]*.py")]
    arguments = [sys.executable, "-c", LOADED, json.dumps(modules)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=600, check=True)
    assert set(json.loads(done.stdout)) - LOADED_TOO == CORE


PROBE = """
import json, sys
from fedmf.cli.app import run
code = run(json.loads(sys.argv[1]))
print(json.dumps([code, [name for name in json.loads(sys.argv[2]) if name in sys.modules]]))
"""
DESIGN = (
    "design --rounds 16 --max-participations 2 --min-separation 8 --epsilon 8 --delta 1e-5 --json"
)


@pytest.mark.parametrize("command", ["--help", "simulate --help", f"{DESIGN} --mechanism bsr"])
def test_light_commands_load_nothing_heavy(command: str, tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", PROBE, json.dumps(command.split()), json.dumps(HEAVY)]
    done = subprocess.run(
        arguments, capture_output=True, text=True, timeout=600, check=True, cwd=tmp_path
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [0, []]


def test_the_public_face_has_what_it_names() -> None:
    assert [name for name in dir(fedmf) if not hasattr(fedmf, name)] == []
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")} - {"cli"}
    assert [name for name in dir(fedmf) if name not in packages] == fedmf.__all__
    assert packages < set(dir(fedmf))
    with pytest.raises(AttributeError, match="module 'fedmf' has no attribute 'Runn'"):
        _ = fedmf.Runn  # type: ignore[attr-defined]
