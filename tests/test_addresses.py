"""Who reads that a page explains something can find it, with a checkout or without."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmf.addresses import REPOSITORY, SITE, linked, project_urls, published
from fedmf.cli.app import application, run
from fedmf.cli.configuration import CASES
from fedmf.version import __version__

ROOT = Path(__file__).resolve().parents[1]
NAMED = re.compile(r"\bdocs/([\w/-]+)\.md(#[\w-]+)?")
OF_A_CHECKOUT = re.compile(r"(?<!/)\bdocs/[\w/-]+\.md(?!\S* of the source distribution)")
HERE, ELSEWHERE = "https://host.example/owner/fedmf", "https://fedmf.example"
#: Texts that name a page and are linked where they are shown, or that name a file of the checkout.
SHOWN_LINKED = {
    "fedmf/accounting/composition/selection.py",
    "fedmf/runs/tables/mechanism_table.py",
    "fedmf/runs/tables/reference.py",
}


def named_in(path: Path) -> set[str]:
    return {f"docs/{found[1]}.md" for found in NAMED.finditer(path.read_text(encoding="utf-8"))}


def bare(source: str) -> Iterator[str]:
    """Texts of a program, docstrings aside, that name a page and do not go through ``linked``."""
    tree = ast.parse(source)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    passed = {
        id(argument)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "linked"
        for argument in node.args
    }
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
        if NAMED.search(text) and id(node) not in docstrings | passed:
            yield text


def test_every_page_that_the_package_names_exists() -> None:
    files = [*(ROOT / "fedmf").rglob("*.py"), *(ROOT / "configs").rglob("*.toml")]
    named = {page for path in files for page in named_in(path)} - {"docs/NAME.md"}  # any of them
    assert len(named) > 20
    assert [page for page in sorted(named) if not (ROOT / page).is_file()] == []


def test_no_error_names_a_page_that_only_a_checkout_has() -> None:
    """The command line links its own help, which another test looks at."""
    files = {path.relative_to(ROOT).as_posix(): path for path in (ROOT / "fedmf").rglob("*.py")}
    found = {
        name: texts
        for name, path in files.items()
        if not name.startswith("fedmf/cli/") and (texts := list(bare(path.read_text(encoding="utf-8"))))
    }
    assert found.keys() == SHOWN_LINKED
    assert list(bare("raise ValueError('see docs/x.md')")) == ["see docs/x.md"]


@pytest.mark.parametrize("command", ["", *(str(c.name) for c in application.registered_commands)])
def test_help_names_no_page_that_only_a_checkout_has(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "600")
    assert run([command, "--help"] if command else ["--help"]) == 0
    shown = capsys.readouterr().out
    assert OF_A_CHECKOUT.findall(shown) == []
    assert command or linked("docs/start.md") in shown


def test_a_configuration_to_start_from_says_where_its_pages_are(tmp_path: Path) -> None:
    for case in CASES:
        file = tmp_path / f"{case}.toml"
        assert run(["init", case, "--output", str(file)]) == 0
        assert file.read_text(encoding="utf-8").endswith(f"\n# Pages: {linked('docs/NAME.md')}\n")


def test_a_page_is_named_by_site_or_by_version_in_the_repository() -> None:
    text = "proved in docs/theory/noise.md#roots, and docs/deploy.md"
    assert linked(text, HERE, ELSEWHERE) == (
        f"proved in {ELSEWHERE}/theory/noise.html#roots, and {ELSEWHERE}/deploy.html"
    )
    at = f"{HERE}/blob/v{__version__}/docs"
    assert linked(text, HERE, "") == f"proved in {at}/theory/noise.md#roots, and {at}/deploy.md"
    assert linked("docs/deploy.md", "", "") == "docs/deploy.md of the source distribution"


def test_the_readme_of_an_index_has_no_link_into_a_checkout() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert published(readme, "", "") == readme
    for site in ("", ELSEWHERE):
        targets = re.findall(r"\]\(([^)]+)\)", published(readme, HERE, site))
        assert len(targets) == len(re.findall(r"\]\(([^)]+)\)", readme)) > 40
        assert [target for target in targets if not target.startswith(("https://", "#"))] == []
    pictures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", published(readme, HERE, ELSEWHERE))
    assert {re.sub(r"v[\d.]+.*", "", target) for target in pictures} == {f"{HERE}/raw/"}


def test_metadata_name_addresses_that_are_set_and_no_others() -> None:
    assert project_urls("", "") == {}
    assert project_urls("", ELSEWHERE) == {"Documentation": ELSEWHERE}
    assert set(project_urls(HERE, "")) == {"Source", "Issues", "Changelog"}


@pytest.mark.parametrize("address", [REPOSITORY, SITE])
def test_an_address_is_empty_or_whole(address: str) -> None:
    assert re.fullmatch(r"|https://[\w.-]+\.\w+(/[\w.~-]+)*", address)
