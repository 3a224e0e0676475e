"""Fingerprints of own objects: equal for equal values in any process, different for any other
bit.
"""

from __future__ import annotations

import sys
from itertools import combinations
from threading import Lock
from typing import Any

import numpy as np
import pytest
import torch

from fedmf.optim import Adam, Sgd, fingerprint_of


class Rule:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Slotted:
    __slots__ = ("__rate", "unset")

    def __init__(self, rate: float) -> None:
        self.__rate = rate

    def twice(self) -> float:
        return 2 * self.__rate


DIFFERENT: dict[str, Any] = {
    "nothing": Rule(),
    "text": Rule(a="1"),
    "float": Rule(a=1.0),
    "next float": Rule(a=float(np.nextafter(1.0, 2.0))),
    "nan": Rule(a=float("nan")),
    "minus zero": Rule(a=-0.0),
    "array": Rule(a=np.ones(2)),
    "tensor": Rule(a=torch.ones(2)),
    "list": Rule(a=[1, 2]),
    "dictionary": Rule(a={"x": 1, "y": 2}),
    "method": Rule(a=Slotted(1.0).twice),
    "slots": Slotted(1.0),
    "sgd": Sgd(),
    "adam": Adam(),
    "adam with another rate": Adam(learning_rate=0.2),
}


def test_any_difference_is_seen() -> None:
    fingerprints = {name: fingerprint_of(value) for name, value in DIFFERENT.items()}
    for one, other in combinations(fingerprints, 2):
        assert fingerprints[one] != fingerprints[other], (one, other)
    assert fingerprints["adam"][0] == "fedmf.optim.adam.Adam"
    assert fingerprints["sgd"][1] != fingerprints["adam"][1]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Rule(a={"x": 1, "y": 2}), Rule(a={"y": 2, "x": 1})),
        (Rule(a=1, b=2), Rule(b=2, a=1)),
        (Rule(a={"red", "green", "blue"}), Rule(a={"blue", "red", "green"})),
        (
            Rule(a=torch.arange(6.0).reshape(2, 3).T),
            Rule(a=torch.arange(6.0).reshape(2, 3).T.contiguous()),
        ),
        (Rule(a=np.arange(6.0)[::2]), Rule(a=np.array([0.0, 2.0, 4.0]))),
    ],
)
def test_equal_objects_have_one_fingerprint(one: object, other: object) -> None:
    assert fingerprint_of(one) == fingerprint_of(other)


def test_another_process_agrees() -> None:
    """The order of sets differs there, since strings are hashed with a seed per process."""
    digest = "21d069377a242d55a615b943a75001a2f4c9ac3419a8df603ab31dd2d9d54c8e"
    assert fingerprint_of([{"a", "b", "c"}, 0.1]) == ("builtins.list", digest)


def test_what_cannot_be_read_is_rejected() -> None:
    for hidden in (Lock(), (i for i in range(3)), sys.stdout.buffer):
        with pytest.raises(ValueError, match="a custom object must hold numbers, strings"):
            fingerprint_of(Rule(a=hidden))
    endless = Rule()
    endless.itself = [endless]  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"must not refer to itself; .*\.Rule does"):
        fingerprint_of(endless)
