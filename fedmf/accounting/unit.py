"""What a guarantee is about, a user or a single example, and how one speaks of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Unit:
    """Whose contribution differs between two neighbouring worlds, in words.

    Args:
        name: what a statement calls it.
        each: who has the guarantee, at the beginning of a sentence.
        meaning: what is protected and what is not, in plain words, with ``{rounds}``.
        distinct: what is assumed of the ids that the record of participation counts.
        broken: what enters as a zero vector.
        not_covered: what the unit leaves unprotected.

    >>> EXAMPLE.say("{a}, many {many}; {One}, {A}")
    'an example, many examples; Example, An example'
    """

    name: str
    article: str
    each: str
    meaning: str
    distinct: str
    broken: str
    not_covered: tuple[str, ...] = ()

    @property
    def plural(self) -> str:
        """Several of them."""
        return f"{self.name}s"

    def say(self, text: str) -> str:
        """A text with its places filled in: ``{one}``, ``{many}``, ``{a}``, ``{broken}`` and the like."""
        a = f"{self.article} {self.name}"
        return text.format(
            one=self.name,
            One=self.name.capitalize(),
            many=self.plural,
            Many=self.plural.capitalize(),
            a=a,
            A=a[0].upper() + a[1:],
            broken=self.broken,
        )


USER: Final = Unit(
    name="user",
    article="a",
    each="Every user",
    meaning="Protected is each user, with everything the user contributed to any of the {rounds} rounds: "
    "not a single example, and not a single round.",
    distinct="every user id belongs to one person, who takes part under no other id: a person with two ids "
    "is protected less, each id by itself alone",
    broken="a user whose examples cannot be loaded or trained on",
)
EXAMPLE: Final = Unit(
    name="example",
    article="an",
    each="Every example (not: every person)",
    meaning="Protected is each single training example, in all of the {rounds} rounds that used it: not a "
    "person. Whoever gave several examples is protected less, the more of them there are.",
    distinct="every example counts once in the record of who took part, and is the data of one person: a "
    "copy of it under another id counts as another example",
    broken="an example that cannot be loaded or trained on",
    not_covered=(
        "a person with several examples: epsilon protects one example, and what all examples of one person "
        "give away together grows with their number",
    ),
)
#: By the name that a statement gives them.
UNITS: Final = {unit.name: unit for unit in (USER, EXAMPLE)}
