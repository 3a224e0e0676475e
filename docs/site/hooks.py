"""What MkDocs cannot do by itself: pages from outside docs/, notebooks, formulas without a script.

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

import fedmf
from fedmf.addresses import SITE

ROOT = Path(__file__).parents[2]
#: Pages that a checkout has at its top, and their place in the site.
TOP = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
#: In the order in which they are read.
NOTEBOOKS = [
    ROOT / "docs" / "notebooks" / f"{name}.ipynb"
    for name in ("first-federation", "compare-mechanisms", "flower-app", "running-covariance")
]
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
        "factorization",
        "workload",
        "noise",
        "moments",
        "sweeps",
        "report",
    ]
)
#: What the reference begins with: the name, and what it is for.
ENTRANCES = {
    "fedmf.Run": "describe a training run, then `simulate`, `plan`, `resume` it",
    "fedmf.flower.CorrelatedNoise": "make the strategy of a Flower app private",
    "fedmf.streaming.PrivateStream": "release means and covariances of rows that keep coming",
    "fedmf.accounting.design": "compare mechanisms before anything is trained",
}
#: The face of the package, in the order in which its names are met; a name that no group has comes last.
GROUPS = {
    "A run": "Run simulate start resume plan load load_run load_model account PrivacyStatement",
    "What a run is made of": (
        "Classification Task Digits InMemoryDataset Mlp CyclicCohorts BallsInBinsCohorts Participation "
        "UserLevel ExampleLevel NoPrivacy NamedMechanism NoiseMechanism Sgd JmeAdam LocalSGD Execution"
    ),
    "Streams": "PrivateStream MomentStream",
    "Mechanisms compared": "design",
    "Other programs": "PrivateAggregator",
    "Released beside the model": "PrivateEvaluation QuantileClipping OwnStatistic",
    "Observers and early stops": "Checkpoints TensorBoard TargetReached NoProgress",
    "Sweeps": "Sweep load_sweep carry_out",
}
#: For whom the pages of a folder are that do not say so themselves.
READERS = {
    "results/": "For whoever checks a figure or cites it; the command that makes the page is on it.",
    "decisions/": "For contributors, and whoever asks why something is as it is.",
    "papers/": "For authors and readers of the paper who look for one of its items.",
    "notebooks/": "For beginners who would rather run cells than read.",
    "api/": "For whoever writes Python with fedmf.",
    "project/coverage": "For researchers and contributors who look for an item of a paper.",
    "project/errata": "For authors and readers of the papers.",
    "changelog": "For whoever upgrades.",
    "contributing": "For contributors.",
}
#: Folders of which every page is in the navigation, and what their first page says.
FOLDERS = {
    "decisions": "Why fedmf is as it is: what was chosen, what was not, and what was measured.",
    "results": "What was measured or computed, each page with the command that makes it.",
}
OUTWARDS = re.compile(rf"\]\(((?:\.\./)*)\.\./({'|'.join(TOP)})")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
ESCAPED = re.compile(r"\b([A-Z])&amp;([A-Z])\b")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class PlainUnderscores(Extension):
    """Underscores are subscripts, never emphasis: in ``[C]_{uv} − [C]_{uv}`` two would make a pair."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Leave emphasis to asterisks."""
        md.delimiters.remove("_")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List folders' pages and the reference in the navigation, and leave underscores alone."""
    config.markdown_extensions.append(PlainUnderscores())
    config.site_url = f"{SITE}/" if SITE else None
    for section in config.nav or []:
        for name, entries in section.items():
            section[name] = [page for entry in entries for page in _expanded(entry)]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the top folder, and each notebook as a page."""
    for source, place in TOP.items():
        files.append(File.generated(config, place, content=page_of_top((ROOT / source).read_text("utf-8"))))
    for path in NOTEBOOKS:
        place = f"notebooks/{path.stem}.md"
        files.append(File.generated(config, place, content=page_of_notebook(path)))
    for folder, purpose in FOLDERS.items():
        rows = [f"* [{title}]({uri.partition('/')[2]})" for title, uri in titles(folder)]
        text = f"# {folder.capitalize()}\n\n{purpose}\n\n" + "\n".join(rows) + "\n"
        files.append(File.generated(config, f"{folder}/index.md", content=text))
    reference = {"index": overview(), "fedmf": face()} | {room: page_of_room(room) for room in ROOMS}
    for name, text in reference.items():
        files.append(File.generated(config, f"api/{name}.md", content=text))
    return files


def overview() -> str:
    """The first page of the reference: where to enter, then all rooms."""
    rows = []
    for name, purpose in ENTRANCES.items():
        room, _, short = name.rpartition(".")
        rows.append(f"| [`{short}`]({room}.md#{name}) | {purpose} |")
    rooms = [f"* [{room}]({room}.md)" for room in ("fedmf", *ROOMS)]
    table = ["| name | what for |", "|---|---|", *rows]
    return "\n".join(["# Reference", "", *table, "", "All public names, by room:", "", *rooms, ""])


def face() -> str:
    """The package's own names, by what they are for."""
    parts = ["# fedmf", "::: fedmf\n    options:\n      members: false"]
    grouped = {title: names.split() for title, names in GROUPS.items()}
    placed = {name for names in grouped.values() for name in names}
    grouped["More"] = [n for n in fedmf.__all__ if n not in placed and not n.startswith("_")]
    for title, names in grouped.items():
        parts += [f"## {title}"] * bool(names)
        parts += [shown(f"fedmf.{name}") for name in names]
    return "\n\n".join(parts) + "\n"


