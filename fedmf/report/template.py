"""The page of a report, as a Jinja template; it is Python because Flower ships nothing else of a package.

Pictures are SVG written here from numbers, not by a plotting library: every string passes through the same
escaping as the rest of the page, their text can be selected and searched, no file of fonts or metadata that
names an address comes along, and no extra has to be installed.
"""

from __future__ import annotations

from typing import Final

_STYLE: Final = """\
@page { size: A4; margin: 12mm; }
body { font: 11pt/1.4 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; color: #1c2733; max-width: 76rem;
  margin: 1rem auto; padding: 0 1rem; }
h1 { font-size: 1.6em; margin: 0 0 .2em; }
h2 { font-size: 1.2em; margin: 1.4em 0 .3em; color: #23527c; border-bottom: 1px solid #c6d3df; }
h3 { font-size: 1em; margin: .2em 0; overflow-wrap: anywhere; }
p { margin: .3em 0; max-width: 50rem; }
.verdict { border-left: 4px solid #D55E00; padding-left: .6em; }
.verdict.whole { border-color: #009E73; }
.headline { font-weight: 600; border-left: 4px solid #D55E00; padding-left: .6em; }
.protects { border-color: #009E73; }
.mark { display: inline-block; font-size: .78em; font-weight: 600; color: #7a2e00; background: #fff3e6;
  border: 1px solid #D55E00; border-radius: .3em; padding: 0 .4em; white-space: nowrap; }
.pictures { display: grid; gap: 1rem 1.5rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem), 1fr)); }
figure { margin: 0; break-inside: avoid; min-width: 0; }
figure svg { width: 100%; height: auto; display: block; }
figcaption, .legend { font-size: .85em; color: #3c4a57; }
.legend span { white-space: nowrap; margin-right: .9em; display: inline-block; max-width: 100%;
  overflow: hidden; text-overflow: ellipsis; }
.legend svg { width: 1.9em; height: .8em; display: inline-block; vertical-align: middle; }
.wide { overflow-x: auto; }
.wide td { min-width: 6.5rem; max-width: 22rem; }
.wide tbody th { min-width: 9rem; }
table { border-collapse: collapse; }
th, td { text-align: left; vertical-align: top; padding: .12em .9em .12em 0; overflow-wrap: anywhere; }
thead th { border-bottom: 1px solid #c6d3df; }
tbody th { font-weight: normal; color: #55636f; min-width: 8rem; }
ul { margin: .2em 0; padding-left: 1.2em; }
footer { margin-top: 1.2em; color: #55636f; font-size: .85em; }
@media print {
  body { font-size: 8.5pt; margin: 0; padding: 0; max-width: none; }
  .pictures { grid-template-columns: repeat(2, 1fr); }
  h2, h3 { break-after: avoid; }
  tr, li { break-inside: avoid; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""

_LINES: Final = """\
{% macro sample(colour, dash) %}
<svg viewBox="0 0 30 10" aria-hidden="true"><line x1="1" x2="29" y1="5" y2="5" stroke="{{ colour }}" \
stroke-width="3" stroke-dasharray="{{ dash }}"/></svg>
{% endmacro %}
{% macro lines(chart, names) %}
{% set p = chart.picture %}
<figure>
<h3>{{ chart.title }}{% if not chart.private %} <span class="mark">not private</span>{% endif %}</h3>
<svg viewBox="0 0 {{ p.width }} {{ p.height }}" role="img" aria-label="{{ chart.title }}" font-size="12" \
fill="none" stroke-width="2">
{% for y, label in p.y_ticks %}
<line x1="{{ p.left }}" x2="{{ p.right }}" y1="{{ y }}" y2="{{ y }}" stroke="#dde4ea" stroke-width="1"/>
<text x="{{ p.left - 6 }}" y="{{ y + 4 }}" text-anchor="end" fill="#1c2733">{{ label }}</text>
{% endfor %}
{% for x, label, anchor in p.x_ticks %}
<line x1="{{ x }}" x2="{{ x }}" y1="{{ p.floor }}" y2="{{ p.floor + 4 }}" stroke="#55636f" \
stroke-width="1"/>
<text x="{{ x }}" y="{{ p.floor + 17 }}" text-anchor="{{ anchor }}" fill="#1c2733">{{ label }}</text>
{% endfor %}
<text x="{{ (p.left + p.right) / 2 }}" y="{{ p.height - 3 }}" text-anchor="middle" fill="#55636f">\
{{ chart.across }}</text>
{% for line in p.lines %}
{% for x, low, high in line.bars %}
<line x1="{{ x }}" x2="{{ x }}" y1="{{ low }}" y2="{{ high }}" stroke="{{ line.colour }}" \
stroke-width="1"/>
{% endfor %}
<path d="{{ line.path }}" stroke="{{ line.colour }}" stroke-dasharray="{{ line.dash }}"/>
{% for x, y in line.dots %}
{% if line.square %}
<rect x="{{ x - 3 }}" y="{{ y - 3 }}" width="6" height="6" fill="{{ line.colour }}"/>
{% else %}
<circle cx="{{ x }}" cy="{{ y }}" r="3" fill="{{ line.colour }}"/>
{% endif %}
{% endfor %}
{% endfor %}
</svg>
<figcaption>
<div class="legend">
{% if names | length > 1 %}
{% for run in chart.runs %}
<span>{{ sample(colours[run % colours | length], "") }} {{ names[run] }}</span>
{% endfor %}
{% endif %}
{% for kind in chart.kinds %}
<span>{{ sample("#55636f", dashes[loop.index0]) }} {{ kind }}</span>
{% endfor %}
</div>
{{ chart.note }}
</figcaption>
</figure>
{% endmacro %}
"""

_CELLS: Final = """\
{% macro cells(map) %}
{% set p = map.picture %}
<figure>
<h3>{{ map.title }}{% if not map.private %} <span class="mark">not private</span>{% endif %}</h3>
<svg viewBox="0 0 {{ p.width }} {{ p.floor + 34 }}" role="img" aria-label="{{ map.title }}" font-size="12">
<rect x="{{ p.left }}" y="{{ p.top }}" width="{{ p.right - p.left }}" height="{{ p.floor - p.top }}" \
fill="#ffffff" stroke="#9aa7b3" stroke-width="1"/>
{% for colour, path in p.paths %}
<path d="{{ path }}" fill="{{ colour }}"/>
{% endfor %}
<text x="{{ p.left - 5 }}" y="{{ p.top + 10 }}" text-anchor="end" fill="#1c2733">1</text>
<text x="{{ p.left - 5 }}" y="{{ p.floor }}" text-anchor="end" fill="#1c2733">{{ map.last_row }}</text>
<text x="{{ p.left }}" y="{{ p.floor + 14 }}" fill="#1c2733">1</text>
<text x="{{ p.right }}" y="{{ p.floor + 14 }}" text-anchor="end" fill="#1c2733">{{ map.last_column }}</text>
<text x="{{ (p.left + p.right) / 2 }}" y="{{ p.floor + 29 }}" text-anchor="middle" fill="#55636f">\
{{ map.across }}</text>
<text x="12" y="{{ (p.top + p.floor) / 2 }}" text-anchor="middle" fill="#55636f" \
transform="rotate(-90 12 {{ (p.top + p.floor) / 2 }})">{{ map.down }}</text>
</svg>
<figcaption>
<div class="legend">
{% for colour, label in map.shades %}
<span>{{ sample(colour, "") }} {{ label }}</span>
{% endfor %}
</div>
{{ map.note }}
</figcaption>
</figure>
{% endmacro %}
"""

_BODY: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{{ title }}</title>
<style>
{{ style }}
</style>
</head>
<body>
<h1>{{ title }}</h1>
{% if operator %}
<p><span class="mark">For the operator</span> What is marked <b>not private</b> was computed without noise
from the record of who took part, or from users' own examples. <code>fedmf report --publish</code> leaves it
out.</p>
{% endif %}
{% for run in runs %}
{% for line in run.document.first %}
<p class="verdict{% if run.document.whole %} whole{% endif %}">{{ line }}</p>
{% endfor %}
<p class="headline{% if run.document.protects %} protects{% endif %}">\
{{ run.name }}: {{ run.document.headline }}</p>
{% endfor %}
{% for warning in warnings %}
<p>{{ warning }}</p>
{% endfor %}
{% for heading, tables in comparisons %}
<h2>{{ heading }}</h2>
<div class="wide"><table>
<thead><tr><td></td>{% for name in names %}<th scope="col">{{ name }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in tables %}
<tr><th scope="row">{{ row.name }}\
{% if not row.private %} <span class="mark">not private</span>{% endif %}</th>
{% for value in row.values %}<td>{{ value }}</td>{% endfor %}</tr>
{% endfor %}
</tbody>
</table></div>
{% endfor %}
{% for heading, charts, maps in sections %}
{% if charts or maps %}
<h2>{{ heading }}</h2>
<div class="pictures">
{% for chart in charts %}
{{ lines(chart, names) }}
{% endfor %}
{% for map in maps %}
{{ cells(map) }}
{% endfor %}
</div>
{% endif %}
{% endfor %}
{% for run in runs %}
<h2>{{ run.name }}: what its statement says</h2>
{% for paragraph in run.document.plain %}
<p>{{ paragraph }}</p>
{% endfor %}
<table><tbody>
{% for name, value in run.document.facts %}
<tr><th scope="row">{{ name }}</th><td>{{ value }}</td></tr>
{% endfor %}
</tbody></table>
{% for title, texts in run.document.lists %}
<h3>{{ title }}</h3>
<ul>
{% for text in texts %}
<li>{{ text }}</li>
{% endfor %}
</ul>
{% endfor %}
{% endfor %}
<footer>{{ footer }}</footer>
</body>
</html>
"""

TEMPLATE: Final = _LINES + _CELLS + _BODY.replace("{{ style }}", _STYLE)
