"""The documentation as a site: built strictly, loading nothing, with lists and formulas laid out."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import fedmf

ROOT = Path(__file__).parents[1]
#: Pages of the reference, and the name with which each begins.
LED = {
    "fedmf": "fedmf.Run",
    "fedmf.flower": "fedmf.flower.CorrelatedNoise",
    "fedmf.streaming": "fedmf.streaming.PrivateStream",
    "fedmf.accounting": "fedmf.accounting.design",
}


class Loads(HTMLParser):
    """What a page loads, and its paragraphs of text outside code."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.paragraphs: list[str] = []
        self.inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if tag in ("script", "img", "iframe", "source", "video") and named.get("src"):
            self.loaded.append(str(named["src"]))
        if tag == "link" and named.get("rel") not in ("canonical", "next", "prev"):
            self.loaded.append(str(named.get("href")))
        if tag == "p":
            self.inside = True
            self.paragraphs.append("")
        self.inside = self.inside and tag not in ("code", "table", "pre")

    def handle_endtag(self, tag: str) -> None:
        self.inside = (self.inside or tag == "code") and tag != "p"

    def handle_data(self, data: str) -> None:
        if self.inside and self.paragraphs:
            self.paragraphs[-1] += data


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site; a broken link or anchor or a bad docstring is an error."""
    place = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    command += ["--config-file", str(ROOT / "docs/site/mkdocs.yml"), "--site-dir", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    return place


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Loads]:
    return {page: Loads(page.read_text("utf-8")) for page in site.rglob("*.html")}


def test_pages_load_nothing_from_elsewhere(site: Path, pages: dict[Path, Loads]) -> None:
    assert len(pages) > 80
    for page, content in pages.items():
        assert len(content.loaded) >= 4
        assert [src for src in content.loaded if re.match(r"(https?:)?//", src)] == [], page
    for sheet in site.rglob("*.css"):
        assert re.findall(r"url\([\"']?(?:https?:)?//[^)]*", sheet.read_text("utf-8")) == [], sheet


def test_lists_and_examples_are_not_run_into_paragraphs(pages: dict[Path, Loads]) -> None:
    """Python's Markdown wants an empty line before a list, and a fence around ``>>>``."""
    for page, content in pages.items():
        for text in content.paragraphs:
            assert not re.search(r"^(\* |1\. |>>>|```)", text, re.MULTILINE), (page, text)


def test_subscripts_are_not_taken_for_emphasis(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert re.findall(r"<em[^>]*>[^<]*[\]{}=][^<]*</em>|<em [^>]*>", page.read_text("utf-8")) == [], page


def test_formulas_are_laid_out_without_a_script(site: Path) -> None:
    theory = (site / "theory/index.html").read_text("utf-8")
    assert theory.count("<math") >= 10
    assert 'display="block"' in theory
    assert "arithmatex" not in theory.partition("<article")[2]
    assert [text for text in Loads(theory).paragraphs if "$" in text] == []


def test_the_reference_has_every_public_name(site: Path) -> None:
    reference = (site / "api/fedmf.html").read_text("utf-8")
    names = [name for name in fedmf.__all__ if not name.startswith("__")]
    assert [name for name in names if f'id="fedmf.{name}"' not in reference] == []


def test_the_search_knows_pages_notebooks_and_reference(site: Path) -> None:
    index = (site / "search/search_index.json").read_text("utf-8")
    for place in (
        "start.html",
        "notebooks/first-federation.html",
        "api/fedmf.flower.html",
        "project/errata.html",
    ):
        assert f'"location":"{place}' in index


@pytest.mark.parametrize(
    ("asked", "place"),
    [
        ("clip norm", "choose.html"),
        ("W&B", "python.html"),
        ("pandas", "python.html"),
        ("bandmf", "glossary.html"),
        ("GPU", "simulation.html"),
    ],
)
def test_what_people_ask_for_is_found_where_it_helps(site: Path, asked: str, place: str) -> None:
    """Every word of it, as it is typed, in one section of the page."""
    sections = json.loads((site / "search/search_index.json").read_text("utf-8"))["docs"]
    found = [
        section["location"].partition("#")[0]
        for section in sections
        if all(
            re.search(rf"\b{word}\b", section["title"] + " " + section["text"], re.IGNORECASE)
            for word in asked.split()
        )
    ]
    assert place in found


def test_every_page_says_for_whom_it_is(site: Path) -> None:
    """In what stands before its first section; the start page does by its table of trails."""
    sections = json.loads((site / "search/search_index.json").read_text("utf-8"))["docs"]
    tops = {section["location"]: section["text"] for section in sections if "#" not in section["location"]}
    assert len(tops) > 120
    silent = [place for place, text in tops.items() if not re.search(r"\b[Ff]or \w", text[:400])]
    assert silent in ([], ["index.html"])


def test_the_reference_is_led_by_what_people_come_for(site: Path) -> None:
    order = [
        re.findall(r'<h3 id="([^"]+)"', (site / f"api/{page}.html").read_text("utf-8"))[0] for page in LED
    ]
    assert order == list(LED.values())
    assert all(name in (site / "api/index.html").read_text("utf-8") for name in LED.values())