def page_of_room(room: str) -> str:
    """What users come for, then the room's other names."""
    led = [name for name in ENTRANCES if name.rpartition(".")[0] == room]
    if not led:
        return f"# {room}\n\n::: {room}\n"
    hidden = [f"!^{name.rpartition('.')[2]}$" for name in led]
    rest = f"::: {room}\n    options:\n      filters: {json.dumps(['!^_', *hidden])}\n"
    return "\n\n".join([f"# {room}", *map(shown, led), "## More of this room", rest])


def shown(name: str) -> str:
    """One name with a heading of its own."""
    options = "show_root_heading: true\n      show_root_toc_entry: true\n      heading_level: 3"
    return f"::: {name}\n    options:\n      {options}"


def titles(folder: str) -> list[tuple[str, str]]:
    """Title and place of each page of a folder and of the folders in it."""
    found = []
    for path in sorted((ROOT / "docs" / folder).rglob("*.md")):
        head = re.match(r"# (.+)", path.read_text("utf-8"))
        title = head[1] if head else path.stem.replace("-", " ").replace("_", " ").capitalize()
        found.append((title, path.relative_to(ROOT / "docs").as_posix()))
    return found


def _expanded(entry: Any) -> list[Any]:
    if entry == "notebooks":
        return [{_title(path): f"notebooks/{path.stem}.md"} for path in NOTEBOOKS]
    if entry == "others":
        placed = Path(__file__).with_name("mkdocs.yml").read_text("utf-8")
        return [{title: uri} for title, uri in titles(".") if "/" not in uri and uri not in placed]
    if entry == "api":
        return ["api/index.md", *({room: f"api/{room}.md"} for room in ("fedmf", *ROOMS))]
    if isinstance(entry, str) and entry in FOLDERS:
        return [f"{entry}/index.md", *({title: uri} for title, uri in titles(entry))]
    if isinstance(entry, dict):
        return [
            {k: [p for e in v for p in _expanded(e)] if isinstance(v, list) else v for k, v in entry.items()}
        ]
    return [entry]


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Readers are named; links to pages of the top folder and to notebooks lead to their place."""
    whom = next((text for place, text in READERS.items() if page.file.src_uri.startswith(place)), None)
    if whom is not None:
        markdown = re.sub(r"\A((?:# .+\n)?)", rf"\1\n*{whom}*\n\n", markdown)
    inside = OUTWARDS.sub(lambda found: f"]({found[1]}{TOP[found[2]]}", markdown)
    return re.sub(r"(\]\([./]*notebooks/[a-z-]+)\.ipynb\)", r"\1.md)", inside)


def on_page_content(content: str, **_: Any) -> str:
    """Formulas become MathML, which browsers lay out themselves."""
    return FORMULA.sub(
        lambda found: convert(html.unescape(found[2]), display="block" if found[1] == "div" else "inline"),
        content,
    )


@event_priority(-100)  # the index is written by a plugin's function of this name
def on_post_build(config: MkDocsConfig) -> None:
    """Names such as W&B are found as they are typed: the index has HTML, where they are escaped."""
    index = Path(config.site_dir) / "search" / "search_index.json"
    index.write_text(ESCAPED.sub(r"\1&\2", index.read_text("utf-8")), "utf-8")


def page_of_top(text: str) -> str:
    """A page of the top folder with its links as seen from docs/."""
    text = (
        text.replace("](docs/decisions)", "](decisions/index.md)")
        .replace("](docs/", "](")
        .replace("[CITATION.cff](CITATION.cff)", "`CITATION.cff`")
    )
    for source, place in TOP.items():
        text = text.replace(f"]({source}", f"]({place}")
    return text


def page_of_notebook(path: Path) -> str:
    """Cells and their kept outputs as Markdown; pictures are inside the page."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    parts = []
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        parts += [_shown(output) for output in cell["outputs"]]
    name = path.name
    parts.append(f"The notebook itself: [{name}]({name}).")
    return "\n\n".join(parts) + "\n"


def _title(path: Path) -> str:
    return json.loads(path.read_text("utf-8"))["cells"][0]["source"][0].removeprefix("# ").strip()


def _shown(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return f'<img alt="Picture" src="data:image/png;base64,{"".join(data["image/png"]).strip()}">'
    text = "".join(output.get("text", data.get("text/plain", "")))
    return f"```text\n{COLOURS.sub('', text).rstrip()}\n```"
