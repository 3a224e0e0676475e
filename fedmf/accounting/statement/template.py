"""The page of a privacy statement, as a Jinja template.

It is Python because Flower ships nothing else of a package. It loads nothing, runs nothing, and fits on one
sheet of A4.
"""

from __future__ import annotations

from typing import Final

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
