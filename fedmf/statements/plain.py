"""What a privacy statement means, in plain words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from scipy.special import ndtr, ndtri

from fedmf.accounting import UNITS, at_least

_FALSE_ALARM: Final = 0.05
#: The relative error of `math.exp`, `scipy.special.ndtr` and the like, with room to spare.
_FUNCTION_ERROR: Final = 1e-12
PUBLIC_NOISE: Final = (
    "The noise of this {what} follows from a public seed: anyone can compute and subtract it, so it protects "
    "nobody. What follows is what the same {what} with a secret key would give."
)
AGAINST: Final = (
    "The promise is against whoever sees everything that was released, with whatever knowledge of all others "
    "and whatever computers; not against whoever has the noise key, or sees data or updates before the "
    "noise, as the operator does."
)
_OTHER_WORLD: Final = {
    "zero-out": "all of that {one}'s updates had been zero",
    "replace-one": "that {one} had sent any other updates within the clip norm",
}


def detection_limit(mu: float, false_alarm: float = _FALSE_ALARM) -> float:
    """The largest power of any test between two worlds that μ-GDP separates: Φ(Φ⁻¹(α) + μ).

    Args:
        mu: μ ≥ 0.
        false_alarm: α in (0, 1), the test's rate of false alarms.

    References:
        Dong, Roth, Su (2022), "Gaussian Differential Privacy", equation (6).

    >>> round(detection_limit(0.0), 3), round(detection_limit(1.0), 3)
    (0.05, 0.26)
    """
    return float(ndtr(ndtri(false_alarm) + mu))


def detection_percent(mu: float) -> str:
    """`detection_limit` in percent, rounded up.

    >>> detection_percent(1.0), detection_percent(40.0)
    ('26', '100')
    """
    return at_least(min(100.0, 100.0 * detection_limit(mu) * (1 + _FUNCTION_ERROR)), 3)


def plain_words(statement: Mapping[str, Any]) -> list[str]:
    """The meaning of a statement's dict as paragraphs for readers who know no mathematics.

    >>> plain_words({"epsilon_planned": None})
    ['This run added no noise. It protects nobody.']
    """
    s = statement
    if s["epsilon_planned"] is None:
        return ["This run added no noise. It protects nobody."]
    unit = UNITS[s["unit"]]
    paragraphs = [
        f"{unit.meaning.format(rounds=s['rounds'])} {AGAINST}",
        f"Two worlds are compared: the one that was, and one in which "
        f"{unit.say(_OTHER_WORLD[s['adjacency']])}.",
        _odds(s),
        unit.say(
            "The planned figures hold whatever the {many}' data are, also where they cannot be read or "
            "trained on, as long as one {one}'s data change that {one}'s own contribution and nothing else."
        ),
    ]
    if "epsilon_realised" in s:
        paragraphs.append(
            unit.say(
                "The realised figures say what it cost {many} to take part as often as they did. They are "
                "not private: they come from the record of who took part, without noise, and they hold only "
                "if the data decided neither that nor the end of the run."
            )
        )
    if s["noise_key_public"]:
        paragraphs.insert(0, PUBLIC_NOISE.format(what="run"))
    return paragraphs


def together(one: str) -> list[str]:
    """What a statement on several directories means, with what its unit is called."""
    counted = UNITS[one].say(
        "Counted is what each {one} gave away in all of these together, by the record of who took part: the "
        "figures are for the operator alone."
    )
    return [f"{counted} {AGAINST}"]


def _odds(s: Mapping[str, Any]) -> str:
    """What an observer of all released models can conclude."""
    text = odds("released models", s["unit"], s)
    if s["amplification"] is not None:
        text += (
            ", unless the observer knows who took part in which round: then the factor is at most "
            f"{odds_factor(s['epsilon_planned_known_cohorts'])}"
        )
    found = detection(f"{s['unit']}'s contribution", s)
    return f"{text}. {found}, even if it knows the rounds."


def odds(seen: str, one: str, s: Mapping[str, Any]) -> str:
    """What whoever saw all of what is released can conclude of one contributor."""
    return (
        f"Whatever an observer of all {seen} concludes, however much else is known about that {one} and all "
        "others, the probability of that conclusion differs between the two worlds at most by the factor "
        f"e^epsilon = {odds_factor(s['epsilon_planned'])}, plus delta = {at_least(s['delta'])}"
    )


def detection(what: str, s: Mapping[str, Any]) -> str:
    """How often the best test finds it."""
    return (
        f"A test between the two worlds that raises a false alarm in {100 * _FALSE_ALARM:g} % of cases "
        f"detects the {what} in at most {detection_percent(s['mu_planned'])} % of cases"
    )


def odds_factor(epsilon: float) -> str:
    """e^ε as text, and its value if that can be read, both rounded up."""
    power = f"e^{at_least(epsilon, 4)}"
    return power if epsilon > 300 else f"{power} = {at_least(math.exp(epsilon) * (1 + _FUNCTION_ERROR), 4)}"
