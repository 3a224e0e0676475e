"""What every privacy statement says in words, and how it is laid out: as text, and as a printable page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

from fedmf.accounting import at_least, at_most

_TEMPLATE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Privacy statement</title>
<style>
@page { size: A4; margin: 11mm 13mm; }
body { font: 10pt/1.35 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; color: #1c2733; max-width: 50rem;
  margin: 1rem auto; padding: 0 1rem; }
h1 { font-size: 1.6em; margin: 0 0 .2em; }
h2 { font-size: 1.05em; margin: .9em 0 .25em; color: #23527c; border-bottom: 1px solid #c6d3df; }
p { margin: .3em 0; }
.headline { font-size: 1.15em; font-weight: 600; border-left: 4px solid {{ colours[said.protects] }}; \
padding-left: .6em; }
.verdict { border-left: 4px solid {{ colours[said.whole] }}; padding-left: .6em; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .08em .8em .08em 0; overflow-wrap: anywhere; }
th { font-weight: normal; color: #55636f; white-space: nowrap; width: 1%; }
.spread { display: flex; gap: 1.5rem; align-items: flex-start; }
.spread svg { width: 62%; max-width: 30rem; height: auto; }
.spread table { width: auto; }
.spread th, .spread td { width: auto; white-space: nowrap; }
ul { margin: .2em 0; padding-left: 1.2em; }
footer { margin-top: .8em; color: #55636f; font-size: .9em; }
@media print {
  body { font-size: 7.8pt; line-height: 1.25; margin: 0; padding: 0; max-width: none; }
  h2 { margin-top: .6em; break-after: avoid; }
  table, svg, li { break-inside: avoid; }
}
</style>
</head>
<body>
<h1>Privacy statement</h1>
{% for line in said.first %}
<p class="verdict">{{ line }}</p>
{% endfor %}
<p class="headline">{{ said.headline }}</p>
{% if said.plain %}
<h2>What this means</h2>
{% for paragraph in said.plain %}
<p>{{ paragraph }}</p>
{% endfor %}
{% endif %}
<h2>What was promised and what was done</h2>
<table>
{% for name, value in said.facts %}
<tr><th scope="row">{{ name }}</th><td>{{ value }}</td></tr>
{% endfor %}
</table>
{% for line in said.members %}
<p>{{ line }}</p>
{% endfor %}
{% if said.chart %}
{% set chart = said.chart %}
<h2>How realised epsilon is spread over {{ chart.contributors }} (not private)</h2>
<div class="spread">
<svg width="{{ chart.width }}" height="{{ chart.height }}" \
viewBox="0 0 {{ chart.width }} {{ chart.height }}" role="img" aria-label="Histogram of epsilon">
{% for bar in chart.bars %}
<rect x="{{ bar.x }}" y="{{ bar.y }}" width="{{ bar.width }}" height="{{ bar.height }}" fill="#5b8db8">\
<title>{{ bar.label }}</title></rect>
{% endfor %}
{% for mark in chart.lines %}
<line x1="{{ mark.x }}" x2="{{ mark.x }}" y1="14" y2="{{ chart.floor }}" stroke="#b03a2e" \
stroke-dasharray="4 3"/>
<text x="{{ mark.x }}" y="10" font-size="11" text-anchor="{{ mark.anchor }}" fill="#b03a2e">\
{{ mark.label }}</text>
{% endfor %}
<line x1="0" x2="{{ chart.width }}" y1="{{ chart.floor }}" y2="{{ chart.floor }}" stroke="#55636f"/>
{% for tick in chart.ticks %}
<text x="{{ tick.x }}" y="{{ chart.floor + 13 }}" font-size="11" text-anchor="{{ tick.anchor }}" \
fill="#1c2733">{{ tick.label }}</text>
{% endfor %}
</svg>
<table>
<tr><th scope="col">of {{ chart.many }}</th><th scope="col">epsilon at most</th></tr>
{% for share, epsilon in chart.quantiles %}
<tr><td>{{ share }}</td><td>{{ epsilon }}</td></tr>
{% endfor %}
</table>
</div>
{% endif %}
{% for title, texts in said.lists %}
<h2>{{ title }}</h2>
<ul>
{% for text in texts %}
<li>{{ text }}</li>
{% endfor %}
</ul>
{% endfor %}
<footer>{{ said.provenance }}</footer>
</body>
</html>
"""


