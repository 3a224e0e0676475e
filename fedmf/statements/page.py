"""The privacy statement as one self-contained, printable page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from fedmf.accounting import UNITS, at_least, at_most
from fedmf.statements.plain import plain_words
from fedmf.statements.text import facts, headline, lists, up, verdict_lines

TEMPLATE: Final = """\
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
.headline { font-size: 1.15em; font-weight: 600; border-left: 4px solid {{ colour }}; padding-left: .6em; }
.verdict { border-left: 4px solid {{ told }}; padding-left: .6em; }
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
{% for line in verdict %}
<p class="verdict">{{ line }}</p>
{% endfor %}
<p class="headline">{{ headline }}</p>
<h2>What this means</h2>
{% for paragraph in plain %}
<p>{{ paragraph }}</p>
{% endfor %}
<h2>What was promised and what was done</h2>
<table>
{% for name, value in rows %}
<tr><th scope="row">{{ name }}</th><td>{{ value }}</td></tr>
{% endfor %}
</table>
{% if chart %}
<h2>How realised epsilon is spread over {{ contributors }} (not private)</h2>
<div class="spread">
<svg width="{{ chart.width }}" height="{{ chart.height }}" \
viewBox="0 0 {{ chart.width }} {{ chart.height }}" role="img" aria-label="Histogram of epsilon">
{% for bar in chart.bars %}
<rect x="{{ bar.x }}" y="{{ bar.y }}" width="{{ bar.width }}" height="{{ bar.height }}" fill="#5b8db8">\
<title>{{ bar.label }}</title></rect>
{% endfor %}
{% for mark in chart.marks %}
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
<tr><th scope="col">of {{ many }}</th><th scope="col">epsilon at most</th></tr>
{% for share, epsilon in quantiles %}
<tr><td>{{ share }}</td><td>{{ epsilon }}</td></tr>
{% endfor %}
</table>
</div>
{% endif %}
{% for title, texts in lists %}
<h2>{{ title }}</h2>
<ul>
{% for text in texts %}
<li>{{ text }}</li>
{% endfor %}
</ul>
{% endfor %}
<footer>{{ footer }}</footer>
</body>
</html>
"""


_WIDTH, _HEIGHT, _FLOOR, _TOP = 480, 130, 112, 18
_GREEN, _RED = "#2e7d4f", "#b03a2e"


@dataclass(frozen=True)
class StatementParts:
    """What a page says of a statement, in the order in which it says it.

    Attributes:
        protects: whether there is a guarantee.
        headline: the guarantee in one sentence.
        plain: what it means, paragraph by paragraph.
        rows: (name, value) of what it says in numbers; what is not private says so.
        lists: (title, entries): assumptions and the like.
        verdict: what is said of the records, a line each.
        whole: whether nothing speaks against these.
    """

    protects: bool
    headline: str
    plain: list[str]
    rows: list[tuple[str, str]]
    lists: list[tuple[str, list[str]]]
    verdict: list[str]
    whole: bool

    @classmethod
    def of(cls, statement: Mapping[str, Any]) -> Self:
        """Of what `PrivacyStatement.to_dict` or `PrivacyStatement.public` gives."""
        protects = statement["epsilon_planned"] is not None and not statement["noise_key_public"]
        said = verdict_lines(statement)
        whole = not statement.get("records", {"faults": {}})["faults"]
        words = headline(statement), plain_words(statement), facts(statement), lists(statement)
        return cls(protects, *words, said, whole)


def render_page(statement: Mapping[str, Any]) -> str:
    """A statement's dict as an HTML page.

    Args:
        statement: what `PrivacyStatement.to_dict` gives, also after JSON.

    Guarantees:
        The page loads nothing and runs nothing, whatever strings the statement holds: they are escaped.
        It tells nothing about a single user but the worst user's ε, and depends on participation only
        through the figures that the text of the statement marks as not private, quantiles and counts; of a
        statement that may be public not at all.
    """
    s, many = statement, UNITS[statement["unit"]].plural
    parts = StatementParts.of(s)
    return render_document(
        parts.protects,
        parts.headline,
        parts.plain,
        parts.rows,
        parts.lists,
        f"Run by {s['software']}; statement computed from its ledger by {s['stated_by']}.",
        verdict=parts.verdict,
        whole=parts.whole,
        chart=_chart(s),
        contributors=f"{s['users']:,} {many}",
        many=many,
        quantiles=[
            (f"{100 * float(share):g} %", up(epsilon))
            for share, epsilon in s.get("epsilon_realised_quantiles", {}).items()
            if float(share) > 0
        ],
    )


def render_document(
    protects: bool,
    headline: str,
    plain: Sequence[str],
    rows: Sequence[tuple[str, str]],
    lists: Sequence[tuple[str, Sequence[str]]],
    footer: str,
    verdict: Sequence[str] = (),
    whole: bool = True,
    **spread: Any,
) -> str:
    """A privacy statement of any kind as a page.

    Args:
        protects: whether there is a guarantee; the colour beside the headline.
        headline: the guarantee in one sentence.
        plain: what it means, paragraph by paragraph.
        rows: (name, value) of what it says in numbers.
        lists: (title, entries): assumptions and the like.
        footer: who states it.
        verdict: what is said of the records, a line each.
        whole: whether nothing speaks against these.
        spread: chart, contributors, how they are called (many) and quantiles, where ε differs between them.

    Guarantees:
        As `render_page`: it loads nothing, runs nothing, and escapes everything.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(TEMPLATE).render(
        colour=_GREEN if protects else _RED,
        headline=headline,
        plain=plain,
        rows=rows,
        lists=lists,
        footer=footer,
        verdict=verdict,
        told=_GREEN if whole else _RED,
        **{"chart": None, **spread},
    )


