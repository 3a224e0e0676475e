"""docs/project/coverage.md: what it names exists, every row says how far it goes, nothing is missing."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

import fedmf
from fedmf.cli.app import application
from fedmf.cohorts import COHORTS
from fedmf.data import DATASETS
from fedmf.factorization import names
from fedmf.models import MODELS
from fedmf.optim import OPTIMIZERS
from fedmf.runs.tables import keys

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "project" / "coverage.md").read_text(encoding="utf-8")
FOLDERS = ("tests", "simulations", "configs", "docs")


def rows() -> list[dict[str, str]]:
    """Of all tables, by the names in their heads."""
    found: list[dict[str, str]] = []
    head: list[str] = []
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not line.startswith("|"):
            head = []
        elif not head:
            head = cells
        elif not set(line) <= set("|-"):
            found.append(dict(zip(head, cells, strict=True)))
    return found


@cache
def defined() -> set[str]:
    """Every name that some module of the package gives to something, modules included."""
    given = set[str]()
    for file in (ROOT / "fedmf").rglob("*.py"):
        given |= {file.stem, file.parent.name}
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                given.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                given.add(node.id)
    return given


def is_known(quoted: str) -> bool:
    """A command, an option, a file, a key of a configuration, a mechanism, or a name of the package."""
    program, _, rest = quoted.partition(" ")
    if program == "fedmf":
        return rest.split()[0] in {command.name for command in application.registered_commands}
    if program == "make":
        return f"\n{rest}: " in (ROOT / "Makefile").read_text(encoding="utf-8")
    if program.startswith("--"):
        return f'"{program}"' in sources() or f"    {program[2:]}: " in sources()
    if program.startswith(tuple(f"{folder}/" for folder in FOLDERS)):
        return (ROOT / program).exists()
    base = re.split(r"[(\[= ]", quoted)[0].rstrip("…-")
    listed = {name for key in keys() for name in (key.name, f"{key.table}.{key.name}", f"[{key.table}]")}
    if base in listed | {*names(), *extras()} or quoted in listed | {"[trials]"}:
        return True
    return base.split(".")[-1] in defined() | {"normalized"}


@cache
def extras() -> set[str]:
    """What may be installed beside the package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return set(project["optional-dependencies"])


@cache
def sources() -> str:
    """The commands."""
    return "".join(file.read_text(encoding="utf-8") for file in (ROOT / "fedmf" / "cli").rglob("*.py"))


def test_every_row_has_a_test_or_a_script_and_says_how_far_it_goes() -> None:
    assert len(rows()) > 150
    for row in rows():
        assert re.match(r"(done|part|planned)\b", row["status"]), row
        assert row["test"] or row.get("script"), row


def test_files_and_names_exist() -> None:
    for path in re.findall(rf"`((?:{'|'.join(FOLDERS)})/[^` ]*)", PAGE):
        assert (ROOT / path).exists() or list(ROOT.glob(path)), path
    here = {file.name for file in (ROOT / "tests").rglob("test_*.py")}
    assert set(re.findall(r"`(test_\w+\.py)`", PAGE)) <= here
    named = {name for row in rows() for name in re.findall("`([^`]+)`", row["API name"])}
    assert sorted(name for name in named if not is_known(name)) == []


@pytest.mark.parametrize(
    "wrong", ["fedmf desing", "--worklod", "tests/none.py", "check_plan", "Runn", "make x"]
)
def test_a_name_that_does_not_exist_is_found(wrong: str) -> None:
    assert not is_known(wrong)


def test_nothing_on_offer_is_missing() -> None:
    quoted = " ".join(re.findall("`([^`]+)`", PAGE))
    offered = {name for name in fedmf.__all__ if not name.startswith("_")}
    for kinds in (DATASETS, MODELS, OPTIMIZERS, COHORTS):
        offered |= {kind.__name__ for kind in kinds.values()}
    assert sorted(name for name in offered if not re.search(rf"\b{name}\b", quoted)) == []
    mechanisms = {name.removeprefix("normalized-") for name in names()}
    missing = {name for name in mechanisms if name not in quoted and name.replace("-", "_") not in quoted}
    assert missing == set()
    assert [c.name for c in application.registered_commands if f"`fedmf {c.name}" not in PAGE] == []
