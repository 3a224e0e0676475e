"""What is promised to whom: the privacy of a run as it is asked for, and its unit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from fedmf.participation import Adjacency
from fedmf.values import Value, by_kind, check_choices


@dataclass(frozen=True)
class Unit:
    """Whose contribution differs between two neighbouring worlds, in words.

    Args:
        name: what a statement calls it.
        each: who has the guarantee, at the beginning of a sentence.
        distinct: what is assumed of the ids that the record of participation counts.
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
    distinct="every user id belongs to one person, who takes part under no other id: a person with two ids "
    "is protected less, each id by itself alone",
    broken="a user whose examples cannot be loaded or trained on",
)
EXAMPLE: Final = Unit(
    name="example",
    article="an",
    each="Every example (not: every person)",
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


@dataclass(frozen=True)
class Privacy(Value):
    """What every run must say, whether or not it adds noise.

    Args:
        clip_norm: ζ > 0, bound on the ℓ₂ norm of one user's update.
        delta: δ in (0, 1).
        adjacency: neighbouring relation. "zero-out": a user's updates become zero. "replace-one": they become
            any others within the clip norm.
        noise_seed: public seed of noise and cohorts: reproducible, no privacy; if unset, they follow from a
            secret key of the operating system.
        user_namespace: what user ids are ids of. Runs that name the same namespace concern the same people.
        unit: what is protected: "user", or "example" where every user owns one training example, as in
            central training with per-example clipping. Partition "each-example" of the data implies it.

    Raises:
        ValueError: a value out of its range.
    """

    clip_norm: float = 0.3
    delta: float = 1e-5
    adjacency: Adjacency = "zero-out"
    noise_seed: int | None = None
    user_namespace: str = ""
    unit: Literal["user", "example"] = "user"

    def __post_init__(self) -> None:
        if not 0 < self.clip_norm < math.inf:
            raise ValueError(f"ζ (clip_norm) must be positive and finite; got {self.clip_norm!r}.")
        if not 0 < self.delta < 1:
            raise ValueError(f"δ (delta) must lie strictly between 0 and 1; got {self.delta!r}.")
        if self.noise_seed is not None and self.noise_seed < 0:
            raise ValueError(f"noise_seed must be at least 0; got {self.noise_seed}.")
        check_choices(self)

    @property
    def words(self) -> Unit:
        """What is protected, in words."""
        return UNITS[self.unit]

    @property
    def requested_epsilon(self) -> float | None:
        """The ε that is asked for; None for a run without noise."""
        return None

    @property
    def counts_sampling(self) -> bool:
        """Whether the secrecy of sampled cohorts is part of the promise."""
        return False


@dataclass(frozen=True)
class UserLevel(Privacy):
    """(ε, δ)-differential privacy of each user, with everything the user contributes to any round.

    Args:
        epsilon: ε > 0 for the whole run.
        amplified: whether the secrecy of sampled cohorts is counted: less noise at the same ε, which then
            holds only against those who do not know who took part when.
    """

    epsilon: float = 8.0
    amplified: bool = False

    kind: ClassVar[str] = "user-level"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.epsilon < math.inf:
            raise ValueError(f"ε (epsilon) must be positive and finite; got {self.epsilon!r}.")

    @property
    def requested_epsilon(self) -> float:
        """ε."""
        return self.epsilon

    @property
    def counts_sampling(self) -> bool:
        """Whether it is amplified."""
        return self.amplified


@dataclass(frozen=True)
class NoPrivacy(Privacy):
    """No noise and no privacy: the same run for comparison. Updates are clipped all the same."""

    kind: ClassVar[str] = "none"


PRIVACY: Final = by_kind(UserLevel, NoPrivacy)
