"""What MkDocs cannot do by itself: pages outside docs/, notebooks, the reference, MathML.

MkDocs calls the functions named ``on_...`` while it builds.
"""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from markdown import Extension, Markdown
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
#: Pages outside docs/, and their place in the site.
TOP = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    ".github/SECURITY.md": "security.md",
}
#: Rooms whose public names are the reference: those that users come to first, then by what they do.
ROOMS = tuple(
    f"fedmf.{room}"
    for room in [
        "flower",
        "streaming",
        "accounting",
        "runs",
        "training",
        "data",
        "models",
        "cohorts",
        "optim",
        "mechanisms",
        "noise",
        "moments",
        "sweeps",
    ]
)
OUTWARDS = re.compile(rf"\]\(((?:\.\./)*)\.\./({'|'.join(map(re.escape, TOP))})")
#: Links to notebooks lead to the pages that are made of them.
NOTEBOOK = re.compile(r"(\]\([^)]*)\.ipynb\b")
#: Titles of pages that a script writes without one.
TITLES = {
    "bandmf-claims": "BandMF: numbers in the text",
    "compare_mechanisms": "Mechanisms on digits",
    "gamma-bifr": "γ-BIFR: comparison without amplification",
    "gamma-bifr-amplified": "γ-BIFR: amplified comparisons",
    "gamma-bifr-gammas": "γ-BIFR: best γ",
    "optimizers-v-error": "Optimizers: error of v",
    "table4": "DP-λCGD: Table 4",
    "table4-amplified": "DP-λCGD: Table 4, amplified",
}
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
ESCAPED = re.compile(r"\b([A-Z])&amp;([A-Z])\b")


class PlainUnderscores(Extension):
    """Underscores are subscripts, never emphasis: in ``[C]_{uv} − [C]_{uv}`` two would make a
    pair.
    """

    def extendMarkdown(self, md: Markdown) -> None:
        """Leave emphasis to asterisks."""
        md.delimiters.remove("_")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List results and the reference in the navigation, and leave underscores alone."""
    config.markdown_extensions.append(PlainUnderscores())
    for section in config.nav or []:
        for name, entries in section.items():
            section[name] = [page for entry in entries for page in _expanded(entry)]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the top folder, the list of results and the reference."""
    for source, place in TOP.items():
        files.append(
            File.generated(config, place, content=page_of_top((ROOT / source).read_text("utf-8")))
        )
    for path in sorted((ROOT / "docs/tutorials").glob("*.ipynb")):
        page = page_of_notebook(json.loads(path.read_text("utf-8")), path.name)
        files.append(File.generated(config, f"tutorials/{path.stem}.md", content=page))
    rows = [f"* [{title}]({uri.partition('/')[2]})" for title, uri in titles("results")]
    text = (
        "# Results\n\nWhat was measured or computed, each page with its command.\n\n"
        + "\n".join(rows)
        + "\n"
    )
    files.append(File.generated(config, "results/index.md", content=text))
    for room in ("fedmf", *ROOMS):
        files.append(File.generated(config, f"api/{room}.md", content=f"# {room}\n\n::: {room}\n"))
    return files


def titles(folder: str) -> list[tuple[str, str]]:
    """Title and place of each page of a folder and of the folders in it."""
    found = []
    for path in sorted((ROOT / "docs" / folder).rglob("*.md")):
        head = re.match(r"# (.+)", path.read_text("utf-8"))
        title = head[1] if head else TITLES.get(path.stem, path.stem)
        found.append((title, path.relative_to(ROOT / "docs").as_posix()))
    return found


def _expanded(entry: Any) -> list[Any]:
    if entry == "api":
        return [{room: f"api/{room}.md"} for room in ("fedmf", *ROOMS)]
    if entry == "results":
        return ["results/index.md", *({title: uri} for title, uri in titles("results"))]
    return [entry]


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links to pages outside docs/ and to notebooks lead to their place, and a search finds guides
    before the reference, results and changes.
    """
    if page.url.startswith(("api/", "results/", "changelog")):
        page.meta["search"] = {"boost": 0.1}
    return NOTEBOOK.sub(
        r"\1.md", OUTWARDS.sub(lambda found: f"]({found[1]}{TOP[found[2]]}", markdown)
    )


def on_page_content(content: str, **_: Any) -> str:
    """Formulas become MathML, which browsers lay out themselves."""
    return FORMULA.sub(
        lambda found: convert(
            html.unescape(found[2]), display="block" if found[1] == "div" else "inline"
        ),
        content,
    )


@event_priority(-100)  # the index is written by a plugin's function of this name
def on_post_build(config: MkDocsConfig) -> None:
    """Names such as W&B are found as they are typed: the index has HTML, where they are escaped."""
    index = Path(config.site_dir) / "search" / "search_index.json"
    index.write_text(ESCAPED.sub(r"\1&\2", index.read_text("utf-8")), "utf-8")


def page_of_top(text: str) -> str:
    """A page outside docs/ with its links as seen from docs/."""
    text = text.replace("](../docs/", "](").replace("](docs/", "](")
    text = text.replace("[CITATION.cff](CITATION.cff)", "`CITATION.cff`")
    for source, place in TOP.items():
        text = text.replace(f"]({source}", f"]({place}")
    return text


def page_of_notebook(notebook: dict[str, Any], name: str) -> str:
    """The cells of a notebook as Markdown, with the text and pictures that were stored of their
    outputs.
    """
    parts: list[str] = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        command = source.startswith("!")
        file = source.startswith("%%writefile")
        language = "console" if command else "toml" if file else "python"
        parts.append(f"```{language}\n{'$ ' + source[1:] if command else source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            text = "".join(output.get("text", data.get("text/plain", "")))
            if "image/png" in data:
                parts.append(
                    f"![output](data:image/png;base64,{''.join(data['image/png'].split())})"
                )
            elif text.strip():
                parts.append(f"```text\n{text.rstrip()}\n```")
    title, _, rest = "\n\n".join(parts).partition("\n")
    note = (
        f'*This page is <a href="{name}" download>a notebook</a>, which you can download and run.*'
    )
    return f"{title}\n\n{note}\n{rest}\n"
