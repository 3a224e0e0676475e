"""The privacy letter: one page in plain words on what a run or stream can reveal about a person.

It is written from the public part of a statement alone, for people who know nothing of differential
privacy, such as a data protection officer or the persons themselves.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final, Self

from fedmf.errors import ConfigError
from fedmf.statements.advantage import MODERATE, STRONG, advantage, grade, in_points
from fedmf.statements.statement import up

#: Public facts that are told, and not only named.
_TOLD: Final = ("classes", "labels")
#: The names of public facts in plain words.
_PLAIN_NAMES: Final = {
    "users": "how many people there are",
    "user ids": "who is on the list of participants",
    "sizes of users": "how much data each person has",
    "classes": "the possible answers",
    "labels": "the names of the answers",
    "shape of an example": "the form of an entry",
    "structure of an example": "the form of an entry",
    "normalization": "how numbers were scaled",
    "clip norm": "how much a single entry can count",
    "vocabulary": "the list of words",
    "partition": "how entries were assigned to people",
    "test part": "the separate data on which the model was tested",
    "order of users": "the order of the list",
    "initial parameters": "the model before training",
    "frozen parameters and buffers": "parts of the model that training left as they were",
}
#: Lengths of periods of a stream, one and several.
_PERIODS: Final = {"1w": ("week", "weeks"), "1d": ("day", "days"), "1h": ("hour", "hours")}
#: The words of a statement about cohorts of connected users.
_AVAILABLE: Final = "available cohorts"
#: Columns of a stream that are named one by one.
_NAMED: Final = 6
_TITLE: Final = "Privacy letter: what can be found out about one person"
#: How an expert checks a computation, with and without its released files.
_EXPERT: Final = (
    "From the statement in the form .json, and the folder `released` of the computation, an expert"
    " can compute {epsilon} again and test the noise, without the program fedmf, which made them"
    " (with verify.py, which says what it cannot compute; see “Auditing” in the documentation of"
    " fedmf). verify.py is in the folder `simulations` of the source distribution of fedmf; the"
    " organization can pass it on."
)
_NO_EXPERT: Final = (
    "The folder `released` was not kept. It would hold the matrix of the noise (in plan.json),"
    " which an expert needs to compute ε from the statement without the program fedmf."
)
_CHECKS: Final = (
    "Ask the organization for the full public statement (made with the command `fedmf account"
    " DIRECTORY --public statement.txt`). It lists all conditions and limits in technical words,"
    " and must have the reference number above as its noise key.",
    "The organization can compute all figures again from its records (`fedmf account DIRECTORY`)."
    " The program refuses if a record was changed.",
    "Ask: Is each person listed once? Who can read the secret key and its copies? What else was"
    " published about the same people?",
)
_STYLE: Final = """\
@page { size: A4; margin: 10mm 15mm; }
body { font: 9pt/1.25 Arial, Helvetica, sans-serif; max-width: 46em; margin: 2em auto;
  padding: 0 1em; color: #111; }
h1 { font-size: 14pt; margin: 0 0 .2em; }
h2 { font-size: 10.5pt; margin: .55em 0 .1em; }
p, ul { margin: .25em 0; }
ul { padding-left: 1.3em; }
svg { width: 70%; height: auto; margin: .2em 0; }
@media print { body { margin: 0; padding: 0; max-width: none; } }
"""


@dataclass(frozen=True)
class Bar:
    """A bar of the picture: how often somebody is right, in 100 tests."""

    right: int
    label: str
    color: str


@dataclass(frozen=True)
class Section:
    """A part of the letter.

    Args:
        title: its heading.
        paragraphs: sentences before the picture and the list.
        bars: the picture; none without one.
        closing: paragraphs after the picture.
        points: entries of the list; none without one.
    """

    title: str
    paragraphs: Sequence[str]
    bars: Sequence[Bar] = ()
    closing: Sequence[str] = ()
    points: Sequence[str] = ()


#: Facts that no statement holds.
_BY_HAND: Final = Section(
    "Who did this, and why",
    (
        f"Responsible: {'_' * 40} Contact: {'_' * 30}",
        f"Purpose: {'_' * 78}",
    ),
)


@dataclass(frozen=True)
class PrivacyLetter:
    """One page in plain words about a guarantee.

    Args:
        about: date, software and reference number.
        sections: the text.
    """

    about: str
    sections: Sequence[Section]

    @classmethod
    def of(cls, statement: Mapping[str, Any], day: date) -> Self:
        """Write the letter of a statement's public part.

        Args:
            statement: `PrivacyStatement.public`.
            day: the date of the letter.

        Raises:
            ConfigError: nothing is protected, since there is no noise or its key is public.

        Guarantees:
            The letter depends on nothing else. The chances that it states are rounded up.
        """
        if statement["epsilon"] is None or statement["noise_key_public"]:
            raise ConfigError(
                "letter (of privacy) must be about a run with secret noise; this one has no noise,"
                " or noise from a public seed (noise-seed), and protects nobody. Use .txt or .json."
            )
        about = [f"{day.day} {day:%B %Y}"]
        if "composed" in statement:
            keys = ", ".join(part["noise_key"] for part in statement["composed"])
            about.append(f"reference numbers {keys}")
        else:
            about.append(f"reference number {statement['noise_key']}")
            about.append(f"made with {statement['software']}")
        sections = (
            _summary(statement),
            _BY_HAND,
            _data(statement),
            _protected(statement),
            _strength(statement),
            _limits(statement),
            _conditions(statement),
            _checks(statement),
        )
        return cls("; ".join(about), sections)

    def to_markdown(self) -> str:
        """Return the letter as Markdown."""
        lines = [f"# {_TITLE}", "", f"*{self.about}*"]
        for section in self.sections:
            lines += ["", f"## {section.title}"]
            for paragraph in section.paragraphs:
                lines += ["", paragraph]
            if section.bars:
                lines += ["", *(f"    {_text_bar(bar)}" for bar in section.bars)]
            for paragraph in section.closing:
                lines += ["", paragraph]
            if section.points:
                lines += ["", *(f"* {point}" for point in section.points)]
        return "\n".join(lines) + "\n"

    def to_html(self) -> str:
        """Return the letter as a page that prints on one sheet of A4 and loads nothing."""
        body = [f"<h1>{_escaped(_TITLE)}</h1>", f"<p><em>{_escaped(self.about)}</em></p>"]
        for section in self.sections:
            body.append(f"<h2>{_escaped(section.title)}</h2>")
            body += [f"<p>{_escaped(paragraph)}</p>" for paragraph in section.paragraphs]
            if section.bars:
                body.append(_picture(section.bars))
            body += [f"<p>{_escaped(paragraph)}</p>" for paragraph in section.closing]
            if section.points:
                body.append("<ul>")
                body += [f"<li>{_escaped(point)}</li>" for point in section.points]
                body.append("</ul>")
        head = f'<meta charset="utf-8">\n<title>{_escaped(_TITLE)}</title>'
        head += f"\n<style>\n{_STYLE}</style>"
        content = "\n".join(body)
        return (
            f'<!DOCTYPE html>\n<html lang="en">\n<head>\n{head}\n</head>\n'
            f"<body>\n{content}\n</body>\n</html>\n"
        )


def _escaped(text: str) -> str:
    """HTML of a text, with code between backticks."""
    parts = html.escape(text, quote=False).split("`")
    for place in range(1, len(parts), 2):
        parts[place] = f"<code>{parts[place]}</code>"
    return "".join(parts)


def _text_bar(bar: Bar) -> str:
    return f"{bar.label:<36} {bar.right:>3} of 100  {'█' * round(bar.right / 4)}"


def _picture(bars: Sequence[Bar]) -> str:
    """The bars as SVG, with their text as a description for those who cannot see them."""
    words = "; ".join(f"{bar.label}: right in {bar.right} of 100 tests" for bar in bars)
    parts = [f"<title>{_escaped(words)}</title>"]
    for row, bar in enumerate(bars):
        top = 26 * row
        parts.append(f'<text x="0" y="{top + 15}">{_escaped(bar.label)}</text>')
        parts.append(f'<rect x="235" y="{top + 2}" width="300" height="18" fill="#eee"/>')
        parts.append(
            f'<rect x="235" y="{top + 2}" width="{3 * bar.right}" height="18" fill="{bar.color}"/>'
        )
        parts.append(f'<text x="542" y="{top + 15}">{bar.right} of 100</text>')
    height = 26 * len(bars)
    return (
        f'<svg viewBox="0 0 610 {height}" role="img" font-size="12">\n' + "\n".join(parts) + "\n"
        "</svg>"
    )


def _one(s: Mapping[str, Any]) -> str:
    """The protected unit in plain words."""
    return {"user": "person", "example": "example"}[s["unit"]]


def _many(s: Mapping[str, Any]) -> str:
    return {"user": "people", "example": "examples"}[s["unit"]]


def _trained(s: Mapping[str, Any]) -> bool:
    """Whether a model was trained, and not only streams of rows were published."""
    return any("workload" not in part for part in s.get("composed", [s]))


def _things(s: Mapping[str, Any]) -> str:
    """The published results in plain words."""
    if "composed" in s:
        return "results"
    if "workload" in s:
        return "averages"
    return "models"


def _right(s: Mapping[str, Any]) -> int:
    """In how many of 100 tests an attacker is right at most, rounded up."""
    return math.ceil(50 + 50 * advantage(s))


def _often(s: Mapping[str, Any]) -> str:
    """How often an attacker is right at most, in words."""
    right = _right(s)
    if right == 100:
        return "nearly always"
    return f"in at most {right} of 100 cases"


def _summary(s: Mapping[str, Any]) -> Section:
    if "composed" in s:
        names = _listed([part["directory"] for part in s["composed"]])
        done = f"Results of the computations {names} on the same {_many(s)} were published."
    elif s.get("periods"):
        done = f"Averages of a table about people were published, after each {_period(s)[0]}."
    elif "workload" in s:
        done = "Averages of rows of a table about people were published."
    else:
        done = f"A computer model was trained with the data of {s['users']:,} {_many(s)}."
    return Section(
        "In short",
        (
            f"{done} Random numbers, called noise, were added to every result before it was"
            f" published. The noise limits what anyone can find out about one {_one(s)}. Somebody"
            f" who guesses whether the data of a certain {_one(s)} were used can be right"
            f" {_often(s)}. Tossing a coin, one is right in 50 of 100.",
        ),
    )


def _listed(names: Sequence[str]) -> str:
    """Names in quotes, as a list in words.

    >>> _listed(["a"]), _listed(["a", "b", "c"])
    ('“a”', '“a”, “b” and “c”')
    """
    quoted = [f"“{name}”" for name in names]
    if len(quoted) == 1:
        return quoted[0]
    return f"{', '.join(quoted[:-1])} and {quoted[-1]}"


def _used(s: Mapping[str, Any]) -> str:
    """The data of one computation."""
    most = s["max_participations"]
    if s.get("periods"):
        one, many = _period(s)
        at_most = f"one {one}" if most == 1 else f"{most:,} {many}"
        start = _date(s["periods"]["start"])
        end = _date(s["periods"]["end"])
        return (
            f"Used: the entries of a table for {_times(s)}, from {start} to before {end}. All"
            f" entries of a person in a {one} count as one, their average, in at most {at_most}."
        )
    if "workload" in s:
        rows = "one row" if most == 1 else f"{most} rows"
        return f"Used: the rows of a table, at most {rows} of each person."
    rounds = "one round" if most == 1 else f"{most} rounds"
    return (
        f"Used: the data of {s['users']:,} {_many(s)}, of about {s['users_per_round']:,} in"
        f" each round (step) of training. Each {_one(s)} takes part in at most {rounds}."
    )


def _published(s: Mapping[str, Any]) -> str:
    """The results of one computation."""
    if s.get("periods"):
        return (
            f"Published: after each {_period(s)[0]}, averages of {_columns(s)} and of their"
            f" products, and about how many people had entries. {s['rounds_released']:,} of"
            f" {_times(s)} are published so far. This letter counts all of them."
        )
    if "workload" in s:
        return (
            f"Published: averages of {_columns(s)} and of their products, after"
            f" {s['rounds_released']:,} of {s['rounds']:,} rows so far. This letter counts all"
            f" {s['rounds']:,}."
        )
    return (
        f"Published: the model after each round, {s['dimension']:,} numbers each time."
        f" {s['rounds_released']:,} of {s['rounds']:,} rounds are done; the figures below count"
        f" all {s['rounds']:,}."
    )


def _data(s: Mapping[str, Any]) -> Section:
    points = list[str]()
    if "composed" in s:
        for part in s["composed"]:
            title = f"Computation “{part['directory']}”, reference number {part['noise_key']}"
            points.append(f"{title}. {_used(part)} {_published(part)}")
    else:
        points = [_used(s), _published(s)]
    names = list[str]()
    for entry in s["public_inputs"]:
        name = str(_PLAIN_NAMES.get(entry["name"], entry["name"]))
        if entry["name"] in _TOLD:
            name += f" ({entry['value']})"
        names.append(name)
    if names:
        points.append(
            f"Not hidden by the noise: {'; '.join(names)}. The full statement explains each of"
            " them."
        )
    return Section("Which data", (), points=points)


def _times(s: Mapping[str, Any]) -> str:
    """The number of periods of a stream in words."""
    one, many = _period(s)
    if s["rounds"] == 1:
        return f"1 {one}"
    return f"{s['rounds']:,} {many}"


def _period(s: Mapping[str, Any]) -> tuple[str, str]:
    """One and several periods of a stream in plain words."""
    every = s["periods"]["every"]
    return _PERIODS.get(every, (f"period of {every}", f"periods of {every}"))


def _date(text: str) -> str:
    """A time in words, without the time of day at midnight.

    >>> _date("2026-01-05T00:00:00"), _date("2026-01-05T06:30:00")
    ('5 January 2026', '5 January 2026, 06:30')
    """
    at = datetime.fromisoformat(text)
    words = f"{at.day} {at:%B %Y}"
    if (at.hour, at.minute) != (0, 0):
        words += f", {at:%H:%M}"
    return words


def _columns(s: Mapping[str, Any]) -> str:
    """The columns of a stream in words, by name if they are few."""
    names = s["columns"]
    if len(names) > _NAMED:
        return f"{len(names):,} numbers"
    return _listed(names)


def _protected(s: Mapping[str, Any]) -> Section:
    whole = "everything that the person contributed, all of it together"
    if s["unit"] == "example":
        whole = (
            "one example, such as one row or picture. A person with several examples is protected"
            " less"
        )
    against = (
        "Against everyone who sees what was published, also somebody who knows the data of all"
        f" other {_many(s)} and the method, however powerful the computer."
    )
    if s.get("amplification") is not None:
        against += " This person must not know who took part in which round of training."
    return Section(
        "Who is protected, against whom",
        (),
        points=(
            f"Who: every {_one(s)} whose data were used. Protected is {whole}.",
            against,
            "Not against whoever runs the computation: they can see the data, or results before the"
            " noise is added, and they hold the secret key from which the noise was made and with"
            " which it can be taken away again.",
        ),
    )


def _strength(s: Mapping[str, Any]) -> Section:
    right = _right(s)
    other = "left out"
    if s["adjacency"] == "replace-one":
        other = "replaced by any others"
    at_most = "at most"
    if right == 100:
        at_most = "nearly"
    bars = (
        Bar(50, "Tossing a coin", "#999"),
        Bar(right, f"With all that was published, {at_most}", "#D55E00"),
        Bar(100, "Without any protection", "#333"),
    )
    return Section(
        "How strong the protection is",
        (
            f"Imagine a test, which is not made in fact. A coin decides whether the data of one"
            f" {_one(s)} are used or {other}. Somebody sees all {_things(s)} that are published,"
            f" and guesses whether they were used or {other}. The guess is right in:",
        ),
        bars,
        (
            "Count 50 of 100, a coin, as 0 points: nothing was found out. Count 100 of 100 as 100"
            " points: everything was. Each further right guess is two points. Here the limit is"
            f" {in_points(advantage(s))} points, before the rounding of the figure above. Experts"
            " call this the advantage of the attacker, as they call the person who guesses. We call"
            f" up to {STRONG} points a strong protection, up to {MODERATE} a moderate one, and"
            f" more a weak one: this one is {grade(advantage(s))}.",
            "This is a limit for the strongest attacker that one can imagine, whatever the attacker"
            " does. It is not a forecast of what will happen.",
            _experts(s),
        ),
    )


def _experts(s: Mapping[str, Any]) -> str:
    """The guarantee in the numbers of experts, each with its sentence."""
    known = ""
    if s.get("amplification") is not None:
        known = (
            " This holds against those who do not know who took part when; against the others, ε is"
            f" {up(s['epsilon_known_cohorts'])}."
        )
    return (
        f"Experts state this limit by two numbers. ε (epsilon) is {up(s['epsilon'])}: the smaller"
        f" it is, the less can be found out; with 0, nothing can.{known} δ (delta) is"
        f" {_plain(s['delta'])}: the chance of a case that ε leaves out. The figures above leave"
        " out no case."
    )


def _plain(delta: float) -> str:
    """A small probability in words, rounded up.

    >>> _plain(1e-5), _plain(0.0015)
    ('1 in 100,000', '1 in 666')
    """
    return f"1 in {math.floor(1 / delta * (1 + 1e-12)):,}"


def _limits(s: Mapping[str, Any]) -> Section:
    points = [
        "General findings. If the published results show that smokers fall ill more often, this"
        " says something about every smoker, whether or not that person’s data were used.",
        f"Other uses of the same data. Whatever else is published about these {_many(s)} adds to"
        " what can be found out.",
        "The fact of taking part. The noise does not hide lists of who took part, so they must not"
        " be published.",
    ]
    if _trained(s):
        points.append(
            "Test results. Figures on how good the model is have no noise. They come from separate"
            " data, whose owners this letter does not protect."
        )
    points.append("Time. How long the computation took may depend on the data.")
    return Section("What this letter does not cover", (), points=points)


def _conditions(s: Mapping[str, Any]) -> Section:
    where = "(“Which data” names it)"
    earlier = (
        f"an earlier computation on these {_many(s)}: this letter counts only what was added, and a"
        " joint letter counts both"
    )
    if "composed" in s:
        where = "(the full statement of each computation names it)"
        earlier = "another of these computations"
    points = [
        "Every person is listed under one name or number, and no other person has the same.",
        f"What is not hidden by the noise {where} really is public.",
        "The secret key of the noise, and all its copies, stay secret for ever or are deleted.",
        "The programs limit how much each contribution can count, and one person’s data change that"
        " person’s contribution only.",
    ]
    if _trained(s):
        points.append(
            "What the model took from earlier training is from other data, or was published by"
            f" {earlier}."
        )
    if s.get("periods"):
        points.append("Results were published by the calendar, not because of what the table said.")
    if s.get("amplification") is not None:
        points.append("Who took part in which round of training stays secret.")
    if any(_AVAILABLE in part.get("sampling", "") for part in s.get("composed", [s])):
        points.append(
            f"No {_one(s)}’s data decide whether that {_one(s)} is connected when a round begins,"
            " or answers in time."
        )
    return Section("What must be true", (), points=points)


def _checks(s: Mapping[str, Any]) -> Section:
    """How to check the letter, with the digest of the released numbers if they were kept."""
    files = s.get("released_files")
    epsilon = "ε"
    if s.get("amplification") is not None:
        epsilon = "ε against those who know who took part when"
    expert = _EXPERT.format(epsilon=epsilon)
    if "composed" in s:
        expert = f"For each computation of which this folder was kept: {expert}"
    elif files is None:
        expert = _NO_EXPERT
    else:
        expert += (
            f" The file integers.bin has the SHA-256 digest `{files['integers.bin']}`; the"
            " statement has those of the others."
        )
    points = [*_CHECKS[:1], expert, *_CHECKS[1:]]
    return Section("How to check this letter", (), points=points)
