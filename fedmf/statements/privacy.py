"""The requested privacy of a run and its unit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from fedmf.participation import Adjacency
from fedmf.values import Field, Value, by_kind


@dataclass(frozen=True)
class Unit:
    """The unit that differs between two neighboring data sets, in words.

    Args:
        name: its name in statements.
        article: "a" or "an".
        each: who has the guarantee, at the beginning of a sentence.
        distinct: the assumption about the ids that the record of participation counts.
        broken: what enters as a zero vector.
        not_covered: what the unit leaves unprotected.

    >>> EXAMPLE.say("{a}, many {many}; {One}, {A}")
    'an example, many examples; Example, An example'
    """

    name: str
    article: str
    each: str
    distinct: str
    broken: str
    not_covered: tuple[str, ...] = ()

    @property
    def plural(self) -> str:
        """The name of several of them."""
        return f"{self.name}s"

    def say(self, text: str) -> str:
        """Fill in the placeholders of a string: ``{one}``, ``{many}``, ``{a}``, ``{broken}`` …"""
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

    def say_all(self, texts: Iterable[str]) -> list[str]:
        """Fill in the placeholders of several strings."""
        return [self.say(text) for text in texts]


USER: Final = Unit(
    name="user",
    article="a",
    each="Every user",
    distinct=(
        "every user id belongs to one person, who takes part under no other id: a person with two"
        " ids is protected less, only for each id separately"
    ),
    broken="a user with examples that cannot be loaded or trained on",
)
EXAMPLE: Final = Unit(
    name="example",
    article="an",
    each="Every example (not: every person)",
    distinct=(
        "every example counts once in the record of participation, and belongs to one person: a "
        "copy under another id counts as another example"
    ),
    broken="an example that cannot be loaded or trained on",
    not_covered=(
        (
            "a person with several examples: epsilon protects one example, and the information"
            " about a person grows with the number of that person's examples"
        ),
    ),
)
#: By the name that a statement gives them.
UNITS: Final = {unit.name: unit for unit in (USER, EXAMPLE)}


@dataclass(frozen=True, kw_only=True)
class Privacy(Value):
    """The fields that every run has, with or without noise.

    Raises:
        ValueError: a value out of its range.
    """

    clip_norm: Annotated[float, Field("bound ζ on the L2 norm of a user's update", "ζ", gt=0)] = 0.3
    delta: Annotated[
        float, Field("probability δ with which ε may fail; below 1/users", "δ", gt=0, lt=1)
    ] = 1e-5
    adjacency: Annotated[
        Adjacency,
        Field(
            "zero-out: a user's updates become zero; replace-one: any others within the clip norm"
        ),
    ] = "zero-out"
    noise_seed: Annotated[
        int | None,
        Field(
            "public seed of noise and cohorts, for tests: reproducible, not private",
            ge=0,
            le=2**63 - 1,
        ),
    ] = None

    @property
    def requested_epsilon(self) -> float | None:
        """The requested ε; None for a run without noise."""
        return None

    @property
    def counts_sampling(self) -> bool:
        """Whether the secrecy of sampled cohorts is part of the promise."""
        return False


@dataclass(frozen=True, kw_only=True)
class UserLevel(Privacy):
    """(ε, δ)-differential privacy of each user, for all contributions of the user to all rounds."""

    epsilon: Annotated[float, Field("privacy budget ε of the whole run", "ε", gt=0)] = 8.0
    amplified: Annotated[
        bool,
        Field(
            "rely on secret sampled cohorts; ε then holds only against those who cannot see them"
        ),
    ] = False

    kind: ClassVar[str] = "user-level"

    @property
    def requested_epsilon(self) -> float:
        """The requested ε."""
        return self.epsilon

    @property
    def counts_sampling(self) -> bool:
        """Whether the guarantee is amplified by sampling."""
        return self.amplified


@dataclass(frozen=True, kw_only=True)
class NoPrivacy(Privacy):
    """No noise and no privacy, for comparison. Updates are still clipped."""

    kind: ClassVar[str] = "none"


PRIVACY: Final = by_kind(UserLevel, NoPrivacy)