def _chart(s: Mapping[str, Any]) -> dict[str, Any] | None:
    """Bars, marks and labels of the histogram in the coordinates of the picture; None where it has none."""
    bins = s.get("epsilon_realised_histogram")
    if not bins:
        return None
    known = s["epsilon_planned_known_cohorts"]
    end = max(known, bins[-1]["high"])
    most, many = max(entry["users"] for entry in bins), UNITS[s["unit"]].plural
    planned = {known: "planned"}
    if s["amplification"] is not None:
        planned = {s["epsilon_planned"]: "planned, cohorts secret", known: "cohorts known"}
    return {
        "width": _WIDTH,
        "height": _HEIGHT,
        "floor": _FLOOR,
        "bars": [_bar(entry, end, most, many) for entry in bins if entry["users"]],
        "marks": [
            {"x": _place(epsilon, end), "label": label, "anchor": _anchor(epsilon, end)}
            for epsilon, label in planned.items()
        ],
        "ticks": [
            {"x": _place(epsilon, end), "label": at_least(epsilon, 3), "anchor": _anchor(epsilon, end)}
            for epsilon in (end * quarter / 4 for quarter in range(5))
        ],
    }


def _bar(entry: Mapping[str, Any], end: float, most: int, many: str) -> dict[str, Any]:
    """A bar in proportion to its count, never too low to be seen."""
    height = max(1.0, (_FLOOR - _TOP) * entry["users"] / most)
    left, right = _place(entry["low"], end), _place(entry["high"], end)
    return {
        "x": left,
        "y": round(_FLOOR - height, 2),
        "width": round(max(0.5, right - left - 1), 2),
        "height": round(height, 2),
        "label": f"{entry['users']:,} {many}, epsilon {at_most(entry['low'], 4)} to "
        f"{at_least(entry['high'], 4)}",
    }


def _place(epsilon: float, end: float) -> float:
    return round(_WIDTH * epsilon / end, 2)


def _anchor(epsilon: float, end: float) -> str:
    """Which way a label grows so that it stays inside the picture."""
    share = epsilon / end
    return "start" if share < 0.25 else "end" if share > 0.75 else "middle"