_TOP: Final = 18
#: Of what is to be feared, and of what is not.
_COLOURS: Final = ("#b03a2e", "#2e7d4f")
#: Of the names of facts, at least.
_WIDTH: Final = 16
#: Lines of a short form.
_MOST: Final = 12
_LISTS: Final = (
    ("Holds only if", "assumptions"),
    ("Does not cover", "not_covered"),
    ("Must stay secret", "secret"),
)


Facts = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Histogram:
    """How realised ε is spread: what is said of it, and the coordinates of its picture.

    Args:
        bins: low, high and number of users of each; at least one.
        known: ε ↦ what it is called, the largest that the plan allows among them.
        size: how many there are.
        many: how they are called.
        quantiles: (share of them, ε at most), as text.
    """

    width: ClassVar[int] = 480
    height: ClassVar[int] = 130
    floor: ClassVar[int] = 112

    bins: Sequence[Mapping[str, Any]]
    known: Mapping[float, str]
    size: int
    many: str
    quantiles: Sequence[tuple[str, str]]

    @property
    def contributors(self) -> str:
        """How many of what."""
        return f"{self.size:,} {self.many}"

    @property
    def bars(self) -> list[dict[str, Any]]:
        """In proportion to their counts, never too low to be seen."""
        most = max(entry["users"] for entry in self.bins)
        return [self._bar(entry, most) for entry in self.bins if entry["users"]]

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Of what is known."""
        return [self._mark(epsilon, label) for epsilon, label in self.known.items()]

    @property
    def ticks(self) -> list[dict[str, Any]]:
        """Of the axis."""
        quarters = (self._end * quarter / 4 for quarter in range(5))
        return [self._mark(epsilon, at_least(epsilon, 3)) for epsilon in quarters]

    @property
    def _end(self) -> float:
        return max(*self.known, self.bins[-1]["high"])

    def _bar(self, entry: Mapping[str, Any], most: int) -> dict[str, Any]:
        height = max(1.0, (self.floor - _TOP) * entry["users"] / most)
        left, right = self._place(entry["low"]), self._place(entry["high"])
        return {
            "x": left,
            "y": round(self.floor - height, 2),
            "width": round(max(0.5, right - left - 1), 2),
            "height": round(height, 2),
            "label": f"{entry['users']:,} {self.many}, epsilon {at_most(entry['low'], 4)} to "
            f"{at_least(entry['high'], 4)}",
        }

    def _mark(self, epsilon: float, label: str) -> dict[str, Any]:
        """A label that grows so that it stays inside the picture."""
        share = epsilon / self._end
        anchor = "start" if share < 0.25 else "end" if share > 0.75 else "middle"
        return {"x": self._place(epsilon), "label": label, "anchor": anchor}

    def _place(self, epsilon: float) -> float:
        return round(self.width * epsilon / self._end, 2)


@dataclass(frozen=True)
class Document:
    """A privacy statement of any kind in words, in the order in which they are read.

    Args:
        headline: the guarantee in one sentence.
        facts: (name, value) of what it says in numbers, most important first; what is not private says so.
        lists: (heading, sentences): assumptions and the like.
        provenance: who states it.
        protects: whether there is a guarantee.
        first: what must be read before all, a line each: what is said of the records.
        whole: whether nothing speaks against these.
        plain: what it means for readers who know no mathematics, paragraph by paragraph.
        members: of a statement on several directories, a line of each.
        chart: how realised ε is spread, where that is told.
    """

    headline: str
    facts: Facts
    lists: Sequence[tuple[str, Sequence[str]]]
    provenance: str
    protects: bool
    first: Sequence[str] = ()
    whole: bool = True
    plain: Sequence[str] = ()
    members: Sequence[str] = ()
    chart: Histogram | None = None

    @classmethod
    def of(cls, statement: Mapping[str, Any], headline: str, facts: Facts, **further: Any) -> Self:
        """Of one directory: lists, and what is said of its records, are those of its statement."""
        first, whole = verdict_lines(statement), not fault_lines(statement)
        return cls(headline, facts, lists_of(statement), **further, first=first, whole=whole)

    def text(self) -> str:
        """For a terminal."""
        lines = [*self.first, self.headline, "", *self._numbers()]
        meaning = [("What this means", self.plain)] if self.plain else []
        for heading, sentences in [*meaning, *self.lists]:
            lines += ["", f"{heading}:", *(f"  - {sentence}" for sentence in sentences)]
        return "\n".join(lines) + "\n"

    def beginning(self, rest: str) -> str:
        """What comes first, in at most twelve lines.

        Args:
            rest: the command that prints all of it.
        """
        lines = [*self.first, self.headline, *self._numbers()]
        return "\n".join([*lines[: _MOST - 1], f"  what it assumes, and all of it: {rest}"]) + "\n"

    def page(self) -> str:
        """For reading in a browser and for print, self-contained.

        Guarantees:
            The page loads nothing and runs nothing, whatever strings the statement holds: they are escaped.
        """
        from jinja2 import Environment, StrictUndefined

        environment = Environment(
            autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        return environment.from_string(_TEMPLATE).render(said=self, colours=_COLOURS)

    def _numbers(self) -> list[str]:
        return [*aligned(self.facts, _WIDTH), *(f"  {line}" for line in self.members)]


def aligned(facts: Facts, least: int = 0) -> list[str]:
    """A line of each (name, value), with the values below each other."""
    width = max((len(name) for name, _ in facts), default=0)
    return [f"  {name:<{max(least, width)}}  {value}" for name, value in facts]


def lists_of(statement: Mapping[str, Any]) -> list[tuple[str, Sequence[str]]]:
    """(heading, sentences) of the lists that a statement has."""
    inputs = [
        f"{entry['name']}: {entry['value']} ({entry['source']})"
        for entry in statement.get("public_inputs", ())
    ]
    shown = [("Public inputs", inputs)] if inputs else []
    return [*shown, *((title, statement[name]) for title, name in _LISTS if name in statement)]


def verdict_lines(statement: Mapping[str, Any], name: str = "Record") -> list[str]:
    """What a statement says of the records that it was computed from, a line each; none where it is not said.

    Args:
        statement: or a part of one, of one directory.
        name: of the directory, where there are several.

    >>> verdict_lines({"records": {"verdict": "tail missing", "faults": {"tail missing": "a file is gone"}}})
    ['Record: TAIL MISSING: a file is gone.']
    """
    if (records := statement.get("records")) is None:
        return []
    return fault_lines(statement, name) or [f"{name}: {records['verdict']}."]


def fault_lines(statement: Mapping[str, Any], name: str = "Record") -> list[str]:
    """What keeps records from being evidence of all that was released, a line each; none if nothing does."""
    faults = statement.get("records", {"faults": {}})["faults"]
    return [f"{name}: {fault.upper()}: {says}." for fault, says in faults.items()]


def in_short(
    statement: Mapping[str, Any], heading: Sequence[str], facts: Facts, rest: str, place: str = ""
) -> str:
    """A statement on one screen.

    Args:
        statement: all of it.
        heading: the guarantee, and before it what must be read first; a line each.
        facts: (name, value), most important first; a value that is empty has nothing to say and is left out.
        rest: where all of it is.
        place: where files are.
    """
    rows = [*facts, ("statement", f"{_what_it_leaves(statement)}: {rest}"), ("files", place)]
    lines = [*fault_lines(statement), *heading, *aligned([row for row in rows if row[1]])]
    return "\n".join(lines) + "\n"


def _what_it_leaves(statement: Mapping[str, Any]) -> str:
    """What the records are where nothing speaks against them, and how much there is to read besides."""
    counted = {"assumptions": "assumptions", "not_covered": "things not covered", "secret": "secrets to keep"}
    left = ", ".join(f"{len(statement[name])} {what}" for name, what in counted.items())
    records = statement.get("records", {"faults": True})
    return left if records["faults"] else f"record {records['verdict']}; {left}"


def mechanism(name: str, params: Mapping[str, float]) -> str:
    """With its parameters."""
    given = ", ".join(f"{symbol}={value:g}" for symbol, value in params.items())
    return f"{name} ({given})" if given else name


def sensitivity(statement: Mapping[str, Any]) -> str:
    """And by which rule it was found."""
    s = statement
    return f"{up(s['sensitivity'])} ({s['sensitivity_kind'].replace('_', ' ')}: {s['sensitivity_case']})"


def promise(epsilon: float | None, delta: float, adjacency: str) -> str:
    """What somebody has.

    >>> promise(1.5, 1e-5, "zero-out")
    '(1.5, 1e-05)-differential privacy under zero-out adjacency'
    """
    return f"({up(epsilon)}, {up(delta)})-differential privacy under {adjacency} adjacency"


def up(value: float | None) -> str:
    """Six digits, rounded up, or what None stands for."""
    return "infinite" if value is None else at_least(value)
